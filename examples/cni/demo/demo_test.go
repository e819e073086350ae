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
	require.Regexp(t, `alpha has 10\.88\.0\.\d+; somebody outside asks 192\.0\.2\.1:8081: answered by alpha, who sees 203\.0\.113\.7`, out)
	require.Regexp(t, `(?s)60 connections to 10\.96\.0\.10:80: alpha \d+ beta \d+ gamma \d+, failed 0`+
		`.*CHECK: .*drifted.*STATUS: .*after a GC.*alpha \d+ beta \d+ gamma \d+, failed 0`+
		`.*DEL: alpha goes\n  60 connections to 10\.96\.0\.10:80: beta \d+ gamma \d+, failed 0`+
		`.*only gamma is valid\n  60 connections to 10\.96\.0\.10:80: gamma 60, failed 0`+
		`.*"container":"gamma"`, out)
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) {
	exampletest.TellWhatIsMissing(t, "./demo")
}
