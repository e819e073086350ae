package main

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

func TestDemo(t *testing.T) {
	lab.NeedRoot(t)
	out := exampletest.Succeed(t)
	for _, want := range []string{"NO GOOD NOW: near line 7", "shop/web  faulty", "balanced: random over 2 of 3 endpoints", "msg=removed backend=nftables"} {
		require.Contains(t, out, want)
	}
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) { exampletest.TellWhatIsMissing(t, "./demo") }
