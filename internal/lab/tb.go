package lab

import (
	"net/netip"

	"golang.org/x/sys/unix"
)

// TB is what the wrappers below need of a testing.TB.
type TB interface {
	Helper()
	Cleanup(func())
	Errorf(format string, args ...any)
	Fatalf(format string, args ...any)
	Skipf(format string, args ...any)
}

// NeedRoot skips a test that cannot make network namespaces.
func NeedRoot(t TB) {
	t.Helper()
	if unix.Geteuid() != 0 {
		t.Skipf("needs root, to make network namespaces")
	}
}

// Start is Build for a test: it skips without root, fails the test on an error, and closes the topology
// at the test's end.
func Start(t TB, spec Spec) *Topology {
	t.Helper()
	NeedRoot(t)
	topo, err := Build(spec)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { topo.Close() })
	return topo
}

// StartNetNS is NewNetNS for a test, as Start is Build.
func StartNetNS(t TB, name string) *NetNS {
	t.Helper()
	NeedRoot(t)
	n, err := NewNetNS(name)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { n.Close() })
	return n
}

// Serve is Topology.Serve for a test: the server ends with it.
func Serve(t TB, topo *Topology, p Protocol, at netip.AddrPort) *Server {
	t.Helper()
	s, err := topo.Serve(p, at)
	if err != nil {
		t.Fatalf("%v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
