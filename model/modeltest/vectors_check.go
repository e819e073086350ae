package modeltest

import (
	"fmt"
	"math"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// vectorSamples is how many connections it takes until each of n endpoints has been seen, but for a chance of less
// than one in ten million.
func vectorSamples(n int) int {
	const chance = 1e-7
	if n <= 1 {
		return 4
	}
	// The chance to miss one of n is at most n(1-1/n)^k.
	return int(math.Ceil(math.Log(chance/float64(n)) / math.Log(1-1/float64(n))))
}

// samples is how many connections a packet opens.
func (p VectorPacket) samples(w Want) int {
	switch {
	case w.Verdict == Dropped:
		return 2
	case w.Verdict != Translated:
		return 3
	case w.One: // each but the first goes astray with the chance of a half at least, if there is no affinity
		return max(p.Samples, 24)
	}
	// One endpoint alone could be met by chance where there should be no other.
	return max(p.Samples, vectorSamples(max(2, len(w.Endpoints))))
}

// checkOutcomes compares what became of a packet's connections with what was wanted.
func checkOutcomes(node model.Node, p Packet, w Want, outcomes []Outcome) error {
	seen := map[netip.AddrPort]int{}
	for _, o := range outcomes {
		if err := checkOutcome(node, p, w, o); err != nil {
			return err
		}
		seen[o.Endpoint]++
	}
	if w.Verdict != Translated {
		return nil
	}
	if w.One {
		if len(seen) > 1 {
			return fmt.Errorf("one client was sent to several endpoints: %v", seen)
		}
		return nil
	}
	for _, e := range w.Endpoints {
		if seen[e] == 0 && !w.Some {
			return fmt.Errorf("%s got none of %d connections; there were %v", e, len(outcomes), seen)
		}
	}
	return nil
}

func checkOutcome(node model.Node, p Packet, w Want, o Outcome) error {
	if o.Verdict != w.Verdict {
		return fmt.Errorf("want %s, got %s", w, outcomeText(o))
	}
	switch w.Verdict {
	case Untouched:
		if o.Source.IsValid() && o.Source != p.From {
			return fmt.Errorf("want %s, but the source became %s", w, o.Source)
		}
		return nil
	case Translated:
	default:
		return nil
	}
	if !slices.Contains(w.Endpoints, o.Endpoint) {
		return fmt.Errorf("want %s, got %s", w, outcomeText(o))
	}
	hidden := w.Masqueraded != slices.Contains(w.Mixed, o.Endpoint) || o.Endpoint.Addr() == p.From
	switch {
	case hidden && !slices.Contains(node.Addrs, o.Source):
		return fmt.Errorf("want %s, but %s saw %s, which is no address of the node", w, o.Endpoint, o.Source)
	case !hidden && o.Source != p.From:
		return fmt.Errorf("want %s, but %s saw %s instead of the client", w, o.Endpoint, o.Source)
	}
	return nil
}

func outcomeText(o Outcome) string {
	if o.Verdict != Translated {
		return string(o.Verdict)
	}
	return fmt.Sprintf("%s %s, which saw %s", o.Verdict, o.Endpoint, o.Source)
}
