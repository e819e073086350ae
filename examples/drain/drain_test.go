package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

func TestDrain(t *testing.T) {
	lab.NeedRoot(t)
	require.Regexp(t, `^the connection is served by old, the UDP flow by old

old drains: of 100 new connections, new takes 100
  the connection: served by old
  the UDP flow: served by old

the connection has ended: old goes
  the UDP flow: served by old
  remembered: 203\.0\.113\.7:\d+ -> 10\.0\.1\.1:5353, stale: true

forgotten flows: 1
  the UDP flow: served by new
$`, exampletest.Succeed(t))
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) {
	exampletest.TellWhatIsMissing(t, "./examples/drain")
}
