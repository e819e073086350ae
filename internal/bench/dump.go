package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/headgate/headgate/internal/lab"
)

// writeDump writes pieces to a file, back to back.
func writeDump(path string, pieces [][]byte) error {
	return os.WriteFile(path, slices.Concat(pieces...), 0o644)
}

// replayFile sends what a file holds into so many empty namespaces and prints how long the kernel took, each time.
func replayFile(b backend, path string, times int, out io.Writer) error {
	stream, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	pieces, err := b.split(stream)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	for range times {
		took, err := replay(b, pieces)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%d bytes in %d pieces: %.4f s\n", len(stream), len(pieces), took.Seconds())
	}
	return nil
}

func replay(b backend, pieces [][]byte) (took time.Duration, err error) {
	ns, err := lab.NewNetNS("replay")
	if err != nil {
		return 0, err
	}
	defer ns.Close()
	f, err := b.floor(ns)
	if err != nil {
		return 0, err
	}
	took, err = send(f, pieces)
	return took, errors.Join(err, f.Close())
}
