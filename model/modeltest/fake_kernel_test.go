package modeltest

import (
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// What the pretended kernel refuses, a real one does too.
func TestKernelRules(t *testing.T) {
	g := groupKey{"web", model.IPv4}
	m := memberKey{g, model.Cluster, ap("10.128.0.11:8080")}
	f := frontKey{model.FrontendKey{Addr: ap("172.20.0.10:80")}}
	r := rangeKey{f, pfx("10.0.0.0/8")}
	put := func(key, value any) op { return newOp(add, "web", key, value) }
	set := func(key, value any) op { return newOp(change, "web", key, value) }
	del := func(key any) op { return newOp(remove, "web", key, nil) }
	node := &model.Node{Name: "n"}
	all := []op{put(nodeKey{}, node), put(g, groupValue{}), put(m, memberValue{weight: 1}), put(f, frontValue{group: g}), put(r, nothing{})}
	for name, c := range map[string]struct {
		op  op
		err error
	}{
		"settings twice":               {put(nodeKey{}, node), syscall.EEXIST},
		"group twice":                  {put(g, groupValue{}), syscall.EEXIST},
		"member twice":                 {put(m, memberValue{weight: 1}), syscall.EEXIST},
		"frontend twice":               {put(f, frontValue{group: g}), syscall.EEXIST},
		"range twice":                  {put(r, nothing{}), syscall.EEXIST},
		"range inside":                 {put(rangeKey{f, pfx("10.1.0.0/16")}, nothing{}), syscall.EEXIST},
		"range around":                 {put(rangeKey{f, pfx("8.0.0.0/5")}, nothing{}), syscall.EEXIST},
		"range with host bits":         {put(rangeKey{f, netip.PrefixFrom(addr("11.0.0.1"), 8)}, nothing{}), syscall.EINVAL},
		"range of the other family":    {put(rangeKey{f, pfx("fd00::/8")}, nothing{}), syscall.EINVAL},
		"range of no frontend":         {put(rangeKey{frontKey{model.FrontendKey{Protocol: model.UDP, Addr: f.Addr}}, pfx("11.0.0.0/8")}, nothing{}), syscall.ENOENT},
		"range changed":                {set(r, nothing{}), syscall.EINVAL},
		"member of no group":           {put(memberKey{groupKey{"nobody", model.IPv4}, model.Cluster, m.addr}, memberValue{weight: 1}), syscall.EINVAL},
		"member without weight":        {put(memberKey{g, model.Local, m.addr}, memberValue{}), syscall.EINVAL},
		"frontend to no group":         {put(frontKey{model.FrontendKey{Addr: ap("172.20.0.11:80")}}, frontValue{group: groupKey{"nobody", model.IPv4}}), syscall.ENOENT},
		"unknown group changed":        {set(groupKey{"nobody", model.IPv4}, groupValue{}), syscall.ENOENT},
		"unknown member changed":       {set(memberKey{g, model.Local, m.addr}, memberValue{weight: 1}), syscall.ENOENT},
		"unknown frontend changed":     {set(frontKey{model.FrontendKey{Addr: ap("172.20.0.11:80")}}, frontValue{group: g}), syscall.ENOENT},
		"unknown group deleted":        {del(groupKey{"nobody", model.IPv4}), syscall.ENOENT},
		"unknown member deleted":       {del(memberKey{g, model.Local, m.addr}), syscall.ENOENT},
		"member of nobody deleted":     {del(memberKey{groupKey{"nobody", model.IPv4}, model.Local, m.addr}), syscall.ENOENT},
		"unknown frontend deleted":     {del(frontKey{model.FrontendKey{Addr: ap("172.20.0.11:80")}}), syscall.ENOENT},
		"unknown range deleted":        {del(rangeKey{f, pfx("10.0.0.0/9")}), syscall.ENOENT},
		"unknown stranger deleted":     {del(strangerKey{"x"}), syscall.ENOENT},
		"unknown stranger changed":     {set(strangerKey{"x"}, "y"), syscall.ENOENT},
		"group in use deleted":         {del(g), syscall.EBUSY},
		"frontend with ranges deleted": {del(f), syscall.EBUSY},
		"nonsense":                     {put(nonsense{}, nil), syscall.EINVAL},
		"nonsense deleted":             {del(nonsense{}), syscall.EINVAL},
	} {
		t.Run(name, func(t *testing.T) {
			k := NewKernel()
			base, err := k.commit(t.Context(), "t", 0, all)
			require.NoError(t, err)
			before := k.String()
			other := put(groupKey{"other", model.IPv4}, groupValue{})
			_, err = k.commit(t.Context(), "t", base, []op{other, del(r), put(r, nothing{}), c.op})
			require.ErrorIs(t, err, c.err)
			require.Equal(t, before, k.String(), "nothing of a refused transaction is left")
			require.Equal(t, base, k.Generation())
			_, err = k.commit(t.Context(), "t", base-1, []op{other})
			require.ErrorIs(t, err, errGeneration)
		})
	}
}

type nonsense struct{}

func (nonsense) String() string { return "nonsense" }

// Whatever a transaction does before it is refused, all is as it was: objects, counts, and what the kernel remembers.
func TestKernelRollsBack(t *testing.T) {
	chance := rand.New(rand.NewPCG(5, 6))
	for range 300 {
		w := NewFakeWorld(StageNode())
		g := &generator{chance: chance, balances: []model.Balance{model.Random, model.RoundRobin}}
		f := NewFake(w.Kernel, FakeConfig{})
		from := g.state()
		_, err := f.Sync(t.Context(), from)
		require.NoError(t, err)
		for _, fl := range g.flows(30) {
			_, err := w.Kernel.Send(fl.p)
			require.NoError(t, err)
		}
		before, memory := w.Kernel.String(), remembered(w.Kernel)
		d, err := f.resolver.ResolveState(g.mutate(g.mutate(g.mutate(from))), nil)
		require.NoError(t, err)
		ops := append(steps(f.read(), f.after(d)), newOp(remove, "", strangerKey{"not there"}, nil))
		_, err = w.Kernel.commit(t.Context(), "headgate", w.Kernel.Generation(), ops)
		require.ErrorIs(t, err, syscall.ENOENT)
		require.Equal(t, before, w.Kernel.String())
		require.Equal(t, memory, remembered(w.Kernel))
	}
}

// remembered returns what no object tells: pins, counts of references and owned addresses.
func remembered(k *Kernel) map[string]any {
	m := map[string]any{}
	for name, t := range k.tables {
		m[name+" owned"] = maps.Clone(t.owned)
		for key, g := range t.groups {
			m[name+" "+key.String()] = []any{maps.Clone(g.pins), g.fronts, g.turns, maps.Clone(g.conns)}
		}
	}
	return m
}

// A plan holds what it should: applying the steps from one state to another gives what planning the other gives,
// in every order that the kernel may see them.
func TestStepsLeadFromAnyStateToAnyOther(t *testing.T) {
	chance := rand.New(rand.NewPCG(8, 9))
	g := &generator{chance: chance, balances: []model.Balance{model.Random, model.Maglev}}
	render := func(s model.State) objects {
		r := model.NewResolver(allFeatures("test"))
		d, err := r.ResolveState(s, nil)
		require.NoError(t, err)
		os := objects{}
		os.renderNode(s.Node)
		for _, f := range r.FormsAfter(d) {
			os.render(f, s.Node)
		}
		return os
	}
	k := NewKernel()
	held, generation := objects{}, uint64(0)
	for range 500 {
		want := render(g.state())
		ops := steps(held, want)
		require.True(t, slices.IsSortedFunc(ops, func(a, b op) int { return a.rank() - b.rank() }))
		var err error
		generation, err = k.commit(t.Context(), "t", generation, ops)
		require.NoError(t, err)
		now, _ := k.read("t")
		require.Len(t, now, len(want))
		for key, o := range want {
			require.True(t, sameValue(now[key], o.value), "%v", key)
		}
		require.Empty(t, steps(want, want))
		held = want
	}
}

func TestPinsExpire(t *testing.T) {
	w := NewFakeWorld(StageNode())
	f := NewFake(w.Kernel, FakeConfig{})
	_, err := f.Sync(t.Context(), stateOf(StageNode(), sticky(10*time.Second, epA, epB, epC)))
	require.NoError(t, err)
	g := w.tables["headgate"].groups[groupKey{"default/aff:http", model.IPv4}]
	_, err = w.Kernel.Send(pod.to("172.20.0.110:80").p)
	require.NoError(t, err)
	p := g.pins[pod.v4]
	require.Equal(t, w.clock.Add(10*time.Second), p.until)
	w.Sleep(9 * time.Second)
	_, err = w.Kernel.Send(pod.to("192.0.2.10:80").p)
	require.NoError(t, err)
	require.Equal(t, pin{p.addr, w.clock.Add(10 * time.Second)}, g.pins[pod.v4], "renewed, and where it was")
}
