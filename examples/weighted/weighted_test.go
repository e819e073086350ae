package main

import (
	"os"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

// numbers returns the numbers in the only line that matches.
func numbers(t *testing.T, out, pattern string) []int {
	t.Helper()
	found := regexp.MustCompile(pattern).FindAllStringSubmatch(out, -1)
	require.Len(t, found, 1, "%s in\n%s", pattern, out)
	var all []int
	for _, text := range found[0][1:] {
		n, err := strconv.Atoi(text)
		require.NoError(t, err)
		all = append(all, n)
	}
	return all
}

func TestWeighted(t *testing.T) {
	lab.NeedRoot(t)
	out := exampletest.Succeed(t)

	// Seven standard deviations either way.
	for _, stage := range []struct{ percent, least, most int }{{0, 0, 0}, {10, 34, 166}, {50, 390, 610}, {100, 1000, 1000}} {
		n := numbers(t, out, `canary at +`+strconv.Itoa(stage.percent)+` %: of (\d+) connections, stable took (\d+), canary (\d+), (\d+) failed`)
		require.Equal(t, 1000, n[0])
		require.Equal(t, 1000, n[1]+n[2])
		require.GreaterOrEqual(t, n[2], stage.least, out)
		require.LessOrEqual(t, n[2], stage.most, out)
		require.Zero(t, n[3])
	}
	require.Contains(t, out, "opened before the roll-out: answered by stable\n")

	require.Equal(t, []int{200, 200}, numbers(t, out, `on two nodes: (\d+) of (\d+) clients get the same server from both\n`))
	others := numbers(t, out, `of the (\d+) clients of the others, (\d+) stay`)
	require.Greater(t, others[0], 100, "an even share of four of five servers is 160")
	require.Greater(t, others[1], others[0]*4/5, "a hash that is taken modulo the number of servers moves three of four")
	require.Equal(t, []int{200, 200}, numbers(t, out, `without it: (\d+) of (\d+) clients get the same server from both\n`))
}

func TestUnprivilegedUserIsToldWhatToDo(t *testing.T) {
	exampletest.TellWhatIsMissing(t, "./examples/weighted")
}
