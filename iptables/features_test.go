package iptables

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

func TestProbe(t *testing.T) {
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), RecentSize: 1_000_000})
	report, err := p.Probe(within(t))
	require.NoError(t, err)
	require.NoError(t, report.Err())
	found := findings(report.Warnings)
	for _, what := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "xt_recent"} {
		require.Contains(t, found, what)
		require.NotEmpty(t, found[what].Remedy)
	}
	require.NoError(t, ns.Sysctl("net/ipv4/ip_forward", "1"))
	report, err = p.Probe(within(t))
	require.NoError(t, err)
	require.NotContains(t, findings(report.Warnings), "net.ipv4.ip_forward")

	p.sides[0].missing = []model.Finding{{What: "xt_nat", Err: fmt.Errorf("no: %w", model.ErrNotSupported)}}
	report, err = p.Probe(within(t))
	require.NoError(t, err)
	require.ErrorIs(t, report.Err(), model.ErrNotSupported)
	_, err = p.Sync(within(t), model.State{})
	require.ErrorIs(t, err, model.ErrNotSupported)
	require.ErrorContains(t, err, "xt_nat")
}

// What the kernel lacks is found by trying, one by one; what nothing depends on is done without.
func TestLearn(t *testing.T) {
	ns := newNS(t)
	lacks := func(texts ...string) *side {
		p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
		tools := *p.sides[model.IPv4].tools
		tools.exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
			for _, text := range texts {
				if bytes.Contains(stdin, []byte(text)) {
					return nil, newToolError(program, exited(2), "Couldn't load match `x':No such file or directory\nError occurred at line: 3")
				}
			}
			return execute(ctx, program, args, stdin)
		}
		s := &side{tools: &tools}
		var err error
		s.ability, err = tools.learn(within(t), p.cfg)
		require.NoError(t, err)
		return s
	}
	s := lacks()
	require.Empty(t, s.missing)
	require.Empty(t, s.lacking)
	require.True(t, s.label && s.program && s.sctp && s.recent && s.randomFully && s.echoes)
	s = lacks("-m connlabel", "-m bpf", "-p sctp", "-m recent")
	require.Empty(t, s.missing)
	require.Len(t, s.lacking, 4)
	require.False(t, s.label || s.program || s.sctp || s.recent)
	require.True(t, s.echoes)
	s = lacks("-m statistic")
	require.Len(t, s.missing, 1)
	require.Equal(t, "xt_statistic", s.missing[0].What)
	require.ErrorIs(t, s.missing[0], model.ErrNotSupported)

	p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
	p.sides[model.IPv4].sctp, p.sides[model.IPv4].recent = false, false
	state := modeltest.Big(3, 1)
	svc := state.Services[modeltest.BigName(0)]
	svc.Protocol = model.SCTP
	state.Services[modeltest.BigName(0)] = svc
	svc = state.Services[modeltest.BigName(1)]
	svc.Affinity = time.Hour
	state.Services[modeltest.BigName(1)] = svc
	res, err := p.Sync(within(t), state)
	require.NoError(t, err)
	require.Len(t, res.Rejected, 2)
	require.ErrorIs(t, res.Rejected[0], model.ErrNotSupported)
	require.ErrorIs(t, res.Rejected[1], model.ErrNotSupported)
}

func TestFeatures(t *testing.T) {
	cfg, err := Config{}.settled()
	require.NoError(t, err)
	with := featureSet(features{label: true, program: true}, cfg)
	require.True(t, with.HashPort)
	require.NoError(t, with.Check(model.Service{Balance: model.Maglev, HashPort: true, Affinity: model.MaxAffinity}))
	require.ErrorIs(t, with.Check(model.Service{Balance: model.LeastConn}), model.ErrNotSupported)
	require.True(t, with.Differs("other-ports"))
	require.False(t, with.Differs("foreign-dnat"))
	cfg.RejectOtherPorts = true
	without := featureSet(features{}, cfg)
	require.ErrorIs(t, without.Check(model.Service{Balance: model.Maglev}), model.ErrNotSupported)
	require.ErrorIs(t, without.Check(model.Service{Balance: model.SourceHash}), model.ErrNotSupported)
	require.True(t, without.Differs("foreign-dnat"))
	require.False(t, without.Differs("other-ports"))
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]Config{
		"variant":     {Variant: 3},
		"prefix":      {Prefix: "TOO_LONG_PREFIX"},
		"two bits":    {MasqueradeMark: 3},
		"label":       {ConntrackLabel: 128},
		"family":      {Families: []model.Family{7}},
		"recent":      {RecentSize: -1},
		"lock":        {LockWait: -1},
		"timeout":     {Timeout: -1},
		"namespace":   {NetNS: -5},
		"directory":   {Dir: "/nonexistent"},
		"not a dir":   {Dir: "/etc/passwd"},
		"bad address": {NetNS: 9999},
	} {
		_, err := New(context.Background(), cfg)
		require.Error(t, err, name)
		if name != "bad address" {
			require.ErrorIs(t, err, model.ErrInvalid, name)
		}
	}
	require.Equal(t, "auto legacy nft variant 9", fmt.Sprint(Auto, Legacy, NFT, Variant(9)))
}
