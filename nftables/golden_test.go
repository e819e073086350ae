package nftables_test

import (
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/headgate/headgate/nftables"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// Every scenario's ruleset, as the stock tool prints it, is the one in testdata; and the stock tool loads what it
// printed, beside the live tables and into an empty namespace.
func TestGolden(t *testing.T) {
	lab.NeedRoot(t)
	frame := golden(t, model.State{Node: modeltest.StageNode()})
	compare(t, "frame", frame)
	for _, sc := range modeltest.Scenarios() {
		t.Run(sc.Name, func(t *testing.T) {
			compare(t, sc.Name, without(golden(t, sc.State), frame))
		})
	}
}

// golden programs a state and returns what nft prints of it, elements sorted.
func golden(t *testing.T, state model.State) string {
	ns := lab.StartNetNS(t, "golden")
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: ns.FD()})
	require.NoError(t, err)
	defer p.Close()
	_, err = p.Sync(context.Background(), state)
	require.NoError(t, err)
	listed, err := run(ns.FD(), "", "nft", "-s", "list", "ruleset")
	require.NoError(t, err)
	for where, fd := range map[string]int{"beside the live tables": ns.FD(), "into an empty namespace": lab.StartNetNS(t, "empty").FD()} {
		_, err = run(fd, listed, "nft", "-c", "-f", "-")
		require.NoError(t, err, "loading what was listed %s", where)
	}
	_, err = run(ns.FD(), "", "nft", "-j", "list", "ruleset")
	require.NoError(t, err)
	return sorted(listed)
}

var elementList = regexp.MustCompile(`(?s)elements = \{ (.*?) \}\n`)

// sorted sorts the elements of each set, one to a line; of very many, it shows the first.
func sorted(ruleset string) string {
	return elementList.ReplaceAllStringFunc(ruleset, func(list string) string {
		const show = 40
		elements := regexp.MustCompile(`,\s+`).Split(elementList.FindStringSubmatch(list)[1], -1)
		slices.Sort(elements)
		if n := len(elements); n > show {
			elements = append(elements[:show], fmt.Sprintf("# and %d more", n-show))
		}
		return "elements = {\n\t\t\t" + strings.Join(elements, ",\n\t\t\t") + "\n\t\t}\n"
	})
}

var block = regexp.MustCompile(`(?ms)^\t(?:chain|set|map) .*?^\t\}\n`)

// without leaves out the blocks that every table has, so that a golden file shows what its scenario is about.
func without(ruleset, frame string) string {
	common := map[string]bool{}
	for _, table := range strings.SplitAfter(frame, "\n}\n") {
		for _, b := range block.FindAllString(table, -1) {
			common[table[:min(len(table), 10)]+b] = true
		}
	}
	var out strings.Builder
	for _, table := range strings.SplitAfter(ruleset, "\n}\n") {
		out.WriteString(block.ReplaceAllStringFunc(table, func(b string) string {
			if common[table[:min(len(table), 10)]+b] {
				return ""
			}
			return b
		}))
	}
	return regexp.MustCompile(`\n{2,}`).ReplaceAllString(out.String(), "\n")
}

func compare(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name+".nft")
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got)
}
