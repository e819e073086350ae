package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

// TestManyAtOnce adds 50 containers at once, replaces half of them by others at once, and deletes all at once. Each has a
// port of its own, and all share a service.
func TestManyAtOnce(t *testing.T) {
	const many = 50
	w := newWorld(t, map[string]any{
		"services": map[string]any{"web": map[string]any{"frontends": []string{"10.96.0.10:80"}, "port": 8080}},
		"join":     []string{"web"},
	})
	var all []*site.Container
	for i := range many + many/2 {
		all = append(all, w.container(fmt.Sprint("c", i), 8080, site.Port(10000+i, 8080)))
	}
	first, leaving, staying, coming := all[:many], all[:many/2], all[many/2:many], all[many:]
	// is sees that exactly these containers are there, in the file and in the kernel.
	is := func(there []*site.Container) {
		t.Helper()
		var ids []string
		for i, c := range all {
			at := netip.AddrPortFrom(site.Node[0], uint16(10000+i))
			a, err := w.Outside.Ask(t.Context(), lab.Query{Proto: lab.TCP, To: at})
			require.NoError(t, err)
			if !slices.Contains(there, c) {
				require.Equal(t, lab.Refused, a.Verdict, "%s", c.Name())
				continue
			}
			require.Equal(t, lab.Answered, a.Verdict, "%s", c.Name())
			require.Equal(t, c.Runtime.ContainerID, a.Name)
			ids = append(ids, c.Runtime.ContainerID)
		}
		require.ElementsMatch(t, ids, w.recorded())
		for _, c := range there[:min(3, len(there))] {
			require.NoError(t, w.Check(t.Context(), c))
		}
	}

	require.NoError(t, w.atOnce(first, nil))
	is(first)
	got, err := w.Outside.AskMany(t.Context(), lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort("10.96.0.10:80")}, 20*many)
	require.NoError(t, err)
	require.Len(t, got.ByName, many, "some are not among those that serve") // chance to miss one: 1 in 10 millions

	// Nobody who is talking to those that stay notices.
	load := lab.Load{Query: lab.Query{Proto: lab.TCP, To: netip.AddrPortFrom(site.Node[0], 10000+many/2)}, Workers: 1, Rate: 50, Flows: 1}
	report, err := w.Outside.Load(t.Context(), load, func(context.Context) error { return w.atOnce(coming, leaving) })
	require.NoError(t, err)
	require.Zero(t, report.Failed, "%v", report.Failures)
	is(slices.Concat(staying, coming))

	require.NoError(t, w.atOnce(nil, slices.Concat(staying, coming)))
	is(nil)
	require.Empty(t, w.nft("list", "ruleset"))
}

// atOnce adds and deletes containers, all at once.
func (w *world) atOnce(add, del []*site.Container) error {
	var wg sync.WaitGroup
	var mu sync.Mutex
	var errs []error
	do := func(f func() error) {
		wg.Go(func() {
			if err := f(); err != nil {
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, err)
			}
		})
	}
	for _, c := range add {
		do(func() error { _, err := w.Add(w.t.Context(), c); return err })
	}
	for _, c := range del {
		do(func() error { return w.Del(w.t.Context(), c) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
