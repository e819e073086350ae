package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A store is the folder in which the plugin keeps its state, locked:
//
//	attachments  one line of JSON for each; replaced as a whole, never written to
//	lock         held by whoever reads or changes anything, the kernel's rules included
//
// The kernel lets go of the lock when the process ends, however it ends. What the rules may hold is always in the file:
// it is written before something is programmed, and after something is removed. So whatever a process leaves unfinished,
// the next one that programs makes good.
type store struct {
	dir  string
	lock *os.File
}

const (
	exclusive = unix.LOCK_EX
	shared    = unix.LOCK_SH
)

// openStore waits for the lock, and reads the state. The error wraps model.ErrBusy if ctx is over before it is free.
func openStore(ctx context.Context, dir string, how int) (*store, state, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, state{}, err
	}
	lock, err := os.OpenFile(filepath.Join(dir, "lock"), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, state{}, err
	}
	s := &store{dir, lock}
	locked := make(chan error, 1)
	go func() { locked <- flock(lock, how) }()
	select {
	case err = <-locked:
	case <-ctx.Done():
		// The process ends, and with it the one who waits.
		return nil, state{}, fmt.Errorf("waiting for %s: %w: %w", lock.Name(), model.ErrBusy, ctx.Err())
	}
	var st state
	if err == nil {
		st, err = s.load()
	}
	if err != nil {
		return nil, state{}, errors.Join(err, lock.Close())
	}
	return s, st, nil
}

func flock(f *os.File, how int) error {
	for {
		if err := unix.Flock(int(f.Fd()), how); !errors.Is(err, unix.EINTR) {
			return os.NewSyscallError("flock", err)
		}
	}
}

// Close lets go of the lock.
func (s *store) Close() { _ = s.lock.Close() }

func (s *store) file() string { return filepath.Join(s.dir, "attachments") }

// load reads the state. A line that cannot be read costs the one attachment that it was.
func (s *store) load() (state, error) {
	var st state
	text, err := os.ReadFile(s.file())
	if errors.Is(err, fs.ErrNotExist) {
		return st, nil
	}
	for line := range bytes.Lines(text) {
		var a attachment
		line = bytes.TrimSuffix(line, []byte("\n"))
		if json.Unmarshal(line, &a) == nil && a.key != (key{}) {
			st.attachments = append(st.attachments, a)
		} else {
			st.damaged = append(st.damaged, bytes.Clone(line))
		}
	}
	return st, err
}

// save replaces the state, so that readers and crashes meet the old one or the new one.
func (s *store) save(st state) error {
	var text bytes.Buffer
	for _, a := range st.attachments {
		line, err := json.Marshal(a)
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	for _, line := range st.damaged {
		text.Write(append(line, '\n'))
	}
	next := s.file() + ".new" // under the lock there is one at the most; one that was left behind is overwritten
	f, err := os.OpenFile(next, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(text.Bytes())
	if err = errors.Join(err, f.Sync(), f.Close()); err != nil {
		return err
	}
	if err := os.Rename(next, s.file()); err != nil {
		return err
	}
	dir, err := os.Open(s.dir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}
