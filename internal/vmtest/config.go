package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// config is what the command line asks for.
type config struct {
	kernels      []kernelSource
	packages     []string // patterns
	program      string   // instead of packages
	programArgs  []string
	testArgs     []string
	verbose      bool
	timeout      time.Duration
	memory, cpus int
	modules      []string
	env          []string
	dir          string // the module of the packages
	cache        string
	mirror       string
	prepare      bool
}

// defaultModules are loaded at boot: those that nothing loads by itself when it
// is used, or that a program may look for before it uses them; and the
// expressions of nf_tables, because a transaction that needs n modules loaded
// is begun n times over and asks each time for all of them again, which is a
// minute of an emulated machine's time. Everything else comes when the kernel
// asks for it.
const defaultModules = "nf_conntrack nf_conntrack_netlink nf_nat veth dummy sctp " +
	"nf_tables nft_chain_nat nft_compat nft_connlimit nft_ct nft_fib_inet nft_hash nft_limit nft_log nft_masq " +
	"nft_nat nft_numgen nft_queue nft_redir nft_reject_inet nf_log_syslog " +
	"ip_vs ip_vs_rr ip_vs_wrr ip_vs_lc ip_vs_wlc ip_vs_sh ip_vs_mh"

const usage = `usage: go run ./internal/vmtest [flags] packages
       go run ./internal/vmtest [flags] -program PACKAGE|FILE [-- arguments]

Runs the packages' tests, or a program, in a virtual machine with a stock
Debian kernel.

`

// parseArgs reads the command line. It returns flag.ErrHelp after having
// printed help that was asked for.
func parseArgs(args []string, out io.Writer) (config, error) {
	var c config
	var kernels, run, testArgs, modules string
	f := flag.NewFlagSet("vmtest", flag.ContinueOnError)
	f.SetOutput(out)
	f.Usage = func() {
		fmt.Fprint(out, usage)
		f.PrintDefaults()
	}
	f.StringVar(&kernels, "kernel", "6.1", "Debian kernels to run on, one after the other: "+kernelNames()+", several with commas, or all")
	f.StringVar(&run, "run", "", "run only tests that match this `regexp`")
	f.StringVar(&testArgs, "args", "", "further `flags` of the test binaries, separated by spaces, such as \"-test.short -test.count=2\"")
	f.BoolVar(&c.verbose, "v", false, "show all output of tests as it comes, not that of failed ones alone")
	f.DurationVar(&c.timeout, "timeout", 15*time.Minute, "time for all of the tests on one kernel")
	f.IntVar(&c.memory, "mem", 2048, "memory of the machine in `MB`")
	f.IntVar(&c.cpus, "cpus", 2, "processors of the machine")
	f.StringVar(&modules, "modules", defaultModules, "kernel `modules` to load at boot, separated by spaces")
	f.Func("env", "a variable `K=V` to set in the guest, several times if need be", func(kv string) error {
		if !strings.Contains(kv, "=") {
			return errors.New("no = in it")
		}
		c.env = append(c.env, kv)
		return nil
	})
	f.StringVar(&c.program, "program", "", "a main package, or a static executable, to run `instead` of tests; its exit status becomes ours")
	f.StringVar(&c.dir, "C", ".", "`directory` of the module that packages are taken from")
	f.StringVar(&c.cache, "cache", "", "`directory` for kernels (default headgate-vmtest in the user's cache directory)")
	f.StringVar(&c.mirror, "mirror", "", "`URL` of the Debian mirror for kernels (default: apt's)")
	f.BoolVar(&c.prepare, "prepare", false, "only get what is missing: tools and kernels")
	if err := f.Parse(args); err != nil {
		return c, err
	}
	c.modules = strings.Fields(modules)
	c.testArgs = testFlags(run, testArgs)
	if c.program != "" {
		c.programArgs = f.Args()
	} else {
		c.packages = f.Args()
	}
	var err error
	if c.kernels, err = chooseKernels(kernels); err != nil {
		return c, err
	}
	return c, c.check()
}

// check refuses what cannot work and fills in what is not given.
func (c *config) check() error {
	switch {
	case c.program == "" && len(c.packages) == 0 && !c.prepare:
		return errors.New("no packages given; -h shows the usage")
	case c.memory < 256:
		return fmt.Errorf("-mem %d: a machine needs 256 MB", c.memory)
	case c.cpus < 1:
		return fmt.Errorf("-cpus %d", c.cpus)
	case c.timeout <= 0:
		return fmt.Errorf("-timeout %v", c.timeout)
	case c.program != "" && len(c.kernels) > 1:
		return errors.New("a program runs on one kernel at a time")
	}
	if c.cache == "" {
		dir, err := os.UserCacheDir()
		if err != nil {
			return fmt.Errorf("%w; name a directory with -cache", err)
		}
		c.cache = filepath.Join(dir, "headgate-vmtest")
	}
	var err error
	if c.dir, err = filepath.Abs(c.dir); err != nil {
		return err
	}
	c.cache, err = filepath.Abs(c.cache)
	return err
}

// testFlags are those of a test binary. -test.v is needed to see skipped
// tests; the log leaves out what was not asked for.
func testFlags(run, further string) []string {
	flags := []string{"-test.v=test2json"}
	if run != "" {
		flags = append(flags, "-test.run="+run)
	}
	return append(flags, strings.Fields(further)...)
}

func kernelNames() string {
	var names []string
	for _, k := range kernelSources {
		names = append(names, k.name)
	}
	return strings.Join(names, ", ")
}

// chooseKernels reads the value of -kernel.
func chooseKernels(names string) ([]kernelSource, error) {
	if names == "all" {
		return kernelSources, nil
	}
	var chosen []kernelSource
	for name := range strings.SplitSeq(names, ",") {
		i := slices.IndexFunc(kernelSources, func(k kernelSource) bool { return k.name == name })
		if i < 0 {
			return nil, fmt.Errorf("no kernel %q; there are %s", name, kernelNames())
		}
		chosen = append(chosen, kernelSources[i])
	}
	return chosen, nil
}
