package conntrack

import (
	"slices"
	"testing"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
	"github.com/stretchr/testify/require"
)

// TestVectors runs the cases that users of this kind of software rely on against a real table.
func TestVectors(t *testing.T) {
	cases := modeltest.ConntrackCases()
	require.GreaterOrEqual(t, len(cases), 10)
	for _, tc := range cases {
		for _, way := range []string{"applied", "synced"} {
			t.Run(tc.ID+"/"+way, func(t *testing.T) {
				ns := lab.StartNetNS(t, "node")
				c := newCleaner(t, ns, Config{Protocols: []model.Protocol{model.UDP}})
				synced(c, tc.Before)
				require.Zero(t, settle(t, c))
				var want, left []string
				for i, f := range tc.Flows {
					// Several may differ in nothing but who answers, which no table can hold.
					f.From = at(f.From.Addr(), f.From.Port()+uint16(i))
					tc.Flows[i].From = f.From
					put(t, ns, entry{proto: f.Protocol.Number(), client: f.From, to: f.To, from: f.Endpoint})
					if !f.Forgotten {
						want = append(want, f.ID)
					}
				}
				if way == "synced" {
					synced(c, tc.After)
				} else {
					applied(c, model.DiffStates(tc.Before, tc.After))
				}
				settle(t, c)
				for _, e := range table(t, ns) {
					i := slices.IndexFunc(tc.Flows, func(f modeltest.ConntrackFlow) bool { return f.From == e.client })
					left = append(left, tc.Flows[i].ID)
				}
				require.ElementsMatch(t, want, left, tc.Doc)
			})
		}
	}
}
