package lab

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"
)

// A Tally is what many questions brought.
type Tally struct {
	// Asked is how many questions were put.
	Asked int
	// ByName counts the answers by server, ByPeer by the address that the servers saw.
	ByName map[string]int
	ByPeer map[netip.Addr]int
	// Refused and TimedOut count the others.
	Refused, TimedOut int
	// Retransmitted counts the TCP connections whose client had to send something again.
	Retransmitted int
	// Slowest is the longest time to an answer.
	Slowest time.Duration
}

func (t *Tally) add(a Answer) {
	t.Asked++
	switch a.Verdict {
	case Answered:
		t.ByName[a.Name]++
		t.ByPeer[a.Peer.Addr()]++
		t.Slowest = max(t.Slowest, a.Took)
	case Refused:
		t.Refused++
	default:
		t.TimedOut++
	}
	if a.Retransmitted > 0 {
		t.Retransmitted++
	}
}

// askers is how many questions are under way at once.
const askers = 8

// patienceWithSilence is how many unanswered questions AskMany puts up with.
const patienceWithSilence = askers

// AskMany puts the same question count times, each over a fresh flow. It gives up early when questions
// remain unanswered.
func (n *NetNS) AskMany(ctx context.Context, q Query, count int) (Tally, error) {
	t := Tally{ByName: map[string]int{}, ByPeer: map[netip.Addr]int{}}
	if q.Source.Port() != 0 {
		return t, errors.New("lab: many questions cannot share one source port")
	}
	var (
		mu       sync.Mutex // guards t, firstErr and put
		firstErr error
		put      int
		wg       sync.WaitGroup
	)
	for range min(askers, count) {
		wg.Go(func() {
			for {
				mu.Lock()
				stop := put >= count || firstErr != nil || t.TimedOut >= patienceWithSilence
				put++
				mu.Unlock()
				if stop {
					return
				}
				a, err := n.Ask(ctx, q)
				mu.Lock()
				if err != nil {
					firstErr = errors.Join(firstErr, err)
				} else {
					t.add(a)
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return t, firstErr
}

// AskMany is NetNS.AskMany from the host or node that has q's source address.
func (t *Topology) AskMany(ctx context.Context, q Query, count int) (Tally, error) {
	n := t.Owner(q.Source.Addr())
	if n == nil {
		return Tally{}, fmt.Errorf("ask %s: nobody has the source address", q)
	}
	return n.AskMany(ctx, q, count)
}
