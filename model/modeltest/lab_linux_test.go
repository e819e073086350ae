package modeltest

import (
	"context"
	"net/netip"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

func TestVectorsOnTheFake(t *testing.T) { RunVectors(t, FakeTarget()) }

// The vectors on a real kernel, with rules of the plainest kind.
func TestVectorsOnTheReference(t *testing.T) {
	lab.NeedRoot(t)
	RunVectors(t, referenceTarget(t, nil))
}

// What is wrong with a ruleset shows in the vectors that are about it.
func TestVectorsNoticeFaults(t *testing.T) {
	lab.NeedRoot(t)
	without := func(text string) func(string) string {
		return func(line string) string {
			if strings.Contains(line, text) {
				return ""
			}
			return line
		}
	}
	with := func(old, new string) func(string) string {
		return func(line string) string { return strings.ReplaceAll(line, old, new) }
	}
	for name, c := range map[string]struct {
		fault   func(line string) string
		vectors []string
	}{
		"nobody is masqueraded":       {without("0x4000 == 0x4000"), []string{"clusterip-single", "masq-matrix-detector", "nodeport-primary-address"}},
		"everybody is masqueraded":    {with("meta mark & 0x4000 == 0x4000", ""), []string{"clusterip-single", "lb-without-node-port", "ipv6-local-policies"}},
		"no hairpin":                  {without("ct status dnat"), []string{"clusterip-shared-backend", "hairpin-external-frontends"}},
		"one endpoint for all":        {with("numgen random mod 2", "numgen random mod 1"), []string{"clusterip-mixed-target-ports", "lb-open"}},
		"a wrong port":                {with(":8443", ":8444"), []string{"clusterip-multi-port-multi-proto"}},
		"drop for reject":             {with("reject", "drop"), []string{"no-backends-reject", "etp-local-no-backends"}},
		"reject for drop":             {with("drop", "reject"), []string{"itp-local-none-local"}},
		"nobody is refused":           {without("reject"), []string{"terminating-local-none-usable", "no-backends-name-mismatch"}},
		"ranges let in everybody":     {without("rule ip reference ranges "), []string{"lb-source-ranges", "dualstack-v4-half"}},
		"looped packets are shut out": {with("192.0.2.10/31, ", ""), []string{"lb-source-ranges"}},
		"node ports everywhere":       {with("ip daddr { 198.51.100.10/32 }", ""), []string{"nodeport-primary-address"}},
		"node ports nowhere":          {without("reference nodeports fib"), []string{"nodeport-cidr-list", "ipv6-nodeport-all"}},
		"no short cut":                {without("fib saddr type local"), []string{"etp-local-mixed-backends"}},
		"no affinity":                 {without("update @"), []string{"aff-per-client", "aff-node-client"}},
		"affinity by chance":          {with(" saddr @", " daddr @"), []string{"aff-survives-scale-up"}},
		"interfaces do not matter":    {with("iifname", "meta skuid 7 iifname"), []string{"detect-by-interface-prefix"}},
	} {
		t.Run(name, func(t *testing.T) {
			for _, id := range c.vectors {
				require.NotEmpty(t, mistakes(t, referenceTarget(t, c.fault), id), "nothing noticed in %s", id)
				require.Empty(t, mistakes(t, referenceTarget(t, nil), id), id)
			}
		})
	}
}

// A Programmer that leaves things as they are does not get through a sequence.
func TestVectorsNoticeStaleRules(t *testing.T) {
	lab.NeedRoot(t)
	target := referenceTarget(t, nil)
	inner := target.New
	target.New = func(tb testing.TB, w World) model.Programmer { return idle{inner(tb, w)} }
	for _, v := range Vectors() {
		stays := v.ID == "aff-survives-scale-up" // on purpose
		if len(v.Steps) > 1 && !stays {
			require.NotEmpty(t, mistakes(t, target, v.ID), v.ID)
		}
	}
}

// idle is a Programmer whose Apply does nothing.
type idle struct{ model.Programmer }

func (idle) Apply(context.Context, model.Diff) (model.Result, error) { return model.Result{}, nil }

// mistakes plays a vector, in its own family, and returns what is wrong.
func mistakes(t *testing.T, target Target, id string) []string {
	t.Helper()
	r := &vectorRun{root: t, target: target, places: map[string]*vectorPlace{}}
	var out []string
	for _, v := range Vectors() {
		if v.ID != id {
			continue
		}
		p := r.at(t, v.Steps[0].State.Node)
		met := map[string]netip.AddrPort{}
		for i, step := range v.Steps {
			if i == 0 {
				p.sync(t, step.State)
			} else {
				p.apply(t, v.Steps[i-1].State, step.State)
			}
			for _, packet := range step.Packets {
				if err := p.send(step.State.Node, packet, met); err != nil {
					out = append(out, packet.Name+": "+err.Error())
				}
			}
		}
	}
	return out
}

func TestLabHasWhatTheSuiteAsksFor(t *testing.T) {
	node := StageNode()
	w := NewLab(t, node)
	require.Implements(t, (*Connector)(nil), w)
	require.Implements(t, (*Addresser)(nil), w)
	require.Implements(t, (*Preparer)(nil), w)
	require.Positive(t, w.NetNS())

	// Without rules, everything goes where the routes say.
	for _, c := range []client{pod, remotePod, theNode, outside, vipAt("172.20.0.10"), podAt("10.244.3.7")} {
		for _, proto := range model.Protocols {
			for _, to := range []string{"172.20.0.10:80", "198.51.100.10:80", "198.51.101.10:80", "10.128.0.11:8080", "203.0.113.9:443"} {
				outcomes, err := w.Send(t.Context(), c.over(proto, to).p, 2)
				require.NoError(t, err, "%s %s %s", c.name, proto, to)
				for _, o := range outcomes {
					require.Equal(t, Untouched, o.Verdict, "%s %s %s", c.name, proto, to)
				}
			}
		}
		outcomes, err := w.Send(t.Context(), c.pings("172.20.0.10").p, 1)
		require.NoError(t, err)
		require.Equal(t, []Outcome{{Verdict: Untouched, Source: c.v4}}, outcomes)
	}
}

func TestLabFollowsTheNodesAddresses(t *testing.T) {
	lab.NeedRoot(t)
	w := NewLab(t, StageNode()).(*labWorld)
	p := referenceTarget(t, nil).New(t, w)
	svc := model.Service{Frontends: at(nodePort(30080))}
	_, err := p.Sync(t.Context(), stateOf(StageNode(), service("np", svc, here("10.128.0.11:8080"))))
	require.NoError(t, err)
	for _, a := range []string{"198.51.100.77", "2001:db8:a::77"} {
		to := netip.AddrPortFrom(addr(a), 30080).String()
		send := func() Outcome {
			outcomes, err := w.Send(t.Context(), outside.to(to).p, 1)
			require.NoError(t, err)
			return outcomes[0]
		}
		require.Equal(t, Untouched, send().Verdict)
		require.NoError(t, w.AddAddr(addr(a)))
		if addr(a).Is4() {
			require.Equal(t, Translated, send().Verdict)
		} else {
			require.Equal(t, Refused, send().Verdict, "no endpoint of that family")
		}
		require.NoError(t, w.DelAddr(addr(a)))
		require.Equal(t, Untouched, send().Verdict)
	}
}

func TestLabConnectionsStayOpen(t *testing.T) {
	lab.NeedRoot(t)
	w := NewLab(t, StageNode()).(*labWorld)
	p := referenceTarget(t, nil).New(t, w)
	state := func(e string) model.State {
		return stateOf(StageNode(), service("s", model.Service{Frontends: at(internal("172.20.0.10:80"))}, here(e)))
	}
	_, err := p.Sync(t.Context(), state("10.128.0.11:8080"))
	require.NoError(t, err)
	for _, c := range []client{pod, theNode, outside} {
		conn, err := w.Open(t.Context(), c.to("172.20.0.10:80").p)
		require.NoError(t, err, c.name)
		require.Equal(t, ap("10.128.0.11:8080"), conn.Endpoint())
		_, err = p.Sync(t.Context(), state("10.128.0.12:8080"))
		require.NoError(t, err)
		require.NoError(t, conn.Exchange(t.Context()), c.name)
		_, err = p.Sync(t.Context(), state("10.128.0.11:8080"))
		require.NoError(t, err)
		require.NoError(t, conn.Close())
	}
}

// An endpoint that the client does not hear is a mistake, not an outcome.
func TestLabNoticesThatAnswersAreLost(t *testing.T) {
	lab.NeedRoot(t)
	w := NewLab(t, StageNode()).(*labWorld)
	r := &reference{ns: w.World.NetNS()}
	require.NoError(t, r.nft(t.Context(), `table ip t {
		chain p { type nat hook prerouting priority -100; ip daddr 172.20.0.10 tcp dport 80 dnat to 10.128.0.11:8080; }
		chain f { type filter hook forward priority 0; ip saddr 10.128.0.11 drop; }
	}`))
	_, err := w.Send(t.Context(), pod.to("172.20.0.10:80").p, 1)
	require.ErrorContains(t, err, "10.128.0.11:8080 was reached from 10.128.0.100")
	require.ErrorContains(t, err, "no answer")
}

func BenchmarkLabSend(b *testing.B) {
	w := NewLab(b, StageNode())
	for b.Loop() {
		_, err := w.Send(b.Context(), pod.to("172.20.0.10:80").p, 1)
		require.NoError(b, err)
	}
}

func BenchmarkNewLab(b *testing.B) {
	for b.Loop() {
		NewLab(b, StageNode())
	}
}
