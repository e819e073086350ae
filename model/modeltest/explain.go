package modeltest

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/headgate/headgate/model"
)

// Query asks about the packet, for [model.Explainer]. Where p names no interface, it comes in on one of the lab's.
func (p Packet) Query() model.Query {
	q := model.Query{Protocol: p.Proto, To: p.To, From: p.From, Interface: p.Iface}
	switch {
	case p.Iface != "":
	case p.Kind == FromPod:
		q.Interface = "veth-pod"
	case p.Kind == FromRemotePod || p.Kind == FromOutside:
		q.Interface = "uplink"
	}
	return q
}

var fates = map[Verdict]model.Fate{
	Translated: model.FateBalanced, Dropped: model.FateDropped, Refused: model.FateRefused, Untouched: model.FateUntouched,
}

// Explained returns what an explanation says otherwise of what becomes of the packet, or does not say; nil, nothing.
func (w Want) Explained(p Packet, e model.Explanation) error {
	var endpoints, hidden []netip.AddrPort
	for _, t := range e.Endpoints {
		endpoints = append(endpoints, t.Endpoint.Addr)
		if t.Masqueraded {
			hidden = append(hidden, t.Endpoint.Addr)
		}
	}
	slices.SortFunc(endpoints, netip.AddrPort.Compare)
	switch {
	case e.Fate != fates[w.Verdict]:
		return fmt.Errorf("want %v, and it explains:\n%s", w, e)
	case e.Why == "":
		return fmt.Errorf("it does not say why:\n%s", e)
	case !slices.Equal(slices.SortedFunc(slices.Values(w.Endpoints), netip.AddrPort.Compare), endpoints):
		return fmt.Errorf("want %v, and it explains:\n%s", w, e)
	}
	for _, at := range endpoints {
		itself := at.Addr() == p.From || p.From.IsLoopback()
		if p.Kind == FromNode && !itself {
			continue // the node's own address is the node's, masqueraded or not
		}
		if want := w.Masqueraded != slices.Contains(w.Mixed, at) || itself; want != slices.Contains(hidden, at) {
			return fmt.Errorf("want %s to see the client: %v, and it explains:\n%s", at, !want, e)
		}
	}
	return nil
}
