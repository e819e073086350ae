package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestEventsAreReadAndShown(t *testing.T) {
	var out strings.Builder
	e := newEvents(&out, "host")
	feed(t, e, `{"Action":"start","Package":"m/a"}
{"Action":"run","Package":"m/a","Test":"TestGood"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"=== RUN   TestGood\n"}
{"Action":"output","Package":"m/a","Test":"TestGood","Output":"    a_test.go:3: not to be shown\n"}
{"Action":"pass","Package":"m/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"m/a","Test":"TestLater","Output":"    a_test.go:7: no module ip_vs\n"}
{"Action":"output","Package":"m/a","Test":"TestLater","Output":"--- SKIP: TestLater (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestLater","Elapsed":0}
{"Action":"pass","Package":"m/a","Elapsed":1.25}
{"Action":"output","Package":"m/b","Test":"TestBad/sub","Output":"    b_test.go:9: because\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad/sub"}
{"Action":"output","Package":"m/b","Output":"exit status 1\n"}
{"Action":"fail","Package":"m/b","Elapsed":2}
{"Action":"skip","Package":"m/c","Elapsed":0}
{"ImportPath":"m/d","Action":"build-output","Output":"d.go:1: syntax error\n"}
not an event
`)
	require.Equal(t, []result{
		{place: "host", pkg: "m/a", test: "TestGood"},
		{place: "host", pkg: "m/a", test: "TestLater", status: skipped, reason: "no module ip_vs"},
		{place: "host", pkg: "m/b", test: "TestBad/sub", status: failed},
	}, e.finish())
	require.Equal(t, `ok  	m/a	1.2s	1 passed, 1 skipped
    b_test.go:9: because
exit status 1
FAIL	m/b	2.0s
?   	m/c	[no tests]
d.go:1: syntax error
not an event
`, out.String())
}

func TestVerboseOutputIsReadAndShown(t *testing.T) {
	var out strings.Builder
	v := newVerbose(&out, "kernel 6.1")
	feed(t, v, `vmtest: 6.1.0-37 is up after 5s
vmtest: running m/a
=== RUN   TestGood
--- PASS: TestGood (0.00s)
=== RUN   TestLater
    a_test.go:7: no module dummy
--- SKIP: TestLater (0.00s)
=== RUN   TestBad
=== RUN   TestBad/sub
    a_test.go:9: because
    --- FAIL: TestBad/sub (0.00s)
--- FAIL: TestBad (0.00s)
FAIL
vmtest: running m/b
--- PASS: TestGood (0.00s)
ok  	m/b`) // no newline: the end is read too
	require.Equal(t, []result{
		{place: "kernel 6.1", pkg: "m/a", test: "TestGood"},
		{place: "kernel 6.1", pkg: "m/a", test: "TestLater", status: skipped, reason: "no module dummy"},
		{place: "kernel 6.1", pkg: "m/a", test: "TestBad/sub", status: failed},
		{place: "kernel 6.1", pkg: "m/a", test: "TestBad", status: failed},
		{place: "kernel 6.1", pkg: "m/b", test: "TestGood"},
	}, v.finish())
	require.Equal(t, `vmtest: 6.1.0-37 is up after 5s
vmtest: running m/a
    a_test.go:7: no module dummy
--- SKIP: TestLater (0.00s)
    a_test.go:9: because
    --- FAIL: TestBad/sub (0.00s)
--- FAIL: TestBad (0.00s)
FAIL
vmtest: running m/b
ok  	m/b
`, out.String())
}

// feed writes a text in pieces that know nothing of lines.
func feed(t *testing.T, r reader, text string) {
	t.Helper()
	for len(text) > 0 {
		n := min(7, len(text))
		_, err := r.Write([]byte(text[:n]))
		require.NoError(t, err)
		text = text[n:]
	}
}
