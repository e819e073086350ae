package main

import (
	"bufio"
	"fmt"
	"io"
	"io/fs"
)

// A cpioWriter writes the "newc" archive format that Linux unpacks as its
// first file system (Documentation/driver-api/early-userspace/buffer-format.rst).
// After the first error it writes nothing more; close reports it.
type cpioWriter struct {
	w     *bufio.Writer
	at    int64 // bytes written so far
	inode uint32
	err   error
}

func newCpioWriter(w io.Writer) *cpioWriter {
	return &cpioWriter{w: bufio.NewWriterSize(w, 1<<20)}
}

// File types in the mode field, as in inode(7).
const (
	modeDir     = 0o040000
	modeRegular = 0o100000
	modeLink    = 0o120000
)

func (c *cpioWriter) dir(name string) {
	c.header(name, modeDir|0o755, 2, 0)
}

func (c *cpioWriter) link(name, target string) {
	c.header(name, modeLink|0o777, 1, int64(len(target)))
	c.write([]byte(target))
	c.pad()
}

// file writes a regular file of size bytes, which it takes from r.
func (c *cpioWriter) file(name string, perm fs.FileMode, size int64, r io.Reader) {
	c.header(name, modeRegular|uint32(perm.Perm()), 1, size)
	if c.err == nil {
		var n int64
		n, c.err = io.CopyN(c.w, r, size)
		c.at += n
		if c.err == io.EOF {
			c.err = fmt.Errorf("%s: shorter than the %d bytes announced", name, size)
		}
	}
	c.pad()
}

// close ends the archive.
func (c *cpioWriter) close() error {
	c.inode = 0
	c.header("TRAILER!!!", 0, 1, 0)
	if c.err == nil {
		c.err = c.w.Flush()
	}
	return c.err
}

// header writes one entry's header and name. All times are 0, every owner is
// root, and each entry is an inode of its own.
func (c *cpioWriter) header(name string, mode uint32, links, size int64) {
	if c.err == nil && size > 1<<32-1 {
		c.err = fmt.Errorf("%s: %d bytes do not fit the format", name, size)
	}
	c.inode++
	const owner, mtime, device, check = 0, 0, 0, 0
	c.write(fmt.Appendf(nil, "070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%s\x00",
		c.inode, mode, owner, owner, links, mtime, size, device, device, device, device, len(name)+1, check, name))
	c.pad()
}

// pad fills up to a multiple of four bytes.
func (c *cpioWriter) pad() {
	c.write(make([]byte, -c.at&3))
}

func (c *cpioWriter) write(p []byte) {
	if c.err == nil {
		var n int
		n, c.err = c.w.Write(p)
		c.at += int64(n)
	}
}
