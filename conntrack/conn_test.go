package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"iter"
	"os"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A fakeKernel answers what a real one is hard to bring to say, over a pair of sockets.
type fakeKernel struct {
	t      testing.TB
	socket *os.File
	conn   *conn
}

const fakePort = 4711

// fileSocket is a netlink.Socket that is used for its descriptor and deadlines alone.
type fileSocket struct{ *os.File }

func (fileSocket) Send(netlink.Message) error                     { return errors.New("not used") }
func (fileSocket) SendMessages([]netlink.Message) error           { return errors.New("not used") }
func (fileSocket) Receive() ([]netlink.Message, error)            { return nil, errors.New("not used") }
func (fileSocket) ReceiveIter() iter.Seq2[netlink.Message, error] { return nil }

func newFakeKernel(t testing.TB, timeout time.Duration) *fakeKernel {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	k := &fakeKernel{t: t, socket: os.NewFile(uintptr(fds[0]), "kernel")}
	k.conn, err = newConn(netlink.NewConn(fileSocket{os.NewFile(uintptr(fds[1]), "process")}, fakePort), timeout)
	require.NoError(t, err)
	t.Cleanup(func() { k.socket.Close(); k.conn.close() })
	return k
}

// request reads one request and returns its sequence number.
func (k *fakeKernel) request() uint32 {
	b := make([]byte, 1<<16)
	require.NoError(k.t, k.socket.SetReadDeadline(time.Now().Add(10*time.Second)))
	n, err := k.socket.Read(b)
	require.NoError(k.t, err)
	require.GreaterOrEqual(k.t, n, nlHeaderLen)
	return binary.NativeEndian.Uint32(b[8:])
}

// say sends messages in one piece.
func (k *fakeKernel) say(msgs ...[]byte) {
	var b []byte
	for _, m := range msgs {
		b = append(b, m...)
	}
	_, err := k.socket.Write(b)
	require.NoError(k.t, err)
}

func nlMessage(typ, flags uint16, seq, pid uint32, data string) []byte {
	b := binary.NativeEndian.AppendUint32(nil, uint32(nlHeaderLen+len(data)))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags)
	b = binary.NativeEndian.AppendUint32(b, seq)
	b = binary.NativeEndian.AppendUint32(b, pid)
	return append(b, data...)
}

// item is a message of a listing, end its end, with an error if errno is not 0.
func item(seq uint32, text string) []byte { return nlMessage(0x100, 0, seq, fakePort, text) }

func end(typ uint16, seq uint32, errno unix.Errno) []byte {
	return nlMessage(typ, 0, seq, fakePort, string(binary.NativeEndian.AppendUint32(nil, uint32(-int32(errno)))))
}

// listen asks once and returns what came, and the error.
func (k *fakeKernel) listen(ctx context.Context) (got []string, err error) {
	err = k.conn.list(ctx, netlink.Message{Data: make([]byte, 4)}, func(msgs [][]byte) error {
		for _, m := range msgs {
			got = append(got, string(m))
		}
		return nil
	})
	return got, err
}

// answer runs script beside the test and waits for its end with it.
func (k *fakeKernel) answer(script func()) {
	done := make(chan struct{})
	go func() { defer close(done); script() }()
	k.t.Cleanup(func() { <-done })
}

func TestConnReadsOneAnswer(t *testing.T) {
	k := newFakeKernel(t, time.Minute)
	k.answer(func() {
		seq := k.request()
		k.say(item(seq, "one."), item(seq+1, "of another request"), nlMessage(0x100, 0, seq, fakePort+1, "of another process"))
		k.say(item(seq, "two."), end(unix.NLMSG_DONE, seq-1, 0))
		k.say([]byte{1, 2, 3}) // nonsense
		k.say(end(unix.NLMSG_DONE, seq, 0))
	})
	got, err := k.listen(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"one.", "two."}, got)
}

func TestConnErrors(t *testing.T) {
	for errno, kind := range map[unix.Errno]error{
		unix.EPERM: model.ErrPermission, unix.EBUSY: model.ErrBusy, unix.ENOBUFS: model.ErrBusy,
		unix.EOPNOTSUPP: model.ErrNotSupported, unix.EINVAL: unix.EINVAL,
	} {
		for _, typ := range []uint16{unix.NLMSG_ERROR, unix.NLMSG_DONE} {
			k := newFakeKernel(t, time.Minute)
			k.answer(func() { seq := k.request(); k.say(end(typ, seq, errno)) })
			_, err := k.listen(t.Context())
			require.ErrorIs(t, err, kind)
			require.ErrorIs(t, err, errno)
		}
	}
}

// TestConnRepeatsInterruptedListings: the kernel says so when the table was resized under a listing.
func TestConnRepeatsInterruptedListings(t *testing.T) {
	k := newFakeKernel(t, time.Minute)
	k.answer(func() {
		seq := k.request()
		k.say(nlMessage(0x100, unix.NLM_F_DUMP_INTR, seq, fakePort, "some"))
		k.say(end(unix.NLMSG_DONE, seq, 0))
		seq = k.request()
		k.say(item(seq, "all."), end(unix.NLMSG_DONE, seq, 0))
	})
	got, err := k.listen(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"some", "all."}, got)
}

func TestConnGivesUpOnInterruptedListings(t *testing.T) {
	k := newFakeKernel(t, time.Minute)
	k.answer(func() {
		for range maxInterrupted {
			seq := k.request()
			k.say(nlMessage(unix.NLMSG_DONE, unix.NLM_F_DUMP_INTR, seq, fakePort, "\x00\x00\x00\x00"))
		}
	})
	_, err := k.listen(t.Context())
	require.ErrorIs(t, err, model.ErrBusy)
}

func TestConnTimesOut(t *testing.T) {
	k := newFakeKernel(t, 10*time.Millisecond)
	_, err := k.listen(t.Context())
	require.ErrorIs(t, err, model.ErrBusy)
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// TestConnGoesOnAfterCancellation: what was left unread of one answer does not become part of the next.
func TestConnGoesOnAfterCancellation(t *testing.T) {
	k := newFakeKernel(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	k.answer(func() {
		first := k.request()
		k.say(item(first, "old."))
		cancel()
		k.say(item(first, "old."))
		k.say(end(unix.NLMSG_DONE, first, 0))
		second := k.request()
		k.say(item(second, "new."), end(unix.NLMSG_DONE, second, 0))
	})
	_, err := k.listen(ctx)
	require.ErrorIs(t, err, context.Canceled)
	got, err := k.listen(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"new."}, got)
}

func TestConnStopsWhenVisitFails(t *testing.T) {
	k := newFakeKernel(t, time.Minute)
	k.answer(func() {
		first := k.request()
		k.say(item(first, "old."))
		k.say(item(first, "old."), end(unix.NLMSG_DONE, first, 0))
		second := k.request()
		k.say(item(second, "new."), end(unix.NLMSG_DONE, second, 0))
	})
	stop := errors.New("enough")
	require.ErrorIs(t, k.conn.ask(t.Context(), netlink.Message{}, func([][]byte) error { return stop }), stop)
	got, err := k.listen(t.Context())
	require.NoError(t, err)
	require.Equal(t, []string{"new."}, got)
}

// TestSequenceNumbersWrap: 0 is nobody's.
func TestSequenceNumbersWrap(t *testing.T) {
	c := &conn{seq: ^uint32(0) - 150}
	require.Equal(t, ^uint32(0)-149, c.next(100))
	first := c.next(100)
	require.Equal(t, uint32(1), first)
	require.Equal(t, uint32(101), c.next(1))
}
