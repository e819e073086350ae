package ipvs

import (
	"context"
	"fmt"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// One endpoint that comes or goes costs the same requests and exchanges however many services there are. The table is
// written only for one on this node, whose connections to itself are to be masqueraded.
func TestWorkOfOneEndpoint(t *testing.T) {
	const perService = 10
	for _, n := range []int{10, 1000} {
		for name, c := range map[string]struct {
			number       int // of the endpoint, behind those that there are
			transactions int // of the table
		}{"elsewhere": {1, 0}, "on this node": {perService, 1}} {
			t.Run(fmt.Sprintf("%s among %d services", name, n), func(t *testing.T) {
				ctx, s, state := context.Background(), newStand(t, Config{}), modeltest.Big(n, perService)
				_, err := s.Sync(ctx, state)
				require.NoError(t, err)
				require.NoError(t, s.Check(ctx))
				tracker := model.NewTracker(state.Node)
				tracker.Replace(state)
				tracker.Diff()
				service := modeltest.BigName(3)
				few := state.Endpoints[service]
				more := append(slices.Clone(few), modeltest.BigEndpoint(n*perService+c.number))
				apply := func(eps []model.Endpoint) (kinds []opKind, transactions int) {
					s.k.sent, s.k.counted = nil, nil
					tracker.SetEndpoints(service, eps)
					res, err := s.Apply(ctx, tracker.Diff())
					require.NoError(t, err)
					for _, o := range s.k.sent {
						kinds = append(kinds, o.kind)
					}
					return kinds, res.Transactions
				}
				kinds, transactions := apply(more)
				require.Equal(t, []opKind{addServer}, kinds)
				require.Empty(t, s.k.counted, "nothing goes whose connections would have to be counted")
				require.Equal(t, 1+c.transactions, transactions)

				kinds, transactions = apply(few)
				require.Equal(t, []opKind{editServer, delServer}, kinds, "no new connections, and gone when none is open")
				require.Len(t, s.k.counted, 1, "the real servers of one virtual service are listed, and once")
				require.Equal(t, 2+c.transactions, transactions)
			})
		}
	}
}
