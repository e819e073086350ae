package nft

import "github.com/headgate/headgate/model"

// Places are where frontends of a kind are looked up. Node ports have sets and chains of their own, since their keys
// have no address.
type Places struct {
	// Services leads a frontend on: with external policy Local by the chain BySource, from where Shortcut leads those
	// who may take the short cut, and Local everybody else.
	Services, Shortcut, Local SetID
	BySource                  string
	// Restricted has the frontends with source ranges, Allowed the ranges; the chain CheckSource asks it.
	Restricted, Allowed SetID
	CheckSource         string
	// Endpoints has the slots, but those of services with RoundRobin, which are in one of the maps from Turns on.
	Endpoints, Turns SetID
}

// PlacesOf returns where a frontend is looked up.
func PlacesOf(f model.Frontend) Places { return places(f.Kind == model.NodePort) }

func places(nodePort bool) Places {
	if nodePort {
		return Places{NodePorts, ShortcutNodePorts, LocalNodePorts, NodePortLocalChain,
			RestrictedNodePorts, AllowedNodePorts, CheckSourceNPChain, NodePortEndpoints, NodePortTurns}
	}
	return Places{Services, ShortcutServices, LocalServices, ExternalLocalChain, Restricted, Allowed, CheckSourceChain, Endpoints, Turns}
}
