// Ci runs everything that a change must pass, and says at the end what ran, what did not, and why. It is started by
// .ci/test, which installs what it needs:
//
//	./.ci/test
//	./.ci/test -only format,vet
//
// It runs as root. No step stops those after it; the exit status is 0 only if all of them passed, no test was skipped
// everywhere that it could have run, and nothing was left behind on the machine.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM, unix.SIGHUP)
	defer stop()
	switch err := run(ctx, os.Args[1:], os.Stdout); {
	case errors.Is(err, flag.ErrHelp):
	case errors.Is(err, errFailed):
		os.Exit(1)
	case err != nil:
		fmt.Fprintln(os.Stderr, "ci:", err)
		os.Exit(1)
	}
}

// errFailed says that something did not pass. What, has been printed.
var errFailed = errors.New("failed")

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("ci", flag.ContinueOnError)
	only := flags.String("only", "", "comma-separated `steps` to run instead of all")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("the tests make network namespaces and program the kernel: run this as root")
	}
	tree, err := readTree(ctx)
	if err != nil {
		return err
	}
	steps := tree.steps()
	if *only != "" {
		if steps, err = choose(steps, strings.Split(*only, ",")); err != nil {
			return err
		}
	}
	w, err := newWorkshop(out)
	if err != nil {
		return err
	}
	defer w.Close()
	before := lookAround(ctx)
	started := time.Now()
	var done []outcome
	for _, s := range steps {
		done = append(done, w.run(ctx, s))
	}
	done = append(done, w.leftovers(ctx, before))
	return summarize(out, done, *only != "", time.Since(started))
}

// choose returns the named steps, in the order in which they run.
func choose(steps []step, names []string) ([]step, error) {
	for _, name := range names {
		if !slices.ContainsFunc(steps, func(s step) bool { return s.name == name }) {
			var all []string
			for _, s := range steps {
				all = append(all, s.name)
			}
			return nil, fmt.Errorf("no step %q; there are %s", name, strings.Join(all, ", "))
		}
	}
	return slices.DeleteFunc(steps, func(s step) bool { return !slices.Contains(names, s.name) }), nil
}
