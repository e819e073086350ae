package modeltest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// A stormStep is one thing that may happen.
type stormStep struct {
	name string
	// harm says that connections may be lost meanwhile.
	harm bool
	// do does it, and reports whether it could.
	do func(t *testing.T, s *storm) bool
}

// steps returns all that may happen, what shall happen more often more than once.
func (s *storm) steps() []stormStep {
	all := []stormStep{
		{"restart", false, restartCalmly}, {"restart in the middle", false, restartInTheMiddle}, {"resync", false, resync},
		{"remove and begin again", true, removeAndBegin},
	}
	for range 8 {
		all = append(all, stormStep{"change", false, func(_ *testing.T, s *storm) bool { s.change(); return true }})
	}
	hooks := s.h.target
	for _, name := range slices.Sorted(maps.Keys(hooks.Damage)) {
		all = append(all, stormStep{name, true, func(t *testing.T, s *storm) bool {
			if s.g.one(2) {
				s.change() // at the same time
			}
			if hooks.Damage[name](t, s.w) != nil {
				return false
			}
			return !s.c.Overlooks || resync(t, s)
		}})
	}
	for _, name := range slices.Sorted(maps.Keys(s.c.Disturb)) {
		all = append(all, stormStep{name, false, func(t *testing.T, s *storm) bool {
			end := s.c.Disturb[name](t, s.w)
			defer end()
			s.change()
			time.Sleep(time.Duration(s.g.chance.IntN(100)) * time.Millisecond)
			return true
		}})
	}
	for _, name := range slices.Sorted(maps.Keys(s.c.Fail)) {
		all = append(all, stormStep{name, false, func(t *testing.T, s *storm) bool {
			s.c.Fail[name](t, s.w)
			s.change()
			return true
		}})
	}
	if hooks.Refuse != nil {
		all = append(all, stormStep{"refuse a service", false, refuseOne})
	}
	if s.c.Child != nil {
		all = append(all, stormStep{"kill a process", false, killChild})
	}
	return all
}

// step lets one thing happen, and requires that all is well afterwards.
func (s *storm) step(t *testing.T) {
	t.Helper()
	all := s.steps()
	what := all[s.g.chance.IntN(len(all))]
	s.trail = append(s.trail, what.name)
	s.trail = s.trail[max(0, len(s.trail)-30):]
	if what.harm {
		s.load.pause()
		defer s.load.resume()
	}
	if !what.do(t, s) {
		return
	}
	s.counts[what.name]++
	s.settle(t)
	s.growth.sample()
	s.load.require(t)
}

// change changes what is wanted, a few things at once from several goroutines or by a whole new state.
func (s *storm) change() {
	for range 1 + s.g.chance.IntN(4) {
		next := s.g.mutate(s.want)
		sensible(&next)
		if s.g.one(5) {
			_ = s.first.Replace(next) // the node is always valid
		} else {
			s.tell(next)
		}
		s.want = next
	}
}

// tell tells the Syncer what leads from what is wanted to the next state.
func (s *storm) tell(next model.State) {
	d := model.DiffStates(s.want, next)
	var all sync.WaitGroup
	defer all.Wait()
	if d.Node != nil {
		all.Go(func() { _ = s.first.SetNode(*d.Node) })
	}
	for _, c := range d.Changes {
		all.Go(func() {
			switch {
			case c.After == nil:
				s.first.DeleteService(c.Name)
			default:
				s.first.SetEndpoints(c.Name, c.After.Endpoints)
				s.first.SetService(c.Name, c.After.Service)
			}
		})
	}
	for name := range next.Endpoints { // of services that are not there
		if _, ok := next.Services[name]; !ok {
			all.Go(func() { s.first.SetEndpoints(name, next.Endpoints[name]) })
		}
	}
}

func restartCalmly(t *testing.T, s *storm) bool {
	s.first.end(t)
	s.first = s.start(t, s.h.target.New, s.want, 0)
	return true
}

// restartInTheMiddle cuts off whatever is being written.
func restartInTheMiddle(t *testing.T, s *storm) bool {
	s.first.end(t)
	s.first = s.start(t, s.h.target.New, s.want, -1)
	for range s.g.chance.IntN(4) {
		s.change()
	}
	time.Sleep(time.Duration(s.g.chance.IntN(3000)) * time.Microsecond)
	return restartCalmly(t, s)
}

func resync(t *testing.T, s *storm) bool {
	s.change()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, s.first.Resync(ctx))
	return true
}

// removeAndBegin removes everything and begins anew.
func removeAndBegin(t *testing.T, s *storm) bool {
	s.first.stop()
	require.NoError(t, <-s.first.done)
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	for s.first.p.Cleanup(ctx) != nil { // somebody may be in the way
		require.NoError(t, ctx.Err(), "Cleanup")
	}
	require.NoError(t, s.first.p.Close())
	s.first = s.start(t, s.h.target.New, s.want, 0)
	return true
}

// refuseOne makes the kernel refuse one service for a while: all others go on.
func refuseOne(t *testing.T, s *storm) bool {
	no := errors.New("the kernel says no")
	s.h.target.Refuse(t, s.w, poisonName, no)
	next := s.g.mutate(s.want)
	sensible(&next)
	next.Endpoints[poisonName] = some(s.g, 2, drawnEndpoints)
	next.Services[poisonName] = model.Service{Frontends: at(internal(fmt.Sprintf("172.20.0.92:%d", 80+s.g.chance.IntN(100))))}
	s.tell(next)
	s.want = next
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	require.NoError(t, s.first.Wait(ctx))
	require.Equal(t, model.PhaseProgrammed, s.first.Status(stillName).Phase)
	if st := s.first.Status(poisonName); st.Phase == model.PhaseRejected {
		require.ErrorIs(t, st.Err, no)
	}
	s.h.target.Refuse(t, s.w, poisonName, nil)
	return true
}
