package modeltest_test

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/stretchr/testify/require"
)

// faultVariable names a fault to the process that runs the suite against it.
const faultVariable = "HEADGATE_TEST_FAULT"

// A fault is a way to get a Programmer wrong.
type fault struct {
	// in is the part of the suite that finds it.
	in   string
	make func(*modeltest.Target)
}

// A suite that passes proves nothing unless it fails where something is wrong: each fault is run in a process of its
// own, in which the suite must fail.
func TestTheSuiteFindsFaults(t *testing.T) {
	for _, name := range slices.Sorted(maps.Keys(faults)) {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFakePassesTheSuite$/^"+strings.ReplaceAll(faults[name].in, "/", "$/^")+"$", "-test.failfast", "-test.timeout=5m")
			cmd.Env = append(os.Environ(), faultVariable+"="+name)
			out, err := cmd.CombinedOutput()
			var exit *exec.ExitError
			require.True(t, err == nil || errors.As(err, &exit), "%v", err)
			require.Error(t, err, "the suite passes all the same:\n%s", out)
			require.Contains(t, string(out), "--- FAIL: TestFakePassesTheSuite/"+strings.Split(faults[name].in, "/")[0], "it fails for another reason")
			require.NotContains(t, string(out), "panic:")
		})
	}
}

// targetUnderTest is the Fake, with a fault if this process was asked for one.
func targetUnderTest(t *testing.T) modeltest.Target {
	target := modeltest.FakeTarget()
	if name := os.Getenv(faultVariable); name != "" {
		require.Contains(t, faults, name)
		faults[name].make(&target)
	}
	return target
}

var faults = map[string]fault{
	// Parts of a state that a backend might forget.
	"ranges-ignored": {"scenarios", services(func(s *model.Service) {
		for i := range s.Frontends {
			s.Frontends[i].SourceRanges = nil
		}
	})},
	"affinity-ignored":        {"scenarios", services(func(s *model.Service) { s.Affinity = 0 })},
	"external-policy-ignored": {"scenarios", services(func(s *model.Service) { s.ExternalTraffic = model.Cluster })},
	"internal-policy-ignored": {"scenarios", services(func(s *model.Service) { s.InternalTraffic = model.Cluster })},
	"hash-ignored": {"scenarios", services(func(s *model.Service) {
		if s.Balance > model.LeastConn {
			s.Balance = model.Random
		}
	})},
	"turns-ignored":     {"balance", services(func(s *model.Service) { s.Balance = model.Random })},
	"maglev-is-a-hash":  {"balance", services(func(s *model.Service) { s.Balance = min(s.Balance, model.SourceHash) })},
	"hash-port-ignored": {"balance", services(func(s *model.Service) { s.HashPort = false })},
	"ipv6-forgotten": {"scenarios", services(func(s *model.Service) {
		s.Frontends = slices.DeleteFunc(s.Frontends, func(f model.Frontend) bool { return f.Addr.Addr().Is6() })
	})},
	"node-ports-forgotten": {"scenarios", services(func(s *model.Service) {
		s.Frontends = slices.DeleteFunc(s.Frontends, func(f model.Frontend) bool { return f.Kind == model.NodePort })
	})},
	"draining-is-ready":      {"scenarios", endpoints(func(e *model.Endpoint) { e.State &^= model.Draining })},
	"draining-is-not-ready":  {"scenarios", endpoints(func(e *model.Endpoint) { e.State = min(e.State*2, model.NotReady) })},
	"not-ready-drains":       {"scenarios", endpoints(func(e *model.Endpoint) { e.State = min(e.State, model.Draining) })},
	"weights-ignored":        {"balance", endpoints(func(e *model.Endpoint) { e.Weight = 1 })},
	"zones-ignored":          {"scenarios", endpoints(func(e *model.Endpoint) { e.Zones = nil })},
	"node-hints-ignored":     {"scenarios", endpoints(func(e *model.Endpoint) { e.Nodes = nil })},
	"all-are-local":          {"scenarios", endpoints(func(e *model.Endpoint) { e.Local = true })},
	"masquerade-all-ignored": {"scenarios", node(func(n *model.Node) { n.MasqueradeAll = false })},
	"keep-ignored":           {"scenarios", node(func(n *model.Node) { n.KeepClientAddress = false })},
	"detector-ignored":       {"scenarios", node(func(n *model.Node) { n.Detector = model.LocalDetector{} })},
	"interfaces-ignored":     {"scenarios", node(func(n *model.Node) { n.Detector.Interfaces = nil })},
	"scope-ignored":          {"scenarios", node(func(n *model.Node) { n.NodePorts = model.NodePortScope{} })},
	"loopback-ignored":       {"scenarios", node(func(n *model.Node) { n.NodePorts.Loopback = false })},
	"service-ranges-ignored": {"scenarios", node(func(n *model.Node) { n.ServiceRanges = nil })},
	"primary-ignored":        {"scenarios", node(func(n *model.Node) { n.Primary = nil })},

	// Ways to mislead the person on call.
	"explains-before-sync":     {"explain", explains(func(*model.Explanation, error) error { return nil })},
	"explains-another-service": {"explain", explains(func(e *model.Explanation, err error) error { e.Service += "x"; return err })},
	"explains-no-way":          {"explain", explains(func(e *model.Explanation, err error) error { e.Path = nil; return err })},
	"explains-too-few-endpoints": {"scenarios", explains(func(e *model.Explanation, err error) error {
		e.Endpoints = e.Endpoints[:min(len(e.Endpoints), 1)]
		return err
	})},
	"explains-that-all-is-well": {"scenarios", explains(func(e *model.Explanation, err error) error {
		e.Fate = max(e.Fate, model.FateDropped)
		return err
	})},

	// Parts of the contract.
	"apply-needs-no-sync": {"contract", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			res, err := p.Programmer.Apply(ctx, d)
			if errors.Is(err, model.ErrNotSynced) {
				err = nil
			}
			return res, err
		}
	})},
	"apply-ignores-node": {"node", applying(func(d *model.Diff) { d.Node = nil })},
	"apply-ignores-deletes": {"change", applying(func(d *model.Diff) {
		d.Changes = slices.DeleteFunc(slices.Clone(d.Changes), func(c model.Change) bool { return c.After == nil })
	})},
	"apply-loses-the-last": {"change", applying(func(d *model.Diff) { d.Changes = d.Changes[:min(len(d.Changes), 1)] })},
	"apply-forgets-the-service": {"change/every-field-of-a-service", applying(func(d *model.Diff) {
		d.Changes = slices.Clone(d.Changes)
		for i, c := range d.Changes {
			if c.Before != nil && c.After != nil {
				d.Changes[i].After = &model.Entry{Service: c.Before.Service, Endpoints: c.After.Endpoints}
			}
		}
	})},
	"apply-trusts-before": {"contract", applying(func(d *model.Diff) {
		d.Changes = slices.DeleteFunc(slices.Clone(d.Changes), func(c model.Change) bool { return c.Before == nil && c.After == nil })
	})},
	"apply-costs-more-with-more": {"cost", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			res, err := p.Programmer.Apply(ctx, d)
			res.Changed += len(p.Programmer.(*modeltest.Fake).Programmed())
			return res, err
		}
	})},
	"apply-writes-nothing-but-says-so": {"contract", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			res, err := p.Programmer.Apply(ctx, d)
			res.Transactions++
			return res, err
		}
	})},
	"context-ignored": {"contract", wrap(func(p *wrapped) {
		p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
			return p.Programmer.Sync(context.WithoutCancel(ctx), s)
		}
	})},
	"context-ignored-by-apply": {"contract", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			return p.Programmer.Apply(context.WithoutCancel(ctx), d)
		}
	})},
	"inputs-are-kept": {"contract", wrap(func(p *wrapped) {
		var kept model.State
		p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
			kept = s
			return p.Programmer.Sync(ctx, s)
		}
		p.check = func(ctx context.Context) error {
			_, err := p.Programmer.Sync(ctx, kept)
			return errors.Join(err, p.Programmer.Check(ctx))
		}
	})},
	"one-fails-all": {"fault", wrap(func(p *wrapped) {
		p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
			res, err := p.Programmer.Sync(ctx, s)
			return res, errors.Join(err, res.Err())
		}
	})},
	"rejected-in-silence": {"fault", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			res, err := p.Programmer.Apply(ctx, d)
			res.Rejected = nil
			return res, err
		}
	})},
	"bad-services-vanish": {"fault", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			var bad model.Diff
			for _, c := range d.Changes {
				if c.After != nil && c.After.Service.Protocol > model.SCTP {
					bad.Changes = append(bad.Changes, model.Change{Name: c.Name})
				}
			}
			_, err := p.Programmer.Apply(ctx, bad)
			res, err2 := p.Programmer.Apply(ctx, d)
			return res, errors.Join(err, err2)
		}
	})},
	"promoted-in-silence": {"fault", wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			res, err := p.Programmer.Apply(ctx, d)
			res.Promoted = nil
			return res, err
		}
	})},
	"check-sees-nothing":   {"fault/damage", wrap(func(p *wrapped) { p.check = func(context.Context) error { return nil } })},
	"check-sees-everybody": {"life", wrap(func(p *wrapped) { p.check = p.suspicious() })},
	"probe-writes": {"contract", wrap(func(p *wrapped) {
		p.probe = func(ctx context.Context) (model.Report, error) {
			p.kernel.Put("headgate", "probe", "was here")
			return p.Programmer.Probe(ctx)
		}
	})},
	"cleanup-leaves-all": {"life", wrap(func(p *wrapped) { p.cleanup = func(context.Context) error { return nil } })},
	"cleanup-takes-all": {"life", wrap(func(p *wrapped) {
		p.cleanup = func(ctx context.Context) error { p.kernel.Flush(); return p.Programmer.Cleanup(ctx) }
	})},
	"cleanup-takes-others-too": {"life", wrap(func(p *wrapped) {
		p.cleanup = func(ctx context.Context) error { p.kernel.Flush("theirs"); return p.Programmer.Cleanup(ctx) }
	})},
	"close-removes":  {"contract", wrap(func(p *wrapped) { p.close = func() error { p.kernel.Flush("headgate"); return p.Programmer.Close() } })},
	"close-is-open":  {"contract", wrap(func(p *wrapped) { p.close = func() error { return nil } })},
	"sync-adds-only": {"life", wrap(func(p *wrapped) { p.sync = p.adding() })},
	"restart-empties": {"life", func(target *modeltest.Target) {
		make := target.New
		target.New = func(tb testing.TB, w modeltest.World) model.Programmer {
			w.(*modeltest.FakeWorld).Flush("headgate")
			return make(tb, w)
		}
	}},
	"sync-starts-anew": {"affinity", wrap(func(p *wrapped) {
		p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
			p.kernel.Flush("headgate")
			return p.Programmer.Sync(ctx, s)
		}
	})},

	// What may become of a packet in rules that are nearly right.
	"hairpin-not-masqueraded": {"scenarios", outcomes(func(p modeltest.Packet, o *modeltest.Outcome) {
		if o.Endpoint.Addr() == p.From {
			o.Source = p.From
		}
	})},
	"nobody-masqueraded": {"scenarios", outcomes(func(p modeltest.Packet, o *modeltest.Outcome) { o.Source = p.From })},
	"everybody-masqueraded": {"scenarios", outcomes(func(_ modeltest.Packet, o *modeltest.Outcome) {
		o.Source = modeltest.StageNode().Addrs[0]
	})},
	"dropped-for-refused": {"scenarios", turned(modeltest.Refused, modeltest.Dropped)},
	"refused-for-dropped": {"scenarios", turned(modeltest.Dropped, modeltest.Refused)},
	"untouched-refused":   {"scenarios", turned(modeltest.Untouched, modeltest.Refused)},
	"one-endpoint-missed": {"scenarios", outcomes(func(_ modeltest.Packet, o *modeltest.Outcome) {
		if o.Endpoint == netip.MustParseAddrPort("10.128.2.31:8080") {
			o.Endpoint = netip.MustParseAddrPort("10.128.1.21:9090")
		}
	})},
	"other-ports-of-an-address": {"scenarios", outcomes(func(p modeltest.Packet, o *modeltest.Outcome) {
		if p.To == netip.MustParseAddrPort("172.20.0.10:81") {
			o.Verdict = modeltest.Untouched
		}
	})},
	"pings-of-an-address": {"scenarios", outcomes(func(p modeltest.Packet, o *modeltest.Outcome) {
		if p.ICMP {
			o.Verdict = modeltest.Untouched
		}
	})},
	"connection-lost-in-churn": {"life", outcomes(func(_ modeltest.Packet, o *modeltest.Outcome) {
		if lost++; lost%97 == 0 {
			o.Verdict = modeltest.Refused
		}
	})},
}

var lost int

// A wrapped Programmer does some things otherwise.
type wrapped struct {
	model.Programmer
	kernel  *modeltest.Kernel
	sync    func(context.Context, model.State) (model.Result, error)
	apply   func(context.Context, model.Diff) (model.Result, error)
	check   func(context.Context) error
	cleanup func(context.Context) error
	probe   func(context.Context) (model.Report, error)
	close   func() error
}

func (p *wrapped) Sync(ctx context.Context, s model.State) (model.Result, error) {
	return p.sync(ctx, s)
}
func (p *wrapped) Apply(ctx context.Context, d model.Diff) (model.Result, error) {
	return p.apply(ctx, d)
}
func (p *wrapped) Check(ctx context.Context) error                 { return p.check(ctx) }
func (p *wrapped) Cleanup(ctx context.Context) error               { return p.cleanup(ctx) }
func (p *wrapped) Probe(ctx context.Context) (model.Report, error) { return p.probe(ctx) }
func (p *wrapped) Close() error                                    { return p.close() }

// A misleading Fake explains otherwise.
type misleading struct {
	*modeltest.Fake
	change func(*model.Explanation, error) error
}

func (p *misleading) Explain(ctx context.Context, q model.Query) (model.Explanation, error) {
	e, err := p.Fake.Explain(ctx, q)
	return e, p.change(&e, err)
}

// explains makes a fault of explanations.
func explains(change func(e *model.Explanation, err error) error) func(*modeltest.Target) {
	return func(target *modeltest.Target) {
		make := target.New
		target.New = func(tb testing.TB, w modeltest.World) model.Programmer {
			return &misleading{make(tb, w).(*modeltest.Fake), change}
		}
	}
}

// suspicious takes every write of somebody else for drift.
func (p *wrapped) suspicious() func(context.Context) error {
	written := uint64(0)
	inner := p.sync
	p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
		res, err := inner(ctx, s)
		written = p.kernel.Generation()
		return res, err
	}
	return func(ctx context.Context) error {
		if err := p.Programmer.Check(ctx); err != nil || written == p.kernel.Generation() {
			return err
		}
		return model.ErrDrift
	}
}

// adding makes a Sync that removes nothing that a Programmer before it wrote.
func (p *wrapped) adding() func(context.Context, model.State) (model.Result, error) {
	return func(ctx context.Context, s model.State) (model.Result, error) {
		var extra []modeltest.Object
		for _, o := range p.kernel.Objects("headgate") {
			if strings.HasPrefix(o.Key, "frontend ") {
				extra = append(extra, o)
			}
		}
		res, err := p.Programmer.Sync(ctx, s)
		for _, o := range extra {
			if !slices.ContainsFunc(p.kernel.Objects("headgate"), func(n modeltest.Object) bool { return n.Key == o.Key }) {
				p.kernel.Put("headgate", o.Key, o.Value)
			}
		}
		return res, err
	}
}

// wrap makes a fault of a Programmer.
func wrap(change func(*wrapped)) func(*modeltest.Target) {
	return func(target *modeltest.Target) {
		make := target.New
		target.New = func(tb testing.TB, w modeltest.World) model.Programmer {
			p := make(tb, w)
			wp := &wrapped{Programmer: p, kernel: w.(*modeltest.FakeWorld).Kernel,
				sync: p.Sync, apply: p.Apply, check: p.Check, cleanup: p.Cleanup, probe: p.Probe, close: p.Close}
			change(wp)
			return wp
		}
	}
}

// applying makes a fault of diffs.
func applying(change func(*model.Diff)) func(*modeltest.Target) {
	return wrap(func(p *wrapped) {
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			if len(d.Changes) > 0 || d.Node != nil {
				change(&d)
			}
			return p.Programmer.Apply(ctx, d)
		}
	})
}

// distorting makes a fault of what is asked for.
func distorting(entry func(model.Entry) model.Entry, node func(model.Node) model.Node) func(*modeltest.Target) {
	return wrap(func(p *wrapped) {
		p.sync = func(ctx context.Context, s model.State) (model.Result, error) {
			d := model.State{Node: node(s.Node), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
			for name, svc := range s.Services {
				e := entry(model.Entry{Service: svc, Endpoints: s.Endpoints[name]})
				d.Services[name], d.Endpoints[name] = e.Service, e.Endpoints
			}
			return p.Programmer.Sync(ctx, d)
		}
		p.apply = func(ctx context.Context, d model.Diff) (model.Result, error) {
			if d.Node != nil {
				n := node(*d.Node)
				d.Node = &n
			}
			d.Changes = slices.Clone(d.Changes)
			for i, c := range d.Changes {
				if c.After != nil {
					e := entry(*c.After)
					d.Changes[i].After = &e
				}
			}
			return p.Programmer.Apply(ctx, d)
		}
	})
}

func sameNode(n model.Node) model.Node { return n }

func services(change func(*model.Service)) func(*modeltest.Target) {
	return distorting(func(e model.Entry) model.Entry {
		e.Service.Frontends = slices.Clone(e.Service.Frontends)
		change(&e.Service)
		return e
	}, sameNode)
}

func endpoints(change func(*model.Endpoint)) func(*modeltest.Target) {
	return distorting(func(e model.Entry) model.Entry {
		e.Endpoints = slices.Clone(e.Endpoints)
		for i := range e.Endpoints {
			change(&e.Endpoints[i])
		}
		return e
	}, sameNode)
}

func node(change func(*model.Node)) func(*modeltest.Target) {
	return distorting(func(e model.Entry) model.Entry { return e }, func(n model.Node) model.Node {
		change(&n)
		return n
	})
}

// A tampered world tells of packets otherwise than the kernel does.
type tampered struct {
	*modeltest.FakeWorld
	change func(modeltest.Packet, *modeltest.Outcome)
}

func (w *tampered) Send(ctx context.Context, p modeltest.Packet, n int) ([]modeltest.Outcome, error) {
	out, err := w.FakeWorld.Send(ctx, p, n)
	for i := range out {
		w.change(p, &out[i])
	}
	return out, err
}

// outcomes makes a fault of what becomes of packets.
func outcomes(change func(modeltest.Packet, *modeltest.Outcome)) func(*modeltest.Target) {
	return func(target *modeltest.Target) {
		inner := *target
		of := func(w modeltest.World) modeltest.World { return w.(*tampered).FakeWorld }
		target.NewWorld = func(tb testing.TB, n model.Node) modeltest.World {
			return &tampered{inner.NewWorld(tb, n).(*modeltest.FakeWorld), change}
		}
		target.New = func(tb testing.TB, w modeltest.World) model.Programmer { return inner.New(tb, of(w)) }
		target.Second, target.Snapshot, target.Plant, target.Damage, target.Refuse = nil, nil, nil, nil, nil
	}
}

func turned(from, to modeltest.Verdict) func(*modeltest.Target) {
	return outcomes(func(_ modeltest.Packet, o *modeltest.Outcome) {
		if o.Verdict == from {
			o.Verdict = to
		}
	})
}
