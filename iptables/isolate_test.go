package iptables

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// Whatever the programs say about lines, it is the services that the kernel refuses which are rejected, all others are
// programmed, and a later call tries anew.
func TestIsolation(t *testing.T) {
	all := modeltest.Big(40, 2)
	for _, lines := range []string{"right", "one off", "of another service", "none"} {
		t.Run(lines, func(t *testing.T) {
			t.Parallel()
			ns := newNS(t)
			p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
			bad := map[model.ServiceName]bool{modeltest.BigName(7): true, modeltest.BigName(30): true}
			attempts := 0
			real := p.sides[model.IPv4].exec
			p.sides[model.IPv4].exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
				if program == p.sides[model.IPv4].restore {
					attempts++
				}
				for i, line := range bytes.Split(stdin, []byte("\n")) {
					for name := range bad {
						if bytes.Contains(line, []byte(comment(string(name)))) {
							said := map[string]int{"right": i + 1, "one off": i + 2, "of another service": bytes.Count(stdin, []byte("\n")) - 30}[lines]
							text := "line failed"
							if said > 0 {
								text = fmt.Sprintf("line %d failed", said)
							}
							return nil, newToolError(program, exited(1), text)
						}
					}
				}
				return real(ctx, program, args, stdin)
			}
			rejected := func(res model.Result, err error) []model.ServiceName {
				t.Helper()
				require.NoError(t, err)
				var names []model.ServiceName
				for _, e := range res.Rejected {
					require.Equal(t, "commit", e.Op)
					names = append(names, e.Service)
				}
				return names
			}
			want := []model.ServiceName{modeltest.BigName(7), modeltest.BigName(30)}
			slices.Sort(want)
			require.Equal(t, want, rejected(p.Sync(within(t), all)))
			require.LessOrEqual(t, attempts, 40, "it is found by halves, not one by one")
			require.NoError(t, p.Check(within(t)))
			listed := saved(t, ns.FD(), NFT)
			for i := range 40 {
				require.Equal(t, !bad[modeltest.BigName(i)], strings.Contains(listed, comment(string(modeltest.BigName(i)))), "service %d", i)
			}
			next := modeltest.Big(40, 2)
			next.Endpoints = maps.Clone(all.Endpoints)
			next.Endpoints[modeltest.BigName(12)] = []model.Endpoint{modeltest.BigEndpoint(1_000_000)}
			next.Endpoints[modeltest.BigName(7)] = []model.Endpoint{modeltest.BigEndpoint(1_000_001)}
			require.Equal(t, want[:1], rejected(p.Apply(within(t), model.DiffStates(all, next))))
			clear(bad)
			require.Empty(t, rejected(p.Sync(within(t), next)))
			require.NoError(t, p.Check(within(t)))
		})
	}
}

// A service of which the kernel does not even take what it was before does not hold up the others.
func TestRefusedAltogether(t *testing.T) {
	all, bad := modeltest.Big(10, 2), modeltest.BigName(7)
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
	_, err := p.Sync(within(t), all)
	require.NoError(t, err)
	out, err := ns.Command(within(t), "iptables-nft", "-t", "nat", "-F").CombinedOutput()
	require.NoError(t, err, string(out))
	p.sides[model.IPv4].exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
		for i, line := range bytes.Split(stdin, []byte("\n")) {
			if bytes.Contains(line, []byte(comment(string(bad)))) {
				return nil, newToolError(program, exited(1), fmt.Sprintf("line %d failed", i+1))
			}
		}
		return execute(ctx, program, args, stdin)
	}
	res, err := p.Sync(within(t), all)
	require.NoError(t, err)
	require.Len(t, res.Rejected, 1)
	require.Equal(t, bad, res.Rejected[0].Service)
	listed := saved(t, ns.FD(), NFT)
	for i := range 10 {
		name := modeltest.BigName(i)
		require.Equal(t, name != bad, strings.Contains(listed, comment(string(name))), "service %d", i)
	}
}

// What is refused though no service is to blame is an error, not a rejection of everybody.
func TestRefusalOfEverything(t *testing.T) {
	p := open(t, Config{NetNS: newNS(t).FD(), Variant: NFT})
	p.sides[model.IPv6].exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
		if program == p.sides[model.IPv6].restore {
			return nil, newToolError(program, exited(1), "line 3 failed")
		}
		return execute(ctx, program, args, stdin)
	}
	_, err := p.Sync(within(t), modeltest.Big(3, 1))
	require.ErrorContains(t, err, "line 3 failed")
	_, err = p.Apply(within(t), model.Diff{})
	require.ErrorIs(t, err, model.ErrNotSynced)
}

// A Programmer with more wishes than the kernel can fulfil stays usable: errors.Join keeps what is behind each.
func TestErrorsKeepTheirMeaning(t *testing.T) {
	err := errors.Join(&scriptError{err: newToolError("a", exited(4), "")}, errors.New("other"))
	require.ErrorIs(t, err, model.ErrBusy)
	require.Nil(t, refusalOf(err))
	err = fmt.Errorf("iptables: %w", errors.Join(&scriptError{script: &script{owners: []model.ServiceName{"", "svc"}}, err: newToolError("a", exited(1), "line 2 failed")}))
	require.NotNil(t, refusalOf(err))
	w := &work{candidates: []model.ServiceName{"svc"}}
	name, ok := w.blamed(err)
	require.True(t, ok)
	require.Equal(t, model.ServiceName("svc"), name)
}
