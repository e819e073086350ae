package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	goiptables "github.com/coreos/go-iptables/iptables"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// tools are the programs of one family and variant, and how they are run.
type tools struct {
	family   model.Family
	variant  Variant // Legacy or NFT
	ns       *netns.NetNS
	iptables string // paths
	restore  string
	save     string
	lockWait time.Duration
	timeout  time.Duration
	// exec runs a program: execute, but in some tests.
	exec func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error)
}

// programNames returns the names of the three programs of a family and variant; Auto is the host's default.
func programNames(f model.Family, v Variant) [3]string {
	base := "iptables"
	if f == model.IPv6 {
		base = "ip6tables"
	}
	switch v {
	case Legacy:
		base += "-legacy"
	case NFT:
		base += "-nft"
	}
	return [3]string{base, base + "-restore", base + "-save"}
}

// lookTools finds the programs of a family and variant in a directory; with "" in $PATH and where they are usually.
func lookTools(f model.Family, v Variant, dir string) (*tools, error) {
	t := &tools{family: f, variant: v}
	for i, to := range []*string{&t.iptables, &t.restore, &t.save} {
		path, err := lookProgram(dir, programNames(f, v)[i])
		if err != nil {
			return nil, err
		}
		*to = path
	}
	return t, nil
}

func lookProgram(dir, name string) (string, error) {
	if dir != "" {
		return exec.LookPath(filepath.Join(dir, name))
	}
	path, err := exec.LookPath(name)
	if err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/local/sbin", "/usr/sbin", "/sbin"} {
		if path, err := exec.LookPath(filepath.Join(dir, name)); err == nil {
			return path, nil
		}
	}
	return "", err
}

// ofVariant returns which variant the program says it is of.
func (t *tools) ofVariant(ctx context.Context) (Variant, error) {
	out, err := t.run(ctx, t.iptables, []string{"--version"}, nil)
	if err != nil {
		return Auto, err
	}
	if bytes.Contains(out, []byte("nf_tables")) {
		return NFT, nil
	}
	return Legacy, nil // also those that are older than the other variant, and do not say
}

// ask asks go-iptables, which runs these programs inside the namespace, a question. The library knows no deadlines:
// when ctx ends, its last program is left to end by itself.
func (t *tools) ask(ctx context.Context, question func(*goiptables.IPTables) (bool, error)) (bool, error) {
	proto := goiptables.ProtocolIPv4
	if t.family == model.IPv6 {
		proto = goiptables.ProtocolIPv6
	}
	type answer struct {
		yes bool
		err error
	}
	done := make(chan answer, 1)
	go func() {
		var a answer
		a.err = t.ns.Do(func() error {
			lib, err := goiptables.New(goiptables.Path(t.iptables), goiptables.IPFamily(proto), goiptables.Timeout(t.waitSeconds()))
			if err == nil {
				a.yes, err = question(lib)
			}
			return err
		})
		done <- a
	}()
	select {
	case a := <-done:
		return a.yes, t.meaning(a.err)
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// hasChain reports whether a table has a chain.
func (t *tools) hasChain(ctx context.Context, tbl table, chain string) (bool, error) {
	return t.ask(ctx, func(lib *goiptables.IPTables) (bool, error) { return lib.ChainExists(tbl.String(), chain) })
}

// hasRule reports whether a chain has a rule, given as words.
func (t *tools) hasRule(ctx context.Context, tbl table, chain string, rule ...string) (bool, error) {
	return t.ask(ctx, func(lib *goiptables.IPTables) (bool, error) { return lib.Exists(tbl.String(), chain, rule...) })
}

// meaning turns an error of go-iptables into one of ours.
func (t *tools) meaning(err error) error {
	var tool *goiptables.Error
	if errors.As(err, &tool) {
		return newToolError(t.iptables, err, tool.Error())
	}
	return err
}

func (t *tools) waitSeconds() int { return max(1, int((t.lockWait+time.Second-1)/time.Second)) }

// list runs iptables-save for one table.
func (t *tools) list(ctx context.Context, tbl table) (listing, error) {
	out, err := t.run(ctx, t.save, []string{"-t", tbl.String()}, nil)
	if err != nil {
		return listing{}, err
	}
	return parseSave(out), nil
}

// feed runs iptables-restore with a script. Nothing but what the script names is touched.
func (t *tools) feed(ctx context.Context, text []byte) error {
	_, err := t.run(ctx, t.restore, t.restoreArgs(), text)
	return err
}

func (t *tools) restoreArgs() []string {
	return []string{"--noflush", "-w", strconv.Itoa(t.waitSeconds())}
}

// run runs a program inside the namespace and returns what it wrote to its standard output. When ctx ends, or after
// the timeout, the program is killed with all that it started.
func (t *tools) run(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, t.timeout)
	defer cancel()
	var out []byte
	err := t.ns.Do(func() (err error) {
		out, err = t.exec(ctx, program, args, stdin)
		return err
	})
	return out, err
}

// execute runs a program from the calling thread, which must be locked. The error is a toolError.
func execute(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
	var stdout, stderr bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if f, err := fileOf(stdin); err == nil {
		defer f.Close()
		cmd.Stdin = f
	} else {
		cmd.Stdin = bytes.NewReader(stdin)
	}
	cmd.Env = append(os.Environ(), "LC_ALL=C")
	// The thread lives as long as the child; if the process dies, so does the child.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: unix.SIGKILL}
	cmd.Cancel = func() error { return unix.Kill(-cmd.Process.Pid, unix.SIGKILL) }
	// Its output is read until it is closed, which somebody whom it started in a group of its own might not do.
	cmd.WaitDelay = 10 * time.Second
	err := cmd.Run()
	if err == nil {
		return stdout.Bytes(), nil
	}
	switch {
	case ctx.Err() != nil:
		err = fmt.Errorf("killed: %w", context.Cause(ctx))
	case errors.Is(err, exec.ErrWaitDelay): // part of its output may be missing
		err = fmt.Errorf("%w: %w", model.ErrBusy, err)
	}
	return nil, newToolError(program, err, stderr.String())
}

// fileOf returns an anonymous file in memory that holds a text and is open at its beginning. A program reads it at its own
// pace, where a pipe would have it wait for us, and us for it, every 64 KiB.
func fileOf(text []byte) (*os.File, error) {
	fd, err := unix.MemfdCreate("headgate", unix.MFD_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("memfd_create", err)
	}
	f := os.NewFile(uintptr(fd), "headgate")
	if _, err = f.Write(text); err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		f.Close() // what it holds is of no use
		return nil, err
	}
	return f, nil
}
