package main

import (
	"flag"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestDefaults(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", "/cache")
	c, err := parseArgs([]string{"./a", "./b/..."}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"./a", "./b/..."}, c.packages)
	require.Equal(t, kernelSources[:1], c.kernels)
	require.Equal(t, 15*time.Minute, c.timeout)
	require.Equal(t, "/cache/headgate-vmtest", c.cache)
	require.Equal(t, []string{"-test.v=test2json"}, c.testArgs)
	require.Contains(t, c.modules, "ip_vs")
	require.False(t, c.verbose)
}

func TestFlags(t *testing.T) {
	c, err := parseArgs([]string{"-kernel", "7,6.12", "-run", "A|B", "-args", "-test.short  -test.count=2",
		"-modules", "a b", "-env", "K=a b", "-env", "L=", "-timeout", "1h", "-v", "-cache", "/c", "./a"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []kernelSource{kernelSources[2], kernelSources[1]}, c.kernels)
	require.Equal(t, []string{"-test.v=test2json", "-test.run=A|B", "-test.short", "-test.count=2"}, c.testArgs)
	require.Equal(t, []string{"a", "b"}, c.modules)
	require.Equal(t, []string{"K=a b", "L="}, c.env)
	require.Equal(t, time.Hour, c.timeout)
	require.True(t, c.verbose)
	require.Equal(t, "/c", c.cache)

	c, err = parseArgs([]string{"-program", "./bench", "--", "-backend", "ipvs"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, "./bench", c.program)
	require.Equal(t, []string{"-backend", "ipvs"}, c.programArgs)
	require.Empty(t, c.packages)

	c, err = parseArgs([]string{"-prepare", "-kernel", "all"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, kernelSources, c.kernels)
}

func TestBadCommandLines(t *testing.T) {
	for args, want := range map[string]string{
		"":                            "no packages given",
		"-kernel 5.10 ./a":            `no kernel "5.10"; there are 6.1, 6.12, 7`,
		"-kernel , ./a":               `no kernel ""`,
		"-mem 100 ./a":                "needs 256 MB",
		"-cpus 0 ./a":                 "-cpus 0",
		"-timeout 0s ./a":             "-timeout 0s",
		"-env K ./a":                  "no = in it",
		"-program ./p -kernel 6.1,7":  "one kernel at a time",
		"-program ./p -nonsense ./a":  "not defined: -nonsense",
		"-kernel 6.1 -nonsense=1 ./a": "not defined: -nonsense",
	} {
		t.Run(args, func(t *testing.T) {
			_, err := parseArgs(strings.Fields(args), io.Discard)
			require.ErrorContains(t, err, want)
		})
	}
	var help strings.Builder
	_, err := parseArgs([]string{"-h"}, &help)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, help.String(), "usage: go run ./internal/vmtest")
}
