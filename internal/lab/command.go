package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"golang.org/x/sys/unix"
)

// A Cmd is an exec.Cmd whose process starts inside a namespace. Start it with its own methods, not with
// those of the embedded Cmd that it does not override. The process is killed when the namespace is closed or this process ends.
type Cmd struct {
	*exec.Cmd
	ns *NetNS
}

// Command prepares a program to run in the namespace, as exec.CommandContext does.
func (n *NetNS) Command(ctx context.Context, name string, args ...string) *Cmd {
	c := exec.CommandContext(ctx, name, args...)
	// The resident thread forks, and lives as long as the namespace.
	c.SysProcAttr = &unix.SysProcAttr{Pdeathsig: unix.SIGKILL}
	return &Cmd{Cmd: c, ns: n}
}

// Start starts the process and does not wait for it.
func (c *Cmd) Start() error { return c.ns.run(c.Cmd.Start) }

// Run starts the process and waits for its end.
func (c *Cmd) Run() error {
	if err := c.Start(); err != nil {
		return err
	}
	return c.Wait()
}

// Output runs the process and returns what it wrote to its standard output. An error holds what it
// wrote to its standard error.
func (c *Cmd) Output() ([]byte, error) {
	var stdout, stderr bytes.Buffer
	c.Stdout, c.Stderr = &stdout, &stderr
	err := c.Run()
	if msg := strings.TrimSpace(stderr.String()); err != nil && msg != "" {
		err = fmt.Errorf("%w: %s", err, msg)
	}
	return stdout.Bytes(), err
}

// CombinedOutput runs the process and returns what it wrote to both outputs.
func (c *Cmd) CombinedOutput() ([]byte, error) {
	if c.Stdout != nil || c.Stderr != nil {
		return nil, errors.New("lab: CombinedOutput after Stdout or Stderr was set")
	}
	var both bytes.Buffer
	c.Stdout, c.Stderr = &both, &both
	err := c.Run()
	return both.Bytes(), err
}
