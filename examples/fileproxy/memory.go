package main

import (
	"bytes"
	"encoding/gob"
	"errors"
	"os"
	"path/filepath"
	"time"

	"github.com/headgate/headgate/model"
)

// A memory is what a proxy must know of those that ran before it. It lasts as long as what they left in the kernel, since
// its folder does: until the machine ends, or cleanup.
type memory struct{ dir string }

const (
	lastGood    = "last-good" // the state that was wanted last, gob-encoded
	lastBackend = "backend"   // the name of the one that has it in the kernel
)

func (m memory) path(name string) string { return filepath.Join(m.dir, name) }

// keep remembers a state.
func (m memory) keep(s model.State) error {
	var b bytes.Buffer
	if err := gob.NewEncoder(&b).Encode(s); err != nil {
		return err
	}
	return m.write(lastGood, b.Bytes())
}

// state returns what was wanted last, and since when; false if there was nothing.
func (m memory) state() (s model.State, since time.Time, ok bool, err error) {
	f, err := os.Open(m.path(lastGood))
	if errors.Is(err, os.ErrNotExist) {
		return s, since, false, nil
	}
	if err != nil {
		return s, since, false, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err == nil {
		err = gob.NewDecoder(f).Decode(&s)
	}
	if err != nil {
		return model.State{}, since, false, err
	}
	return s, info.ModTime(), true, nil
}

func (m memory) write(name string, content []byte) error {
	if err := os.WriteFile(m.path(name+".new"), content, 0o600); err != nil {
		return err
	}
	return os.Rename(m.path(name+".new"), m.path(name))
}

// forget forgets everything, since nothing is left in the kernel.
func (m memory) forget() error {
	var errs []error
	for _, name := range []string{lastGood, lastBackend} {
		if err := os.Remove(m.path(name)); !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}
