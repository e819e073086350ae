package iptables

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

var (
	update = flag.Bool("update", false, "rewrite testdata/*.rules")
	seed   = flag.Uint64("seed", 0, "repeat what the suite did by chance")
)

// TestMain keeps the tests from waiting for, or holding up, whoever else uses the host's xtables lock.
func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "headgate-iptables")
	if err != nil {
		panic(err)
	}
	os.Setenv("XTABLES_LOCKFILE", filepath.Join(dir, "lock"))
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

var variants = []Variant{NFT, Legacy}

// eachVariant runs a test for both variants, at the same time: what follows in the test comes before.
func eachVariant(t *testing.T, f func(t *testing.T, v Variant)) {
	t.Helper()
	for _, v := range variants {
		t.Run(v.String(), func(t *testing.T) {
			t.Parallel()
			f(t, v)
		})
	}
}

// newNS returns an empty network namespace that ends with the test.
func newNS(tb testing.TB) *lab.NetNS {
	tb.Helper()
	lab.NeedRoot(tb)
	ns, err := lab.NewNetNS("iptables")
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, ns.Close()) })
	return ns
}

// open returns a Programmer that is closed with the test.
func open(tb testing.TB, cfg Config) *Programmer {
	tb.Helper()
	p, err := New(within(tb), cfg)
	require.NoError(tb, err)
	tb.Cleanup(func() { require.NoError(tb, p.Close()) })
	return p
}

// within returns a context that ends before the test binary is killed.
func within(tb testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	tb.Cleanup(cancel)
	return ctx
}

// command runs a stock program in the namespace of a descriptor.
func command(fd int, stdin, name string, args ...string) (string, error) {
	ns, err := netns.Open(fd)
	if err != nil {
		return "", err
	}
	defer ns.Close()
	var out, stderr strings.Builder
	err = ns.Do(func() error {
		cmd := exec.Command(name, args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(stdin), &out, &stderr
		return cmd.Run()
	})
	if err != nil {
		err = fmt.Errorf("%s %q: %w: %s", name, args, err, stderr.String())
	}
	return out.String(), err
}

// program returns the name of a stock program: "", "-save" or "-restore" of a family and variant.
func program(f model.Family, v Variant, what string) string {
	return map[string]string{"": programNames(f, v)[0], "-restore": programNames(f, v)[1], "-save": programNames(f, v)[2]}[what]
}

// restore feeds a script to iptables-restore --noflush.
func restore(fd int, f model.Family, v Variant, script string) error {
	_, err := command(fd, script, program(f, v, "-restore"), "--noflush", "-w", "5")
	return err
}

var (
	noise    = regexp.MustCompile(`(?m)^#.*\n`)
	counters = regexp.MustCompile(` \[\d+:\d+\]`)
	bare     = regexp.MustCompile(`(?m)^\*\w+\n(:\w+ ACCEPT\n)+COMMIT\n`)
)

// saved returns what a variant holds in both families, without counters, and without tables that hold nothing: the
// kernel makes those by itself.
func saved(tb testing.TB, fd int, v Variant) string {
	tb.Helper()
	ns, err := netns.Open(fd)
	require.NoError(tb, err)
	defer ns.Close()
	var all strings.Builder
	for _, f := range model.Families {
		t := &tools{family: f, variant: v, ns: ns}
		if there, err := t.instantiated(); err != nil || len(there) == 0 {
			require.NoError(tb, err)
			continue
		}
		out, err := command(fd, "", program(f, v, "-save"))
		require.NoError(tb, err)
		if out = bare.ReplaceAllString(counters.ReplaceAllString(noise.ReplaceAllString(out, ""), ""), ""); out != "" {
			fmt.Fprintf(&all, "%s %s\n%s", v, f, out)
		}
	}
	return all.String()
}

// foreign returns a ruleset of testdata/foreign.
func foreign(tb testing.TB, name string) string {
	tb.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", "foreign", name+".rules"))
	require.NoError(tb, err)
	return string(b)
}

// foreignSix is foreign for IPv6.
func foreignSix(tb testing.TB, name string) string {
	r := strings.NewReplacer("127.0.0.0/8", "::1/128", "icmp-port", "icmp6-port", "-p icmp ", "-p ipv6-icmp ")
	four := regexp.MustCompile(`\b(\d+)\.(\d+)\.(\d+)\.(\d+)(/\d+)?(:\d+)?`)
	return four.ReplaceAllStringFunc(r.Replace(foreign(tb, name)), func(s string) string {
		m := four.FindStringSubmatch(s)
		a := fmt.Sprintf("fd%s:%s:%s::%s", m[1][:min(2, len(m[1]))], m[2], m[3], m[4])
		switch {
		case m[6] != "":
			return "[" + a + "]" + m[6]
		case m[5] == "/32":
			return a + "/128"
		case m[5] == "/16":
			return "fd17:17::/32"
		}
		return a + m[5]
	})
}

// testEnv returns the env of a node for a Config that rejects other ports, where everything works.
func testEnv(f model.Family, node model.Node) *env {
	cfg, err := Config{RejectOtherPorts: true}.settled()
	if err != nil {
		panic(err)
	}
	return newEnv(f, names{cfg.Prefix}, cfg.settings(), features{randomFully: true, label: true, program: true}, node, true)
}

// resolved returns a Resolver that holds a state, and the forms in it.
func resolved(tb testing.TB, s model.State) (*model.Resolver, []*model.Resolved) {
	tb.Helper()
	cfg, err := Config{RejectOtherPorts: true}.settled()
	require.NoError(tb, err)
	r := model.NewResolver(featureSet(features{label: true, program: true}, cfg))
	d, err := r.ResolveState(s, nil)
	require.NoError(tb, err)
	r.Commit(d)
	return r, r.Forms()
}
