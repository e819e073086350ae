package main

import (
	"slices"
	"time"
)

// staticcheck is run by version and required by nobody.
const staticcheck = "honnef.co/go/tools/cmd/staticcheck@v0.8.2"

// vmKernel is the oldest kernel that headgate promises to work on.
const vmKernel = "6.1"

// A step is something that must pass.
type step struct {
	name     string
	commands []command
	// limit is how long all of it may take.
	limit time.Duration
	// atOnce says that the commands run side by side; what each prints is shown when it ends.
	atOnce bool
	// read makes something of what the commands print. Nil: it is shown.
	read func(w *workshop) reader
}

// A command is one program to run.
type command struct {
	dir  string // below the root
	args []string
	// silent says that the command must print nothing: its output is what it found.
	silent bool
}

// steps returns all steps, in order: the quick ones first.
func (t tree) steps() []step {
	return []step{
		{name: "format", limit: time.Minute, commands: []command{{args: []string{"gofmt", "-l", "."}, silent: true}}},
		{name: "vet", limit: 10 * time.Minute, commands: t.inModules("go", "vet", "./...")},
		{name: "staticcheck", limit: 15 * time.Minute, commands: t.inModules("go", "run", staticcheck, "./...")},
		// The virtual machine's own tests need it before the step "vm" does.
		{name: "prepare", limit: 10 * time.Minute, commands: []command{{args: []string{"go", "run", "./internal/vmtest", "-prepare", "-kernel", vmKernel}}}},
		{name: "test", limit: 45 * time.Minute, commands: t.inModules("go", "test", "-race", "-count=1", "-timeout=40m", "-json", "./..."),
			read: func(w *workshop) reader { return newEvents(w.out, "host") }},
		{name: "vm", limit: 28 * time.Minute, commands: t.inVM(), atOnce: true,
			read: func(w *workshop) reader { return newVerbose(w.out, "kernel "+vmKernel) }},
		{name: "examples", limit: 10 * time.Minute, commands: t.examples()},
		{name: "benchmarks", limit: 15 * time.Minute, commands: t.inModules("go", "test", "-run=^$", "-bench=.", "-benchtime=1x", "-timeout=10m", "./...")},
		{name: "bench", limit: 10 * time.Minute, commands: t.benches()},
	}
}

// inModules returns a command for each module of the tree.
func (t tree) inModules(args ...string) []command {
	var all []command
	for _, m := range t.modules {
		all = append(all, command{dir: m, args: args})
	}
	return all
}

// longInVM are packages whose tests take half of the time that all of them take in a virtual machine.
var longInVM = []string{
	"github.com/headgate/headgate/internal/pairs", "github.com/headgate/headgate/ipvs", "github.com/headgate/headgate/model/modeltest",
}

// inVM returns the commands that run on another kernel every test that needs a kernel. There are two machines, since
// the tests in one leave a processor idle most of the time.
func (t tree) inVM() []command {
	var packages [2][]string
	for _, p := range t.kernelTests {
		i := 0
		if slices.Contains(longInVM, p) {
			i = 1
		}
		packages[i] = append(packages[i], p)
	}
	var all []command
	for _, p := range packages {
		args := []string{"go", "run", "./internal/vmtest", "-kernel", vmKernel, "-v", "-timeout", "25m"}
		all = append(all, command{args: append(args, p...)})
	}
	return all
}

// exampleArgs has the arguments of those examples that need some.
var exampleArgs = map[string][][]string{
	"examples/quickstart": {{"-backend", "iptables-legacy"}, {"-backend", "iptables-nft"}, {"-backend", "nftables"}},
	"examples/fileproxy":  {{"check", "services.yaml"}}, // its demo runs it
}

// examples returns the commands that run every program below examples as its reader would.
func (t tree) examples() []command {
	var all []command
	for _, dir := range t.programs {
		runs, ok := exampleArgs[dir]
		if !ok {
			runs = [][]string{nil}
		}
		for _, args := range runs {
			all = append(all, command{dir: dir, args: append([]string{"go", "run", "."}, args...)})
		}
	}
	return all
}

// benches returns small runs of the bench: of each backend that works on every host, and of conntrack.
func (t tree) benches() []command {
	small := []string{"-services", "100", "-endpoints", "3", "-affinity", "10", "-restricted", "10", "-connect", "50", "-runs", "1"}
	return []command{
		{args: append([]string{"go", "run", "./internal/bench", "-backend", "iptables", "-variant", "legacy"}, small...)},
		{args: append([]string{"go", "run", "./internal/bench", "-backend", "iptables", "-variant", "nft"}, small...)},
		{args: append([]string{"go", "run", "./internal/bench", "-backend", "nftables"}, small...)},
		{args: []string{"go", "run", "./internal/bench", "-conntrack", "-flows", "5000", "-stale", "100"}},
	}
}
