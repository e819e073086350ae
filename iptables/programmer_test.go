package iptables

import (
	"bytes"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// How much is written for a change, with a thousand other services beside it.
func TestWhatAChangeWrites(t *testing.T) {
	s := modeltest.Big(1000, 10, modeltest.WithNodePorts, modeltest.WithRanges)
	r, forms := resolved(t, s)
	e := testEnv(model.IPv4, s.Node)
	now, _ := rulesetOf(e, forms)
	name := modeltest.BigName(500)
	entry := func(change func(*model.Entry)) *model.Entry {
		x := &model.Entry{Service: s.Services[name], Endpoints: slices.Clone(s.Endpoints[name])}
		x.Service.Frontends = slices.Clone(x.Service.Frontends)
		change(x)
		return x
	}
	many := s.Endpoints[name]
	for i := range 490 {
		many = append(many, modeltest.BigEndpoint(1_000_000+i))
	}
	for _, c := range []struct {
		name  string
		after *model.Entry
		lines int // at most, of the script
	}{
		{"nothing", entry(func(*model.Entry) {}), 0},
		{"one endpoint more", entry(func(x *model.Entry) { x.Endpoints = append(x.Endpoints, modeltest.BigEndpoint(1_000_001)) }), 15},
		{"one endpoint less", entry(func(x *model.Entry) { x.Endpoints = x.Endpoints[1:] }), 15},
		{"another weight", entry(func(x *model.Entry) { x.Endpoints[3].Weight = 7 }), 15},
		{"another port", entry(func(x *model.Entry) {
			x.Service.Frontends[0].Addr = netip.AddrPortFrom(x.Service.Frontends[0].Addr.Addr(), 81)
		}), 60},
		{"no endpoints", entry(func(x *model.Entry) { x.Endpoints = nil }), 110},
		{"no service", nil, 150},
		{"500 endpoints", entry(func(x *model.Entry) { x.Endpoints = many }), 700},
	} {
		d, err := r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: c.after}}}, nil)
		require.NoError(t, err)
		_, stages := plan(now, e, d.Changes)
		script := newScript(stages)
		require.LessOrEqual(t, len(script.owners), c.lines, "%s\n%s", c.name, script.text)
		t.Logf("%s: %d lines in %d transactions", c.name, len(script.owners), script.transactions)
	}

	// One endpoint of 500 touches the chains on one path.
	d, err := r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: entry(func(x *model.Entry) { x.Endpoints = many })}}}, nil)
	require.NoError(t, err)
	now, _ = plan(now, e, d.Changes)
	r.Commit(d)
	d, err = r.Resolve(model.Diff{Changes: []model.Change{{Name: name, After: entry(func(x *model.Entry) { x.Endpoints = append(many, modeltest.BigEndpoint(1_000_600)) })}}}, nil)
	require.NoError(t, err)
	_, stages := plan(now, e, d.Changes)
	script := newScript(stages)
	t.Logf("one of 500 endpoints: %d lines", len(script.owners))
	require.LessOrEqual(t, len(script.owners), 70, "%s", script.text)
}

// One family alone.
func TestFamilies(t *testing.T) {
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT, Families: []model.Family{model.IPv6}})
	_, err := p.Sync(within(t), scenario(t, "dual-stack").State)
	require.NoError(t, err)
	require.NoError(t, p.Check(within(t)))
	listed := saved(t, ns.FD(), NFT)
	require.Contains(t, listed, "nft IPv6")
	require.NotContains(t, listed, "nft IPv4")
	require.NoError(t, p.Cleanup(within(t)))
	require.Empty(t, saved(t, ns.FD(), NFT))
}

// The marks and labels are those of the Config.
func TestMarkAndLabel(t *testing.T) {
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT, MasqueradeMark: 1 << 20, ConntrackLabel: 33, Prefix: "OTHER"})
	_, err := p.Sync(within(t), scenario(t, "external-cluster").State)
	require.NoError(t, err)
	listed := saved(t, ns.FD(), NFT)
	require.Contains(t, listed, "--set-xmark 0x100000/0x100000")
	require.Contains(t, listed, `--label "33" --set`)
	require.NotContains(t, listed, "0x4000")
	require.NotContains(t, listed, "HEADGATE")
}

// Trace sees what is run, warnings reach the Logger, and nothing is left over.
func TestTraceAndLogger(t *testing.T) {
	ns := newNS(t)
	lab.CheckLeaks(t)
	require.NoError(t, restore(ns.FD(), model.IPv4, Legacy, someRules))
	var traced [len(model.Families)]bytes.Buffer
	var log bytes.Buffer
	p, err := New(within(t), Config{NetNS: ns.FD(), Variant: NFT, Logger: slog.New(slog.NewTextHandler(&log, nil)),
		Trace: func(f model.Family, stdin []byte) { traced[f].Write(stdin) }})
	require.NoError(t, err)
	res, err := p.Sync(within(t), scenario(t, "dual-stack").State)
	require.NoError(t, err)
	require.Equal(t, res.Bytes, traced[model.IPv4].Len()+traced[model.IPv6].Len())
	for f := range traced {
		require.Contains(t, traced[f].String(), "COMMIT")
		other := newNS(t)
		require.NoError(t, restore(other.FD(), model.Family(f), NFT, traced[f].String()), "it is all that is needed")
	}
	require.Contains(t, log.String(), "iptables-legacy holds rules too")
	require.NoError(t, p.Close())
}

// Drop what connection tracking calls invalid only if it comes from an endpoint, and only if asked for.
func TestDropInvalid(t *testing.T) {
	state := scenario(t, "external-cluster").State
	state.Services["other"] = model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.199:1")}}}
	state.Endpoints["other"] = state.Endpoints[firstKey(state.Endpoints)]
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT, DropInvalid: true})
	_, err := p.Sync(within(t), state)
	require.NoError(t, err)
	shared := fmt.Sprintf("-s %s/32 -j DROP", state.Endpoints["other"][0].Addr.Addr())
	require.Contains(t, saved(t, ns.FD(), NFT), "-A FORWARD -m conntrack --ctstate INVALID")
	require.Contains(t, saved(t, ns.FD(), NFT), shared)
	fewer := state
	fewer.Services = maps.Clone(state.Services)
	delete(fewer.Services, "other")
	_, err = p.Apply(within(t), model.DiffStates(state, fewer))
	require.NoError(t, err)
	require.Contains(t, saved(t, ns.FD(), NFT), shared, "another service has the endpoint too")
	_, err = p.Apply(within(t), model.DiffStates(fewer, model.State{Node: fewer.Node}))
	require.NoError(t, err)
	require.NotContains(t, saved(t, ns.FD(), NFT), shared)
	require.NoError(t, p.Check(within(t)))
}
