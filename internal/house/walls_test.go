package house

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// A wall keeps packages from what lies behind it, however many imports away.
type wall struct {
	name string
	// from says whom the wall stands before.
	from func(p listed) bool
	// behind reports whether a dependency lies behind it.
	behind func(dep listed) bool
}

func walls() []wall {
	mine := func(paths ...string) func(listed) bool {
		return func(p listed) bool {
			return slices.ContainsFunc(paths, func(path string) bool { return within(p.ImportPath, module+"/"+path) })
		}
	}
	others := func(prefixes ...string) func(listed) bool {
		return func(p listed) bool {
			return slices.ContainsFunc(prefixes, func(prefix string) bool { return within(p.ImportPath, prefix) })
		}
	}
	either := func(a, b func(listed) bool) func(listed) bool {
		return func(p listed) bool { return a(p) || b(p) }
	}
	exactly := func(path string) func(listed) bool {
		return func(p listed) bool { return p.ImportPath == module+"/"+path }
	}
	return []wall{
		{"model stands on the standard library alone", exactly("model"),
			func(p listed) bool { return !p.Standard }},
		{"nftables knows no other backend", exactly("nftables"),
			either(mine("iptables", "ipvs", "conntrack"), others("github.com/moby/ipvs", "github.com/coreos/go-iptables"))},
		{"iptables knows no other backend", exactly("iptables"),
			either(mine("nftables", "ipvs", "conntrack"), others("github.com/moby/ipvs"))},
		{"ipvs knows no other backend", exactly("ipvs"),
			either(mine("nftables", "iptables", "conntrack"), others("github.com/coreos/go-iptables"))},
		{"conntrack knows no backend", exactly("conntrack"),
			either(mine("nftables", "iptables", "ipvs"), others("github.com/moby/ipvs", "github.com/coreos/go-iptables"))},
		{"nodewatch knows no backend", exactly("model/nodewatch"),
			either(mine("nftables", "iptables", "ipvs", "conntrack"), others("github.com/moby/ipvs", "github.com/coreos/go-iptables"))},
		{"libraries do without the test kit", func(p listed) bool {
			return p.library() && !within(p.ImportPath, module+"/internal") && !within(p.ImportPath, module+"/model/modeltest")
		}, either(mine("internal/lab", "internal/vmtest", "internal/bench", "internal/house", "model/modeltest", "examples"),
			others("testing", "github.com/stretchr/testify"))},
		{"orchestrators and stores stay in nested modules", func(listed) bool { return true },
			others("k8s.io", "sigs.k8s.io", "go.etcd.io", "github.com/prometheus", "github.com/hashicorp/consul", "github.com/docker")},
	}
}

// within reports whether an import path is prefix or below it.
func within(path, prefix string) bool {
	return path == prefix || strings.HasPrefix(path, prefix+"/")
}

// breaches returns a finding for each package of own that reaches behind the wall.
func (w wall) breaches(own []listed, all map[string]listed) []string {
	var found []string
	for _, p := range own {
		if !w.from(p) {
			continue
		}
		for _, dep := range p.Deps {
			if d, ok := all[dep]; ok && w.behind(d) {
				found = append(found, fmt.Sprintf("%s imports %s", p.ImportPath, d.ImportPath))
			}
		}
	}
	return found
}

func TestImportWalls(t *testing.T) {
	all, err := packages()
	require.NoError(t, err)
	own := ours(t)
	for _, w := range walls() {
		report(t, w.name, w.breaches(own, all))
	}
}

func TestImportWallsStopSomebody(t *testing.T) {
	lib := func(path string, deps ...string) listed {
		p := listed{ImportPath: path, Name: "p", Deps: deps}
		p.Module = &struct {
			Path string
			Main bool
		}{module, true}
		return p
	}
	for _, sample := range []struct{ wall, from, to string }{
		{"model stands on the standard library alone", module + "/model", "golang.org/x/sys/unix"},
		{"model stands on the standard library alone", module + "/model", module + "/internal/lab"},
		{"nftables knows no other backend", module + "/nftables", "github.com/moby/ipvs"},
		{"nftables knows no other backend", module + "/nftables", module + "/ipvs"},
		{"iptables knows no other backend", module + "/iptables", module + "/nftables"},
		{"ipvs knows no other backend", module + "/ipvs", module + "/nftables"},
		{"conntrack knows no backend", module + "/conntrack", module + "/nftables"},
		{"nodewatch knows no backend", module + "/model/nodewatch", module + "/nftables"},
		{"libraries do without the test kit", module + "/nftables", module + "/internal/lab"},
		{"libraries do without the test kit", module + "/model", "testing"},
		{"orchestrators and stores stay in nested modules", module + "/internal/bench", "k8s.io/api/core/v1"},
	} {
		own := []listed{lib(sample.from, sample.to), lib(module + "/elsewhere")}
		all := map[string]listed{sample.to: {ImportPath: sample.to}}
		i := slices.IndexFunc(walls(), func(w wall) bool { return w.name == sample.wall })
		require.NotEqual(t, -1, i, sample.wall)
		require.Equal(t, []string{sample.from + " imports " + sample.to}, walls()[i].breaches(own, all))
	}
}
