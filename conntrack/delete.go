package conntrack

import (
	"context"
	"encoding/binary"

	"golang.org/x/sys/unix"
)

// batch is how many deletions are sent at once. Should every one of them fail, the errors still fit the receive buffer
// of a socket, of which the smallest takes about a kilobyte.
const batch = 100

// A deleter deletes flows in batches, over a socket of its own so that it can do so while they are listed.
type deleter struct {
	conn  *conn
	buf   []byte
	n     int    // deletions in buf
	first uint32 // sequence number of the first
	last  int    // where the last begins

	deleted, gone int // gone: somebody else was first
	failures      failures
	batches       int
}

// add puts a flow among those to be deleted, and sends a batch that is full.
func (d *deleter) add(ctx context.Context, f *flow) error {
	if d.n == 0 {
		d.first, d.buf = d.conn.next(batch), d.buf[:0]
	}
	start := len(d.buf)
	b, ok := appendDelete(d.buf, f, d.first+uint32(d.n))
	if !ok {
		d.failures.add(unix.EINVAL, f.String)
		return nil
	}
	d.buf, d.last = b, start
	d.n++
	if d.n == batch {
		return d.flush(ctx)
	}
	return nil
}

// flush sends what was added and reads what came of it. Only the last deletion is acknowledged, and those that failed.
func (d *deleter) flush(ctx context.Context) error {
	if d.n == 0 {
		return nil
	}
	n := d.n
	d.n = 0
	stop := d.conn.watch(ctx)
	defer stop()
	flags := d.buf[d.last+6:]
	binary.NativeEndian.PutUint16(flags, unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	if err := d.conn.send(ctx, d.buf); err != nil {
		return err
	}
	d.batches++
	failed := 0
	for {
		b, err := d.conn.read(ctx)
		if err != nil {
			return err
		}
		for m, rest := nextMessage(b); m.whole; m, rest = nextMessage(rest) {
			i := int(m.seq - d.first)
			if m.typ != unix.NLMSG_ERROR || m.pid != d.conn.nl.PID() || i < 0 || i >= n {
				continue
			}
			switch errno := m.errno(); errno {
			case 0:
			case unix.EPERM, unix.EACCES:
				// The whole batch was refused, in the name of its first.
				return meaning(errno)
			case unix.ENOENT:
				d.gone++
				failed++
			default:
				d.failures.add(errno, func() string { return d.describe(i) })
				failed++
			}
			if i == n-1 {
				d.deleted += n - failed
				return nil
			}
		}
	}
}

// describe says what the i-th deletion of the batch was about.
func (d *deleter) describe(i int) string {
	m, rest := nextMessage(d.buf)
	for ; i > 0; i-- {
		m, rest = nextMessage(rest)
	}
	var t tuple
	for a, rest := nextAttribute(m.data[nfHeaderLen:]); a.whole != nil; a, rest = nextAttribute(rest) {
		if a.typ == ctaTupleReply {
			t.decode(a.data)
		}
	}
	return protocolName(t.proto) + " of " + t.dst.String() + " answered by " + t.src.String()
}
