package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// A command is a tool of the host that is run for its result.
type command struct {
	name string
	args []string
	dir  string   // "" for ours
	env  []string // beside ours
}

// run returns what the tool printed; its error tells what it complained about.
// When ctx ends the tool is interrupted, so that it can clean up behind itself.
func (c command) run(ctx context.Context) (string, error) {
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, c.name, c.args...)
	cmd.Dir, cmd.Env = c.dir, append(os.Environ(), c.env...)
	cmd.Stdout, cmd.Stderr = &out, &complaint
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGINT) }
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if ctx.Err() != nil {
		return "", context.Cause(ctx)
	}
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		said := strings.TrimSpace(complaint.String() + out.String())
		return "", fmt.Errorf("%s: %w\n%s", c, err, said)
	}
	return out.String(), err
}

func (c command) String() string {
	words := append([]string{c.name}, c.args...)
	const most = 6
	if len(words) > most {
		words = append(words[:most:most], "...")
	}
	return strings.Join(words, " ")
}

// indent sets lines off from what surrounds them.
func indent(lines []string) string {
	return "    | " + strings.Join(lines, "\n    | ")
}
