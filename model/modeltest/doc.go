// Package modeltest tests programs that embed headgate, and backends.
//
// # For programs that embed a Programmer
//
// A [Fake] is a [model.Programmer] without a kernel and without privileges. What it programs is kept in a [Kernel],
// which can be looked into and sent packets through, and be told to fail in the ways in which kernels do: to refuse, to
// hang, to take a transaction and lose the answer, to refuse one service alone. Several Fakes may share a Kernel, so
// that a restart of the program can be tested.
//
//	kernel := modeltest.NewKernel(netip.MustParseAddr("198.51.100.10"))
//	proxy := yourproxy.New(modeltest.NewFake(kernel, modeltest.FakeConfig{}))
//	…
//	kernel.FailNext(3, syscall.ENOBUFS) // does the proxy try again?
//
// # For authors of a backend
//
// A backend is a model.Programmer that passes [Run], in a test of some lines:
//
//	func TestSuite(t *testing.T) {
//		modeltest.Run(t, modeltest.Target{
//			Name: "mine",
//			New: func(tb testing.TB, w modeltest.World) model.Programmer {
//				p, err := mine.New(t.Context(), mine.Config{NetNS: w.NetNS()})
//				require.NoError(tb, err)
//				return p
//			},
//		})
//	}
//
// The suite makes worlds of real packets ([NewLab], which needs root), and goes through all [Scenarios] and all that
// model.Programmer promises. Give it the hooks of [Target] too: what it cannot do without them it skips, and says so.
// [RunVectors] plays a collection of packets with known verdicts on top. The package builds wherever Go does what
// x/sys/unix needs, so that a Fake serves on any developer's machine; the lab is on Linux alone.
//
// Where the backend cannot do what others do, two things are possible. A service that it cannot do at all it refuses,
// with model.ErrNotSupported, for which its FeatureSet is enough. Where it answers otherwise, its FeatureSet names the
// difference: one of the constants Diff…, whose packets the suite then leaves out, or one of its own, which
// [Target.Skip] ties to subtests.
//
// The scenarios also serve as golden rulesets: their names are fit for files, their order and content never change
// from one call to the next. [Big] makes states for benchmarks. [Predict] says what must become of any packet in any
// state; the suite checks random states against it.
//
// That the suite finds mistakes is tested as well: it runs against Fakes with all sorts of faults, and must fail.
package modeltest
