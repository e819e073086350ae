package passed

import (
	"context"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// What is to be counted by hand: one address among others that go elsewhere.
const rules = `*nat
:FRONT - [0:0]
:TREE - [0:0]
:SERVICE - [0:0]
:EMPTY - [0:0]
-A PREROUTING -j FRONT
-A FRONT -m comment --comment "says -j DROP" -j EMPTY
-A FRONT -d 10.96.0.0/16 -j TREE
-A TREE -d 10.96.1.0/24 -j SERVICE
-A TREE -d 10.96.0.0/24 -g SERVICE
-A TREE -j RETURN
-A SERVICE -m mark --mark 0x1
-A SERVICE -j MARK --set-xmark 0x4000/0x4000
-A SERVICE -s 192.0.2.1/32 -p tcp -j DNAT --to-destination 10.128.0.11:8081
-A SERVICE -p tcp -j DNAT --to-destination 10.128.0.11:8080
-A SERVICE -j RETURN
-A POSTROUTING -m mark --mark 0x4000/0x4000 -j MASQUERADE
COMMIT
`

func TestMeasure(t *testing.T) {
	lab.NeedRoot(t)
	for _, variant := range []string{"legacy", "nft"} {
		t.Run(variant, func(t *testing.T) {
			_, err := Measure(t.Context(), 3, "iptables-"+variant+"-save", func(ctx context.Context, node *lab.NetNS, s model.State) error {
				return restore(ctx, node, variant, rules)
			})
			require.ErrorContains(t, err, "to the last node port: not answered")

			ns := lab.StartNetNS(t, "count")
			require.NoError(t, restore(t.Context(), ns, variant, rules))
			before, err := Count(t.Context(), ns, "iptables-"+variant+"-save")
			require.NoError(t, err)
			require.Len(t, before.Of("nat"), 12)
			require.Empty(t, before.Of("filter"))
			require.Zero(t, before.Of("nat")[0].Packets)
		})
	}
}

// The rule that leads in, two of FRONT, two of TREE, and three of SERVICE up to the one that translates.
func TestPassedSince(t *testing.T) {
	rule := func(text string, packets int) Rule { return Rule{text, packets} }
	nat := func(chain string) place { return place{"nat", chain} }
	after := Counts{
		nat("PREROUTING"): {rule("-j FRONT", 1), rule("-j NEVER", 0)},
		nat("FRONT"):      {rule("-j EMPTY", 1), rule("-j TREE", 1), rule("-j LOG", 0)},
		nat("EMPTY"):      nil,
		nat("TREE"):       {rule("-d 10.0.0.1/32 -j SERVICE", 0), rule("-g SERVICE", 1), rule("-j RETURN", 0)},
		nat("SERVICE"):    {rule("-m mark --mark 0x1", 1), rule("-j MARK --set-xmark 0x1/0x1", 1), rule("-j DNAT --to-destination 10.0.0.9", 5), rule("-j RETURN", 0)},
	}
	before := Counts{}
	for at, rules := range after {
		before[at] = make([]Rule, len(rules))
	}
	before[nat("SERVICE")][2].Packets = 4
	require.Equal(t, 1+2+2+3, after.passedSince(before, "nat", "PREROUTING"))
	require.Zero(t, after.passedSince(before, "filter", "FORWARD"))

	// Had it come back from SERVICE, it would have gone on behind the jump to TREE, not behind the goto.
	before[nat("SERVICE")][2].Packets, before[nat("SERVICE")][3].Packets = 5, -1
	require.Equal(t, 1+3+2+4+1, after.passedSince(before, "nat", "PREROUTING"))
}

func TestCrowd(t *testing.T) {
	for _, f := range model.Families {
		c := NewCrowd(f, 1000)
		require.Len(t, c.State.Services, 10+10+1+3)
		frontends := 0
		for name, svc := range c.State.Services {
			frontends += len(svc.Frontends)
			require.Len(t, c.State.Endpoints[name], 1)
		}
		require.Equal(t, 1000+1000+100, frontends)
		require.Equal(t, f, model.FamilyOf(c.Addr.Addr()))
		require.Equal(t, f, model.FamilyOf(c.NodePort.Addr()))
		require.Equal(t, uint16(30_999), c.NodePort.Port())
		require.Equal(t, uint16(20_099), c.Port.Port())
	}
}

func restore(ctx context.Context, ns *lab.NetNS, variant, rules string) error {
	cmd := ns.Command(ctx, "iptables-"+variant+"-restore", "-w", "5")
	cmd.Stdin = strings.NewReader(rules)
	_, err := cmd.Output()
	return err
}
