// Fileproxy is a service proxy that is configured by a file: it reads services and their endpoints from YAML, programs
// the node's kernel to balance them, and follows every change of the file.
//
//	fileproxy -file /etc/fileproxy/services.yaml          run
//	fileproxy check services.yaml                         say what is wrong with a file, and program nothing
//	fileproxy status                                      how the running one and each service is doing
//	fileproxy explain 10.96.0.10:80 -from 203.0.113.7     what becomes of a connection, and why
//	fileproxy -cleanup                                    remove all that it has ever programmed
//
// SIGHUP reads the file and programs everything anew, whatever the kernel holds. SIGTERM ends the program and leaves the
// rules in place. README.md has the format of the file and how to run it under systemd; the demo beside it shows all of
// it at work:
//
//	sudo go run ./demo
//
// To read it: proxy.go has the program's life, file.go what a file says, watch.go how its changes are noticed, backend.go how
// the kernel is programmed, report.go and serve.go what others are told.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A config is what the command line says.
type config struct {
	file, dir, listen string
	backend           string
	setSysctls        bool
	within            time.Duration
	hangups           <-chan os.Signal // SIGHUP
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, unix.SIGHUP)
	switch err := command(ctx, os.Args[1:], hangups); {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "fileproxy:", err)
		os.Exit(1)
	}
}

// command does what the command line says.
func command(ctx context.Context, args []string, hangups <-chan os.Signal) error {
	if len(args) > 0 {
		switch args[0] {
		case "check":
			return checkCommand(args[1:])
		case "status":
			return statusCommand(ctx, args[1:])
		case "explain":
			return explainCommand(ctx, args[1:])
		}
	}
	cfg := config{hangups: hangups}
	flags := newFlags("fileproxy", &cfg.dir)
	flags.StringVar(&cfg.file, "file", "/etc/fileproxy/services.yaml", "the `file` with the services")
	flags.StringVar(&cfg.backend, "backend", "auto", "auto, nftables, iptables or ipvs; auto takes the first that can work here")
	flags.StringVar(&cfg.listen, "listen", "127.0.0.1:9770", "`address` for /metrics and /healthz; empty for none")
	flags.DurationVar(&cfg.within, "within", 30*time.Second, "how long a change may wait, or the kernel go unchecked, before /healthz says no")
	flags.BoolVar(&cfg.setSysctls, "set-sysctls", false, "set the sysctls that a backend needs")
	remove := flags.Bool("cleanup", false, "remove all that was programmed, of every backend or of the one named, and end")
	level := slog.LevelInfo
	flags.TextVar(&level, "log-level", level, "debug, info, warn or error")
	asJSON := flags.Bool("log-json", false, "log as JSON")
	switch err := flags.Parse(args); {
	case err != nil:
		return err
	case flags.NArg() > 0:
		return fmt.Errorf("no command %q: see fileproxy -help", flags.Arg(0))
	case cfg.within < time.Second:
		return fmt.Errorf("-within %v is less than a second", cfg.within)
	}
	var handler slog.Handler = slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	if *asJSON {
		handler = slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	if *remove {
		return cleanupCommand(ctx, cfg, slog.New(handler))
	}
	return run(ctx, cfg, slog.New(handler))
}

func newFlags(name string, dir *string) *flag.FlagSet {
	flags := flag.NewFlagSet(name, flag.ContinueOnError)
	flags.StringVar(dir, "dir", "/run/fileproxy", "`folder` for the socket, the lock, and a note of the backend")
	return flags
}

func cleanupCommand(ctx context.Context, cfg config, log *slog.Logger) error {
	lock, err := lockDir(cfg.dir) // a running one would only mend what is removed
	if err != nil {
		return err
	}
	defer lock.Close()
	candidates, err := named(backends(cfg.setSysctls), cfg.backend)
	if err != nil {
		return err
	}
	if err := cleanup(ctx, candidates, log); err != nil || len(candidates) == 1 {
		return err
	}
	return memory{cfg.dir}.forget()
}

func checkCommand(args []string) error {
	if len(args) != 1 {
		return errors.New("usage: fileproxy check FILE")
	}
	text, err := os.ReadFile(args[0])
	if err != nil {
		return err
	}
	doc, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	wrong, err := doc.verify()
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	for _, name := range slices.Sorted(maps.Keys(wrong)) {
		for line := range strings.Lines(wrong[name].Error()) {
			fmt.Printf("%s: %s\n", name, strings.TrimSuffix(line, "\n"))
		}
	}
	if len(wrong) > 0 {
		return fmt.Errorf("%s: %d services are not in order", args[0], len(wrong))
	}
	fmt.Printf("%s: %d services, all in order\n", args[0], len(doc.state.Services))
	return nil
}

func statusCommand(ctx context.Context, args []string) error {
	var dir string
	flags := newFlags("fileproxy status", &dir)
	asJSON := flags.Bool("json", false, "print JSON")
	if err := flags.Parse(args); err != nil {
		return err
	}
	return status(ctx, os.Stdout, dir, *asJSON)
}

func explainCommand(ctx context.Context, args []string) error {
	var dir string
	flags := newFlags("fileproxy explain", &dir)
	from := flags.String("from", "", "the client's `address`; empty for the node itself")
	iface := flags.String("interface", "", "where the packet comes in")
	protocol := flags.String("protocol", model.TCP.String(), "tcp, udp or sctp")
	to := ""
	if len(args) > 0 && args[0] != "" && args[0][0] != '-' { // flags may come before or after
		to, args = args[0], args[1:]
	}
	if err := flags.Parse(args); err != nil {
		return err
	}
	if to == "" {
		to = flags.Arg(0)
	}
	if _, err := question(to, *protocol, *from, *iface); err != nil {
		return fmt.Errorf("usage: fileproxy explain ADDRESS:PORT [-from ADDRESS] …: %w", err)
	}
	answer, err := ask(ctx, dir, "/explain", url.Values{"to": {to}, "protocol": {*protocol}, "from": {*from}, "interface": {*iface}})
	if err == nil {
		_, err = io.Writer(os.Stdout).Write(answer)
	}
	return err
}
