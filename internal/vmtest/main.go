package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

func main() { os.Exit(run(os.Args[1:])) }

func run(args []string) int {
	c, err := parseArgs(args, os.Stderr)
	switch {
	case errors.Is(err, flag.ErrHelp):
		return statusOK
	case err != nil:
		fmt.Fprintln(os.Stderr, "vmtest:", err)
		return statusUsage
	}
	endWithGoRun()
	// Everything below ends when the context does, and removes what it made on
	// its way out.
	// SIGPIPE is a reader who has gone, as in "| head".
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	r := runner{config: c, out: os.Stdout, err: os.Stderr}
	status, err := r.run(ctx)
	if err != nil {
		r.note("%v", err)
	}
	return status
}

// endWithGoRun makes the death of "go run" end this program in good order:
// "go run" passes no SIGTERM on, and would leave us running.
func endWithGoRun() {
	parent, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	if err == nil && filepath.Base(parent) == "go" {
		_ = unix.Prctl(unix.PR_SET_PDEATHSIG, uintptr(syscall.SIGTERM), 0, 0, 0)
	}
}
