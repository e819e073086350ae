package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sync"
)

// Kind says what a frame carries.
type Kind byte

const (
	Start  Kind = 'S' // a task begins: its index, as JSON
	Stdout Kind = 'o' // bytes that the task wrote
	Stderr Kind = 'e' // bytes that the task wrote to its standard error, unless merged
	Exit   Kind = 'X' // the task ended: a Result, as JSON
	Note   Kind = 'N' // a remark of the guest itself, one line of text
	Done   Kind = 'D' // every task was run; nothing follows
)

// greeting precedes the first frame. The serial driver's probing may leave a
// few bytes on the line before it, which the reader passes over.
const greeting = "\nheadgate guest 1 "

// maxPayload bounds a frame; a longer one is taken for noise on the line.
const maxPayload = 64 << 10

// ErrNoGreeting reports that the line ended before the guest said anything.
var ErrNoGreeting = errors.New("the guest never spoke")

// A Writer sends frames. It is safe for concurrent use: frames never mix.
type Writer struct {
	mu sync.Mutex // guards w
	w  io.Writer
}

// NewWriter greets the host with the kernel's release, as in uname -r, and
// returns a Writer for the frames to follow.
func NewWriter(w io.Writer, release string) (*Writer, error) {
	_, err := io.WriteString(w, greeting+release+"\n")
	return &Writer{w: w}, err
}

// Send writes p as one frame, or as several if it is long.
func (w *Writer) Send(kind Kind, p []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	for first := true; first || len(p) > 0; first = false {
		chunk := p[:min(len(p), maxPayload)]
		p = p[len(chunk):]
		frame := binary.BigEndian.AppendUint32([]byte{byte(kind)}, uint32(len(chunk)))
		if _, err := w.w.Write(append(frame, chunk...)); err != nil {
			return err
		}
	}
	return nil
}

// SendJSON writes v as one frame.
func (w *Writer) SendJSON(kind Kind, v any) error {
	p, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return w.Send(kind, p)
}

// Stream returns an io.Writer each of whose writes becomes a frame.
func (w *Writer) Stream(kind Kind) io.Writer { return stream{w, kind} }

type stream struct {
	w    *Writer
	kind Kind
}

func (s stream) Write(p []byte) (int, error) {
	if err := s.w.Send(s.kind, p); err != nil {
		return 0, err
	}
	return len(p), nil
}

// A Reader takes frames from the line.
type Reader struct{ r *bufio.Reader }

// NewReader waits for the guest's greeting and returns it, the kernel's
// release, with a Reader for the frames that follow. The error is
// ErrNoGreeting if the line ended first.
func NewReader(r io.Reader) (*Reader, string, error) {
	br := bufio.NewReaderSize(r, maxPayload)
	if err := skipPast(br, []byte(greeting)); err != nil {
		return nil, "", ErrNoGreeting
	}
	release, err := br.ReadString('\n')
	if err != nil {
		return nil, "", ErrNoGreeting
	}
	return &Reader{br}, release[:len(release)-1], nil
}

// skipPast reads until mark has gone by.
func skipPast(r *bufio.Reader, mark []byte) error {
	var last []byte
	for !bytes.Equal(last, mark) {
		b, err := r.ReadByte()
		if err != nil {
			return err
		}
		if last = append(last, b); len(last) > len(mark) {
			last = last[1:]
		}
	}
	return nil
}

// Next returns the next frame. The error is io.EOF if the line ended between
// two frames and io.ErrUnexpectedEOF if it ended inside one.
func (r *Reader) Next() (Kind, []byte, error) {
	var head [5]byte
	if _, err := io.ReadFull(r.r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, size := Kind(head[0]), binary.BigEndian.Uint32(head[1:])
	if !bytes.ContainsRune([]byte("SoeXND"), rune(kind)) || size > maxPayload {
		return 0, nil, fmt.Errorf("not a frame of the guest: % x", head)
	}
	payload := make([]byte, size)
	if _, err := io.ReadFull(r.r, payload); err != nil {
		return 0, nil, io.ErrUnexpectedEOF
	}
	return kind, payload, nil
}
