package wire

import (
	"bytes"
	"encoding/json"
	"io"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestFramesArriveAsSent(t *testing.T) {
	var line bytes.Buffer
	line.WriteString("\xff\nheadgate noise of the serial driver\n")
	w, err := NewWriter(&line, "6.1.0-57-cloud-amd64")
	require.NoError(t, err)
	require.NoError(t, w.SendJSON(Start, 3))
	_, err = w.Stream(Stdout).Write([]byte("raw \x00\r\n\x04 bytes"))
	require.NoError(t, err)
	require.NoError(t, w.Send(Note, nil))
	want := Result{Task: 3, Code: -1, Reason: "signal: killed", Elapsed: 7}
	require.NoError(t, w.SendJSON(Exit, want))
	require.NoError(t, w.Send(Done, nil))

	r, release, err := NewReader(&line)
	require.NoError(t, err)
	require.Equal(t, "6.1.0-57-cloud-amd64", release)
	requireFrame(t, r, Start, "3")
	requireFrame(t, r, Stdout, "raw \x00\r\n\x04 bytes")
	requireFrame(t, r, Note, "")
	kind, p, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, Exit, kind)
	var got Result
	require.NoError(t, json.Unmarshal(p, &got))
	require.Equal(t, want, got)
	requireFrame(t, r, Done, "")
	_, _, err = r.Next()
	require.ErrorIs(t, err, io.EOF)
}

func TestLongOutputIsSplit(t *testing.T) {
	var line bytes.Buffer
	w, err := NewWriter(&line, "x")
	require.NoError(t, err)
	long := strings.Repeat("0123456789", maxPayload/4)
	require.NoError(t, w.Send(Stdout, []byte(long)))
	r, _, err := NewReader(&line)
	require.NoError(t, err)
	var got strings.Builder
	for {
		kind, p, err := r.Next()
		if err == io.EOF {
			break
		}
		require.NoError(t, err)
		require.Equal(t, Stdout, kind)
		got.Write(p)
	}
	require.Equal(t, long, got.String())
}

func TestConcurrentFramesDoNotMix(t *testing.T) {
	var line bytes.Buffer
	w, err := NewWriter(&line, "x")
	require.NoError(t, err)
	var wg sync.WaitGroup
	for _, kind := range []Kind{Stdout, Stderr} {
		wg.Go(func() {
			for range 200 {
				_, _ = w.Stream(kind).Write(bytes.Repeat([]byte{byte(kind)}, 100))
			}
		})
	}
	wg.Wait()
	r, _, err := NewReader(&line)
	require.NoError(t, err)
	for range 400 {
		kind, p, err := r.Next()
		require.NoError(t, err)
		require.Equal(t, strings.Repeat(string(rune(kind)), 100), string(p))
	}
}

func TestBrokenLines(t *testing.T) {
	hello := greeting + "x\n"
	for name, c := range map[string]struct {
		line string
		want error
	}{
		"nothing":             {"", ErrNoGreeting},
		"only noise":          {"\nheadgate gues", ErrNoGreeting},
		"half a greeting":     {greeting + "6.1", ErrNoGreeting},
		"ends between frames": {hello, io.EOF},
		"ends in a header":    {hello + "o\x00", io.ErrUnexpectedEOF},
		"ends in a payload":   {hello + "o\x00\x00\x00\x05abc", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			r, _, err := NewReader(strings.NewReader(c.line))
			if err == nil {
				_, _, err = r.Next()
			}
			require.ErrorIs(t, err, c.want)
		})
	}
	for name, frame := range map[string]string{
		"unknown kind":  "?\x00\x00\x00\x00",
		"absurd length": "o\x7f\x00\x00\x00",
	} {
		t.Run(name, func(t *testing.T) {
			r, _, err := NewReader(strings.NewReader(hello + frame))
			require.NoError(t, err)
			_, _, err = r.Next()
			require.ErrorContains(t, err, "not a frame of the guest")
		})
	}
}

func requireFrame(t *testing.T, r *Reader, kind Kind, payload string) {
	t.Helper()
	k, p, err := r.Next()
	require.NoError(t, err)
	require.Equal(t, string(rune(kind)), string(rune(k)))
	require.Equal(t, payload, string(p))
}

func FuzzReader(f *testing.F) {
	f.Add([]byte(greeting + "x\no\x00\x00\x00\x01a"))
	f.Fuzz(func(t *testing.T, line []byte) {
		r, _, err := NewReader(bytes.NewReader(line))
		for err == nil {
			var p []byte
			if _, p, err = r.Next(); len(p) > maxPayload {
				t.Fatalf("payload of %d bytes", len(p))
			}
		}
	})
}
