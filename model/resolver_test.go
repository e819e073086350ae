package model_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// A desk drives a Resolver as a backend does.
type desk struct {
	t     *testing.T
	r     *model.Resolver
	state model.State
}

func newDesk(t *testing.T) *desk {
	return &desk{t: t, r: model.NewResolver(model.FeatureSet{Backend: "test", Balances: []model.Balance{model.Random, model.SourceHash}, AffinityFloor: 5 * time.Second}),
		state: model.State{Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}}
}

// apply resolves and commits changes.
func (d *desk) apply(changes ...model.Change) *model.Delta {
	d.t.Helper()
	return d.resolve(model.Diff{Changes: changes}, nil)
}

func (d *desk) resolve(diff model.Diff, refused map[model.ServiceName]error) *model.Delta {
	d.t.Helper()
	delta, err := d.r.Resolve(diff, refused)
	require.NoError(d.t, err)
	d.r.Commit(delta)
	return delta
}

func set(name model.ServiceName, s model.Service, es ...model.Endpoint) model.Change {
	return model.Change{Name: name, After: &model.Entry{Service: s, Endpoints: es}}
}

func gone(name model.ServiceName) model.Change { return model.Change{Name: name} }

func rejected(d *model.Delta) []model.ServiceName {
	var out []model.ServiceName
	for _, e := range d.Rejected {
		out = append(out, e.Service)
	}
	return out
}

func changedForms(d *model.Delta) []model.ServiceName {
	var out []model.ServiceName
	for _, c := range d.Changes {
		out = append(out, c.Name)
	}
	return out
}

// holds returns the addresses that a service holds.
func (d *desk) holds(name model.ServiceName) []string {
	out := []string{}
	if f := d.r.Form(name); f != nil {
		for _, fr := range f.Frontends {
			out = append(out, fr.Addr.String())
		}
	}
	return out
}

func TestResolve(t *testing.T) {
	d := newDesk(t)
	local := model.Endpoint{Addr: ap("10.0.0.2:80"), Local: true}
	delta := d.apply(set("b", svc("172.20.0.2:80")), set("a", svc("172.20.0.1:80"), model.Endpoint{Addr: ap("10.0.0.3:80")}, local))
	require.Equal(t, []model.ServiceName{"a", "b"}, changedForms(delta))
	require.Nil(t, delta.Changes[0].Before)
	a := d.r.Form("a")
	require.Equal(t, []string{"10.0.0.2:80", "10.0.0.3:80"}, texts(a.Endpoints), "sorted")
	require.Equal(t, []string{"10.0.0.2:80"}, texts(a.Selections[model.IPv4].Local))
	require.Len(t, a.Selections[model.IPv4].Cluster, 2)
	require.Empty(t, a.Selections[model.IPv6].Cluster)
	require.Equal(t, 2, d.r.Len())
	require.Equal(t, "a", string(d.r.Forms()[0].Name))
	holder, ok := d.r.Holder(a.Key(a.Frontends[0]))
	require.True(t, ok)
	require.Equal(t, model.ServiceName("a"), holder)

	require.Empty(t, d.apply(set("a", svc("172.20.0.1:80"), local, model.Endpoint{Addr: ap("10.0.0.3:80"), Weight: 1})).Changes, "the same in other words")
	delta = d.apply(set("a", svc("172.20.0.1:80"), local))
	require.Same(t, a, delta.Changes[0].Before)
	require.NotSame(t, a, delta.Changes[0].After)
	delta = d.apply(gone("a"), gone("never"))
	require.Equal(t, []model.ServiceName{"a"}, changedForms(delta))
	require.Nil(t, delta.Changes[0].After)
	require.Nil(t, d.r.Form("a"))
	_, ok = d.r.Holder(a.Key(a.Frontends[0]))
	require.False(t, ok)
}

func texts(es []model.Endpoint) []string {
	var out []string
	for _, e := range es {
		out = append(out, e.Addr.String())
	}
	return out
}

// A Delta that is not committed leaves no trace.
func TestResolveCommitsNothing(t *testing.T) {
	d := newDesk(t)
	d.apply(set("a", svc("172.20.0.1:80")), set("b", svc("172.20.0.1:80")))
	for range 3 {
		delta, err := d.r.Resolve(model.Diff{Node: &model.Node{Zone: "z"}, Changes: []model.Change{gone("a"), set("c", svc("172.20.0.1:80", "172.20.0.3:80"))}}, nil)
		require.NoError(t, err)
		require.Equal(t, []model.ServiceName{"b"}, delta.Promoted)
		require.Equal(t, []model.ServiceName{"a", "b", "c"}, changedForms(delta))
		require.Equal(t, []string{"172.20.0.1:80"}, d.holds("a"))
		require.Empty(t, d.holds("b"))
		require.Nil(t, d.r.Form("c"))
		require.Empty(t, d.r.Node().Zone)
		require.Equal(t, []model.ServiceName{"b", "c"}, formNames(d.r.FormsAfter(delta)))
		require.Equal(t, []model.ServiceName{"a", "b"}, formNames(d.r.Forms()))
	}
}

func formNames(fs []*model.Resolved) []model.ServiceName {
	var out []model.ServiceName
	for _, f := range fs {
		out = append(out, f.Name)
	}
	return out
}

// A service that is refused, for whatever reason, keeps its last good form, in the zone where it now stands.
func TestLastGoodForm(t *testing.T) {
	zoned := []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{"z1"}}, {Addr: ap("10.0.0.2:80"), Zones: []string{"z2"}}}
	for name, bad := range map[string]struct {
		svc model.Service
		is  error
	}{
		"invalid":        {model.Service{Protocol: 9}, model.ErrInvalid},
		"balance":        {model.Service{Balance: model.Maglev, Frontends: svc("172.20.0.9:80").Frontends}, model.ErrNotSupported},
		"hash port":      {model.Service{Balance: model.SourceHash, HashPort: true}, model.ErrNotSupported},
		"affinity floor": {model.Service{Affinity: 2 * time.Second}, model.ErrNotSupported},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t)
			delta := d.apply(set("x", bad.svc))
			require.Empty(t, delta.Changes)
			require.Nil(t, d.r.Form("x"), "it never had a good form")
			d.resolve(model.Diff{Node: &model.Node{Zone: "z1"}, Changes: []model.Change{set("x", svc("172.20.0.1:80"), zoned...)}}, nil)
			before := d.r.Form("x")
			delta = d.apply(set("x", bad.svc, ep(9, "")), set("y", svc("172.20.0.2:80")))
			require.Equal(t, []model.ServiceName{"x"}, rejected(delta))
			require.ErrorIs(t, delta.Rejected[0], bad.is)
			require.Equal(t, "validate", delta.Rejected[0].Op)
			require.Equal(t, "test", delta.Rejected[0].Backend)
			require.Equal(t, []model.ServiceName{"y"}, changedForms(delta))
			require.Same(t, before, d.r.Form("x"))
			d.resolve(model.Diff{Node: &model.Node{Zone: "z2"}, Changes: []model.Change{set("x", bad.svc)}}, nil)
			require.Equal(t, []string{"10.0.0.2:80"}, texts(d.r.Form("x").Selections[model.IPv4].Cluster))
			require.Equal(t, svc("172.20.0.1:80"), d.r.Form("x").Service)
			require.Empty(t, d.apply(set("x", svc("172.20.0.9:80"))).Rejected)
			require.Equal(t, []string{"172.20.0.9:80"}, d.holds("x"))
			d.apply(set("x", bad.svc))
			d.apply(gone("x"))
			require.Nil(t, d.r.Form("x"))
		})
	}
}

func TestEndpointsLeftOut(t *testing.T) {
	d := newDesk(t)
	delta := d.apply(set("x", svc("172.20.0.1:80"), ep(1, ""), model.Endpoint{}, ep(2, "")))
	require.Equal(t, []model.ServiceName{"x"}, rejected(delta))
	require.ErrorIs(t, delta.Rejected[0], model.ErrInvalid)
	require.Equal(t, []int{1, 2}, last(d.r.Form("x").Endpoints))
	// One service is named once, with all that is wrong with it.
	delta = d.apply(set("y", svc("172.20.0.1:80"), model.Endpoint{}))
	require.Equal(t, []model.ServiceName{"y"}, rejected(delta))
	require.ErrorIs(t, delta.Rejected[0], model.ErrInvalid)
	require.ErrorIs(t, delta.Rejected[0], model.ErrConflict)
}

func TestInvalidNode(t *testing.T) {
	for name, n := range map[string]model.Node{
		"address":            {Addrs: []netip.Addr{{}}},
		"primary":            {Primary: []netip.Addr{addr("fe80::1%eth0")}},
		"mapped":             {Addrs: []netip.Addr{addr("::ffff:10.0.0.1")}},
		"detector":           {Detector: model.LocalDetector{Prefixes: []netip.Prefix{{}}}},
		"detector mapped":    {Detector: model.LocalDetector{Prefixes: []netip.Prefix{pfx("::ffff:10.0.0.0/104")}}},
		"scope":              {NodePorts: model.NodePortScope{Prefixes: []netip.Prefix{{}}}},
		"service ranges":     {ServiceRanges: []netip.Prefix{netip.PrefixFrom(addr("10.0.0.0"), 40)}},
		"interface empty":    {Detector: model.LocalDetector{Interfaces: []string{""}}},
		"interface too long": {Detector: model.LocalDetector{Interfaces: []string{"0123456789abcdef"}}},
		"interface quoted":   {Detector: model.LocalDetector{Interfaces: []string{"a\"b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			require.ErrorIs(t, n.Validate(), model.ErrInvalid)
			d := newDesk(t)
			d.apply(set("x", svc("172.20.0.1:80")))
			_, err := d.r.Resolve(model.Diff{Node: &n}, nil)
			require.ErrorIs(t, err, model.ErrInvalid)
			_, err = d.r.ResolveState(model.State{Node: n}, nil)
			require.ErrorIs(t, err, model.ErrInvalid)
			require.NotNil(t, d.r.Form("x"))
		})
	}
	require.NoError(t, model.Node{}.Validate())
	require.NoError(t, model.Node{Addrs: []netip.Addr{addr("10.0.0.1"), addr("fd00::1")}, Detector: model.LocalDetector{Interfaces: []string{"veth"}}}.Validate())
}

// A changed node selects anew everywhere, and changes just the forms for which that makes a difference.
func TestNodeChange(t *testing.T) {
	d := newDesk(t)
	zoned := []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{"z1"}}, {Addr: ap("10.0.0.2:80"), Zones: []string{"z2"}}}
	d.resolve(model.Diff{Node: &model.Node{Zone: "z1"}, Changes: []model.Change{set("zoned", svc("172.20.0.1:80"), zoned...), set("plain", svc("172.20.0.2:80"), ep(1, ""))}}, nil)
	require.Equal(t, []string{"10.0.0.1:80"}, texts(d.r.Form("zoned").Selections[model.IPv4].Cluster))
	plain := d.r.Form("plain")

	delta := d.resolve(model.Diff{Node: &model.Node{Zone: "z1"}}, nil)
	require.False(t, delta.NodeChanged)
	require.Empty(t, delta.Changes)
	delta = d.resolve(model.Diff{Node: &model.Node{Zone: "z2"}}, nil)
	require.True(t, delta.NodeChanged)
	require.Equal(t, []model.ServiceName{"zoned"}, changedForms(delta))
	require.Equal(t, []string{"172.20.0.1:80"}, d.holds("zoned"))
	require.Equal(t, []string{"10.0.0.2:80"}, texts(d.r.Form("zoned").Selections[model.IPv4].Cluster))
	require.Same(t, plain, d.r.Form("plain"))
	require.Equal(t, "z2", d.r.Node().Zone)
	// A diff without a node is resolved for the one that is there.
	d.apply(set("later", svc("172.20.0.3:80"), zoned...))
	require.Equal(t, []string{"10.0.0.2:80"}, texts(d.r.Form("later").Selections[model.IPv4].Cluster))
	d.r.Reset()
	require.Zero(t, d.r.Len())
	require.Empty(t, d.r.Node().Zone)
}

func TestResolverCopies(t *testing.T) {
	d := newDesk(t)
	node := model.Node{Primary: []netip.Addr{addr("10.0.0.1")}}
	s := svc("192.0.2.1:80")
	s.Frontends[0].SourceRanges = []netip.Prefix{pfx("10.0.0.0/8")}
	es := []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{"z"}}}
	d.resolve(model.Diff{Node: &node, Changes: []model.Change{set("x", s, es...)}}, nil)
	node.Primary[0] = addr("1.1.1.1")
	s.Frontends[0].SourceRanges[0] = pfx("1.1.1.1/32")
	s.Frontends[0].Addr = ap("1.1.1.1:1")
	es[0].Addr, es[0].Zones[0] = ap("1.1.1.1:1"), "scribbled"
	f := d.r.Form("x")
	require.Equal(t, ap("192.0.2.1:80"), f.Frontends[0].Addr)
	require.Equal(t, pfx("10.0.0.0/8"), f.Frontends[0].SourceRanges[0])
	require.Equal(t, model.Endpoint{Addr: ap("10.0.0.1:80"), Zones: []string{"z"}, Weight: 1}, f.Endpoints[0])
	require.Equal(t, addr("10.0.0.1"), d.r.Node().Primary[0])
}

// Who gets a frontend that several claim: by who had it, and else by name.
func TestConflicts(t *testing.T) {
	const vip, own = "192.0.2.1:80", "172.20.0.%d:80"
	type step struct {
		name               string
		do                 []model.Change
		holder             string
		rejected, promoted []model.ServiceName
	}
	claim := func(name model.ServiceName) model.Change {
		return set(name, svc(vip, fmt.Sprintf(own, name[0])))
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"together: the first by name", []step{
			{"all at once", []model.Change{claim("c"), claim("a"), claim("b")}, "a", []model.ServiceName{"b", "c"}, nil},
			{"it goes", []model.Change{gone("a")}, "b", nil, []model.ServiceName{"b"}},
			{"it goes too", []model.Change{gone("b")}, "c", nil, []model.ServiceName{"c"}},
			{"the last goes", []model.Change{gone("c")}, "", nil, nil},
		}},
		{"one after the other: who has it", []step{
			{"c first", []model.Change{claim("c")}, "c", nil, nil},
			{"a", []model.Change{claim("a")}, "c", []model.ServiceName{"a"}, nil},
			{"b", []model.Change{claim("b")}, "c", []model.ServiceName{"b"}, nil},
			{"the holder is told again", []model.Change{claim("c")}, "c", nil, nil},
			{"a loser is told again", []model.Change{claim("a")}, "c", []model.ServiceName{"a"}, nil},
			{"the holder goes and the next by name with it", []model.Change{gone("c"), gone("a")}, "b", nil, []model.ServiceName{"b"}},
		}},
		{"newcomer at the moment of release", []step{
			{"m has it, z waits", []model.Change{claim("m"), claim("z")}, "m", []model.ServiceName{"z"}, nil},
			{"m goes, a comes: all are asked by name", []model.Change{gone("m"), claim("a")}, "a", nil, nil},
			{"a goes", []model.Change{gone("a")}, "z", nil, []model.ServiceName{"z"}},
		}},
		{"the holder moves", []step{
			{"a has it", []model.Change{claim("a"), claim("b")}, "a", []model.ServiceName{"b"}, nil},
			{"to another port", []model.Change{set("a", svc("192.0.2.1:81"))}, "b", nil, []model.ServiceName{"b"}},
			{"and back, too late", []model.Change{claim("a")}, "b", []model.ServiceName{"a"}, nil},
			{"to another protocol", []model.Change{set("b", model.Service{Protocol: model.UDP, Frontends: svc(vip).Frontends})}, "a", nil, []model.ServiceName{"a"}},
		}},
		{"a loser gives up", []step{
			{"a has it", []model.Change{claim("a"), claim("b"), claim("c")}, "a", []model.ServiceName{"b", "c"}, nil},
			{"b wants it no more", []model.Change{set("b", svc("172.20.0.98:80"))}, "a", nil, nil},
			{"a goes", []model.Change{gone("a")}, "c", nil, []model.ServiceName{"c"}},
		}},
		{"the holder turns bad and keeps it", []step{
			{"a has it", []model.Change{claim("a"), claim("b")}, "a", []model.ServiceName{"b"}, nil},
			{"a is invalid", []model.Change{set("a", model.Service{Protocol: 9})}, "a", []model.ServiceName{"a"}, nil},
			{"a is good elsewhere", []model.Change{set("a", svc("192.0.2.9:80"))}, "b", nil, []model.ServiceName{"b"}},
		}},
		{"swap in one diff", []step{
			{"each its own", []model.Change{set("a", svc(vip)), set("b", svc("192.0.2.2:80"))}, "a", nil, nil},
			{"the other way round", []model.Change{set("b", svc(vip)), set("a", svc("192.0.2.2:80"))}, "b", nil, nil},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			d := newDesk(t)
			for _, s := range c.steps {
				delta := d.apply(s.do...)
				holder, _ := d.r.Holder(model.FrontendKey{Addr: ap(vip)})
				require.Equal(t, s.holder, string(holder), s.name)
				require.Equal(t, s.rejected, rejected(delta), s.name)
				require.Equal(t, s.promoted, delta.Promoted, s.name)
				for _, name := range s.promoted {
					require.Contains(t, changedForms(delta), name, s.name)
				}
				d.consistent()
			}
		})
	}
}

// consistent requires that every frontend that somebody wants has one holder, and that forms and holders agree.
func (d *desk) consistent() {
	d.t.Helper()
	holders := map[model.FrontendKey]model.ServiceName{}
	for _, f := range d.r.Forms() {
		for _, fr := range f.Frontends {
			require.NotContains(d.t, holders, f.Key(fr), "held twice")
			holders[f.Key(fr)] = f.Name
		}
	}
	for _, f := range d.r.Forms() {
		for _, fr := range f.Service.Frontends {
			holder, ok := d.r.Holder(f.Key(fr))
			require.True(d.t, ok, "%s is nobody's", f.Key(fr))
			require.Equal(d.t, holders[f.Key(fr)], holder)
		}
	}
}

func TestConflictNames(t *testing.T) {
	d := newDesk(t)
	np := model.Service{Frontends: []model.Frontend{{Kind: model.NodePort, Addr: netip.AddrPortFrom(netip.Addr{}, 30000)}}}
	v4 := model.Service{Frontends: []model.Frontend{{Kind: model.NodePort, Addr: ap("0.0.0.0:30000")}}}
	delta := d.apply(set("a", v4), set("b", np))
	require.Equal(t, []model.ServiceName{"b"}, rejected(delta))
	require.ErrorIs(t, delta.Rejected[0], model.ErrConflict)
	require.Equal(t, "resolve", delta.Rejected[0].Op)
	require.Contains(t, delta.Rejected[0].Error(), "node port 30000")
	require.Contains(t, delta.Rejected[0].Error(), `"a"`)
	require.Equal(t, []string{"[::]:30000"}, d.holds("b"), "what nobody else has it keeps")
	require.Len(t, d.r.Form("b").Service.Frontends, 2, "what it asked for is remembered")
	// A node port and an address are not in conflict, and neither are two protocols.
	udp := svc("192.0.2.1:30000")
	udp.Protocol = model.UDP
	require.Empty(t, d.apply(set("c", svc("192.0.2.1:30000")), set("d", udp)).Rejected)
}

// After any history the holders are consistent, a holder never loses a frontend while it wants it, and a Resolver that
// is told the whole state at once agrees on everything but who came first.
func TestConflictHistory(t *testing.T) {
	chance := rand.New(rand.NewPCG(11, 12))
	vips := []string{"192.0.2.1:80", "192.0.2.2:80", "192.0.2.3:80"}
	drawn := func() model.ServiceName { return []model.ServiceName{"", "a", "b", "c", "d"}[chance.IntN(5)] }
	for range 200 {
		d := newDesk(t)
		for range 30 {
			held := map[model.FrontendKey]model.ServiceName{}
			for _, f := range d.r.Forms() {
				for _, fr := range f.Frontends {
					held[f.Key(fr)] = f.Name
				}
			}
			changes := map[model.ServiceName]model.Change{}
			for range 1 + chance.IntN(3) {
				name := drawn()
				if chance.IntN(4) == 0 {
					changes[name] = gone(name)
					continue
				}
				var s model.Service
				for _, v := range vips {
					if chance.IntN(2) == 0 {
						s.Frontends = append(s.Frontends, svc(v).Frontends...)
					}
				}
				if chance.IntN(8) == 0 {
					s.Protocol = model.UDP
				}
				if chance.IntN(8) == 0 {
					s.Protocol = 9 // invalid
				}
				changes[name] = set(name, s)
			}
			diff := model.Diff{}
			for _, name := range slices.Sorted(maps.Keys(changes)) {
				diff.Changes = append(diff.Changes, changes[name])
			}
			if chance.IntN(5) == 0 {
				diff.Node = &model.Node{Zone: fmt.Sprint(chance.IntN(3))}
			}
			refused := map[model.ServiceName]error{}
			if chance.IntN(3) == 0 {
				refused[drawn()] = errors.New("no")
			}
			before := map[model.ServiceName]*model.Resolved{}
			for name := range refused {
				before[name] = d.r.Form(name)
			}
			delta := d.resolve(diff, refused)
			for name, f := range before {
				if c, ok := changes[name]; !ok || c.After != nil {
					require.Same(t, f, d.r.Form(name), "%q was refused and changed all the same", name)
				}
			}
			if len(refused) == 0 {
				d.heals(delta)
			}
			for key, name := range held {
				f := d.r.Form(name)
				wants := f != nil && f.Service.Protocol == key.Protocol &&
					slices.ContainsFunc(f.Service.Frontends, func(fr model.Frontend) bool { return fr.Addr == key.Addr })
				holder, _ := d.r.Holder(key)
				require.False(t, wants && holder != name, "%s was taken from %q", key, name)
			}
		}
	}
}

// heals requires consistency, which refusals may have disturbed, once everybody was told again what it is.
func (d *desk) heals(*model.Delta) {
	d.t.Helper()
	var again []model.Change
	for _, f := range d.r.Forms() {
		again = append(again, set(f.Name, f.Service, f.Endpoints...))
	}
	d.apply(again...)
	d.consistent()
}

func TestResolveState(t *testing.T) {
	d := newDesk(t)
	d.apply(set("gone", svc("172.20.0.1:80")), set("kept", svc("172.20.0.2:80"), ep(1, "")))
	kept := d.r.Form("kept")
	s := model.State{Node: model.Node{Name: "n"}, Services: model.ServiceMap{"kept": svc("172.20.0.2:80"), "new": svc("172.20.0.1:80"), "bad": {Protocol: 9}},
		Endpoints: model.EndpointMap{"kept": {ep(1, "")}, "new": {ep(2, "")}, "nobody": {ep(3, "")}}}
	for i := range 2 {
		delta, err := d.r.ResolveState(s, nil)
		require.NoError(t, err)
		d.r.Commit(delta)
		require.Equal(t, []model.ServiceName{"bad"}, rejected(delta), "each Sync says so")
		require.Same(t, kept, d.r.Form("kept"))
		if i == 0 {
			require.Equal(t, []model.ServiceName{"gone", "new"}, changedForms(delta))
		} else {
			require.Empty(t, delta.Changes)
		}
		require.Equal(t, []model.ServiceName{"kept", "new"}, formNames(d.r.Forms()))
	}
}

// What the kernel refuses stays just as it is there: not selected anew, not promoted, not moved.
func TestRefused(t *testing.T) {
	no := errors.New("no")
	zoned := []model.Endpoint{{Addr: ap("10.0.0.1:80"), Zones: []string{"z1"}}, {Addr: ap("10.0.0.2:80"), Zones: []string{"z2"}}}
	t.Run("changed", func(t *testing.T) {
		d := newDesk(t)
		d.apply(set("x", svc("172.20.0.1:80"), zoned...), set("y", svc("172.20.0.2:80")))
		x := d.r.Form("x")
		delta := d.resolve(model.Diff{Changes: []model.Change{set("x", svc("172.20.0.9:80")), gone("y")}}, map[model.ServiceName]error{"x": no, "y": no})
		require.Equal(t, []model.ServiceName{"x"}, rejected(delta), "what goes cannot be refused")
		require.ErrorIs(t, delta.Rejected[0], no)
		require.Equal(t, "commit", delta.Rejected[0].Op)
		require.Same(t, x, d.r.Form("x"))
		require.Nil(t, d.r.Form("y"))
	})
	t.Run("new", func(t *testing.T) {
		d := newDesk(t)
		delta := d.resolve(model.Diff{Changes: []model.Change{set("x", svc("172.20.0.1:80")), set("y", svc("172.20.0.1:80"))}}, map[model.ServiceName]error{"x": fmt.Errorf("too many: %w", model.ErrNotSupported)})
		require.Equal(t, []model.ServiceName{"x"}, rejected(delta))
		require.Equal(t, "plan", delta.Rejected[0].Op)
		require.Nil(t, d.r.Form("x"))
		require.Equal(t, []string{"172.20.0.1:80"}, d.holds("y"), "what is not there claims nothing")
	})
	t.Run("selected anew", func(t *testing.T) {
		d := newDesk(t)
		d.resolve(model.Diff{Node: &model.Node{Zone: "z1"}, Changes: []model.Change{set("x", svc("172.20.0.1:80"), zoned...), set("y", svc("172.20.0.2:80"), zoned...)}}, nil)
		x := d.r.Form("x")
		delta := d.resolve(model.Diff{Node: &model.Node{Zone: "z2"}}, map[model.ServiceName]error{"x": no})
		require.Equal(t, []model.ServiceName{"x"}, rejected(delta))
		require.Equal(t, []model.ServiceName{"y"}, changedForms(delta))
		require.Same(t, x, d.r.Form("x"))
		// The next call that names it mends it.
		require.Equal(t, []model.ServiceName{"x"}, changedForms(d.apply(set("x", svc("172.20.0.1:80"), zoned...))))
		require.Equal(t, []string{"10.0.0.2:80"}, texts(d.r.Form("x").Selections[model.IPv4].Cluster))
	})
	t.Run("invalid and selected anew", func(t *testing.T) {
		d := newDesk(t)
		d.resolve(model.Diff{Node: &model.Node{Zone: "z1"}, Changes: []model.Change{set("x", svc("172.20.0.1:80"), zoned...)}}, nil)
		x := d.r.Form("x")
		delta := d.resolve(model.Diff{Node: &model.Node{Zone: "z2"}, Changes: []model.Change{set("x", model.Service{Protocol: 9})}}, map[model.ServiceName]error{"x": no})
		require.Equal(t, []model.ServiceName{"x"}, rejected(delta))
		require.Same(t, x, d.r.Form("x"))
	})
	t.Run("promoted", func(t *testing.T) {
		d := newDesk(t)
		d.apply(set("a", svc("192.0.2.1:80")), set("b", svc("192.0.2.1:80", "172.20.0.2:80")), set("c", svc("192.0.2.1:80", "172.20.0.3:80")))
		b := d.r.Form("b")
		delta := d.resolve(model.Diff{Changes: []model.Change{gone("a")}}, map[model.ServiceName]error{"b": no})
		require.Equal(t, []model.ServiceName{"b"}, rejected(delta))
		require.Equal(t, []model.ServiceName{"c"}, delta.Promoted, "the next in line")
		require.Same(t, b, d.r.Form("b"))
		require.Equal(t, []string{"192.0.2.1:80", "172.20.0.3:80"}, d.holds("c"))
	})
	t.Run("promoted, and nobody else", func(t *testing.T) {
		d := newDesk(t)
		d.apply(set("a", svc("192.0.2.1:80")), set("b", svc("192.0.2.1:80", "172.20.0.2:80")))
		delta := d.resolve(model.Diff{Changes: []model.Change{gone("a")}}, map[model.ServiceName]error{"b": no})
		require.Equal(t, []model.ServiceName{"b"}, rejected(delta))
		require.ErrorIs(t, delta.Rejected[0], no)
		require.NotErrorIs(t, delta.Rejected[0], model.ErrConflict, "nobody holds it")
		require.Equal(t, []string{"172.20.0.2:80"}, d.holds("b"))
		_, held := d.r.Holder(model.FrontendKey{Addr: ap("192.0.2.1:80")})
		require.False(t, held)
		delta = d.apply(set("b", svc("192.0.2.1:80", "172.20.0.2:80"), ep(1, "")))
		require.Empty(t, delta.Rejected)
		require.Equal(t, []model.ServiceName{"b"}, delta.Promoted)
		require.Equal(t, []string{"192.0.2.1:80", "172.20.0.2:80"}, d.holds("b"))
		d.consistent()
	})
}

func TestFeatureSet(t *testing.T) {
	f := model.FeatureSet{Balances: []model.Balance{model.Random, model.Maglev}, AffinityFloor: time.Minute, Differences: []model.Difference{{ID: "x", Text: "y"}}}
	require.True(t, f.Differs("x"))
	require.False(t, f.Differs("y"))
	require.NoError(t, f.Check(model.Service{}))
	require.NoError(t, f.Check(model.Service{Affinity: time.Minute}))
	require.NoError(t, f.Check(model.Service{HashPort: true}), "it means nothing here")
	for _, s := range []model.Service{{Balance: model.LeastConn}, {Balance: model.Maglev, HashPort: true}, {Affinity: time.Second}} {
		require.ErrorIs(t, f.Check(s), model.ErrNotSupported)
	}
}

func TestResult(t *testing.T) {
	cause := errors.New("cause")
	r := model.Result{Added: 1, Changed: 2, Deleted: 3, Bytes: 10, Transactions: 1, Steps: []model.Step{{Name: "plan", Took: time.Second}, {Name: "commit", Took: time.Minute}},
		Rejected: []*model.ServiceError{{Service: "a\nb", Backend: "test", Op: "plan", Err: cause}}}
	require.Equal(t, 6, r.Written())
	require.Equal(t, time.Minute+time.Second, r.Took())
	require.ErrorIs(t, r.Err(), cause)
	require.Equal(t, `test: plan: service "a\nb": cause`, r.Rejected[0].Error(), "a name cannot break the line")
	require.NoError(t, model.Result{}.Err())
	require.Contains(t, r.String(), "1 added, 2 changed, 3 deleted")
	report := model.Report{Missing: []model.Finding{{What: "nft_fib", Err: model.ErrNotSupported, Remedy: "modprobe nft_fib"}}, Warnings: []model.Finding{{What: "ip_forward", Err: cause}}}
	require.ErrorIs(t, report.Err(), model.ErrNotSupported)
	require.NotErrorIs(t, report.Err(), cause, "a warning is no failure")
	require.Equal(t, "nft_fib: not supported (modprobe nft_fib)", report.Missing[0].Error())
	require.Equal(t, "ip_forward: cause", report.Warnings[0].Error())
	require.NoError(t, model.Report{}.Err())
}
