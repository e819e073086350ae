package main

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// A recorder keeps what a Programmer sends to the kernel. It does so outside of Go's heap: what lies there would make
// the garbage collector run less often than in a program that does not record.
type recorder struct {
	arena  []byte
	used   int
	pieces [][]byte
}

// arenaSize is address space, not memory: pages that are not written cost nothing.
const arenaSize = 1 << 30

func newRecorder() (*recorder, error) {
	arena, err := unix.Mmap(-1, 0, arenaSize, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("mmap of %d bytes: %w", arenaSize, err)
	}
	return &recorder{arena: arena}, nil
}

// record keeps a copy of the parts as one piece. Joined before, they would cost the Programmer's time.
func (r *recorder) record(parts ...[]byte) {
	began := r.used
	for _, part := range parts {
		if r.used+len(part) > len(r.arena) {
			panic("bench: more was sent than the recorder holds")
		}
		r.used += copy(r.arena[r.used:], part)
	}
	r.pieces = append(r.pieces, r.arena[began:r.used])
}

// take returns what was recorded since the last call. It is valid until the next piece is recorded.
func (r *recorder) take() [][]byte {
	pieces := r.pieces
	r.pieces, r.used = nil, 0
	return pieces
}

func (r *recorder) Close() error { return unix.Munmap(r.arena) }
