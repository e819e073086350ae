package iptables

import (
	"bytes"
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// Check reads nothing while nobody writes, reads everything when somebody did, and only the structure when it has just
// read everything and that took long.
func TestCheckIsCheap(t *testing.T) {
	eachVariant(t, func(t *testing.T, v Variant) {
		ns := newNS(t)
		p := open(t, Config{NetNS: ns.FD(), Variant: v})
		_, err := p.Sync(within(t), scenario(t, "external-local").State)
		require.NoError(t, err)
		reads := 0
		for _, s := range p.sides {
			s.exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
				reads++
				return execute(ctx, program, args, stdin)
			}
		}
		require.NoError(t, p.Check(within(t)))
		if v == NFT {
			require.Zero(t, reads, "nobody wrote")
		}
		reads = 0
		require.NoError(t, p.Check(within(t)))
		require.Zero(t, reads, "nobody wrote")
		require.NoError(t, restore(ns.FD(), model.IPv4, v, someRules))
		require.NoError(t, p.Check(within(t)))
		require.Positive(t, reads, "somebody did")
		reads = 0
		require.NoError(t, p.Check(within(t)))
		require.Zero(t, reads, "that was looked at already")

		p.checks.nextFull = time.Now().Add(time.Hour)
		require.NoError(t, restore(ns.FD(), model.IPv4, v, "*nat\n-I HEADGATE-MASQUERADE 1 -j RETURN\nCOMMIT\n"))
		require.NoError(t, p.Check(within(t)), "the structure is as it was")
		require.Zero(t, reads)
		require.NoError(t, restore(ns.FD(), model.IPv4, v, "*nat\n-F PREROUTING\nCOMMIT\n"))
		require.ErrorIs(t, p.Check(within(t)), model.ErrDrift)
		p.checks.nextFull = time.Time{}
		err = p.Check(within(t))
		require.ErrorIs(t, err, model.ErrDrift)
		require.ErrorContains(t, err, "HEADGATE-MASQUERADE")
		require.ErrorContains(t, err, "PREROUTING")
	})
}

// What others break while a call writes, behind its back, is not taken for its own doing.
func TestDamageMeanwhileIsNoticed(t *testing.T) {
	from, to := scenario(t, "external-local").State, scenario(t, "no-endpoints").State
	eachVariant(t, func(t *testing.T, v Variant) {
		for name, damage := range map[string]string{
			"jump":  "*nat\n-F PREROUTING\nCOMMIT\n",
			"rule":  "*nat\n-I HEADGATE-MASQUERADE 1 -j RETURN\nCOMMIT\n",
			"chain": "*nat\n-X HEADGATE-CANARY\nCOMMIT\n",
		} {
			for _, late := range []bool{false, true} {
				ns := newNS(t)
				p := open(t, Config{NetNS: ns.FD(), Variant: v, Families: []model.Family{model.IPv4}})
				_, err := p.Sync(within(t), from)
				require.NoError(t, err)
				require.NoError(t, p.Check(within(t)))
				four := p.sides[0]
				four.exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
					if program != four.restore {
						return execute(ctx, program, args, stdin)
					}
					if !late {
						require.NoError(t, restore(ns.FD(), model.IPv4, v, damage))
					}
					out, err := execute(ctx, program, args, stdin)
					if late {
						require.NoError(t, restore(ns.FD(), model.IPv4, v, damage))
					}
					return out, err
				}
				res, err := p.Apply(within(t), model.DiffStates(from, to))
				require.NoError(t, err)
				require.Positive(t, res.Written())
				four.exec = execute
				require.ErrorIs(t, p.Check(within(t)), model.ErrDrift, "%s, late: %t", name, late)
			}
		}
	})
}

// Where the programs show rules in other words than they were given, Check compares how many there are, and Sync writes what
// it does not recognise.
func TestOtherWords(t *testing.T) {
	ns := newNS(t)
	p := open(t, Config{NetNS: ns.FD(), Variant: NFT})
	for _, s := range p.sides {
		require.True(t, s.echoes, "these programs show what they were given")
		s.echoes = false
		s.exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
			out, err := execute(ctx, program, args, stdin)
			return bytes.ReplaceAll(out, []byte("--set-xmark 0x4000/0x4000"), []byte("--or-mark 0x4000")), err
		}
	}
	state := scenario(t, "external-local").State
	_, err := p.Sync(within(t), state)
	require.NoError(t, err)
	p.checks.unsure = true
	require.NoError(t, p.Check(within(t)))
	res, err := p.Sync(within(t), state)
	require.NoError(t, err)
	require.Positive(t, res.Written())
	require.NoError(t, restore(ns.FD(), model.IPv4, NFT, "*nat\n-D HEADGATE-MASQUERADE 1\nCOMMIT\n"))
	require.ErrorIs(t, p.Check(within(t)), model.ErrDrift)
}
