package iptables

import (
	"bytes"
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// The programs are killed half way, after each of the transactions of a change, or the whole process is. The caller is told,
// must call Sync, and that, or a new Programmer's first one, completes the change.
func TestKilledHalfWay(t *testing.T) {
	from, to := scenario(t, "external-local").State, scenario(t, "no-endpoints").State
	to.Services[firstKey(from.Endpoints)] = from.Services[firstKey(from.Endpoints)] // it loses its endpoints
	eachVariant(t, func(t *testing.T, v Variant) {
		whole := newNS(t)
		_, err := open(t, Config{NetNS: whole.FD(), Variant: v}).Sync(within(t), to)
		require.NoError(t, err)
		want := inOrder(saved(t, whole.FD(), v))
		most := 0
		for done := 0; done <= most; done++ {
			ns := newNS(t)
			p := open(t, Config{NetNS: ns.FD(), Variant: v})
			_, err := p.Sync(within(t), from)
			require.NoError(t, err)
			four := p.sides[model.IPv4]
			four.exec = func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
				parts := bytes.SplitAfter(stdin, []byte("COMMIT\n"))
				if program != four.restore || len(parts) < 2 {
					return execute(ctx, program, args, stdin)
				}
				most = max(most, len(parts)-2)
				_, err := execute(ctx, program, args, bytes.Join(parts[:done], nil))
				return nil, newToolError(program, errors.Join(err, errors.New("signal: killed")), "")
			}
			_, err = p.Apply(within(t), model.DiffStates(from, to))
			require.ErrorContains(t, err, "killed")
			_, err = p.Apply(within(t), model.Diff{})
			require.ErrorIs(t, err, model.ErrNotSynced)
			require.ErrorIs(t, p.Check(within(t)), model.ErrNotSynced)
			four.exec = execute
			if done%2 == 1 { // the process was killed too
				p = open(t, Config{NetNS: ns.FD(), Variant: v})
			}
			_, err = p.Sync(within(t), to)
			require.NoError(t, err)
			require.NoError(t, p.Check(within(t)))
			require.Equal(t, want, inOrder(saved(t, ns.FD(), v)), "after %d transactions", done)
		}
		require.Positive(t, most, "the change is one transaction: there is no half of it")
	})
}
