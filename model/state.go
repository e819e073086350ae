package model

// A ServiceMap holds services by name.
type ServiceMap map[ServiceName]Service

// An EndpointMap holds the endpoints of services by name. Endpoints of a service that is not there serve nobody.
type EndpointMap map[ServiceName][]Endpoint

// A State is all that a node shall balance.
type State struct {
	Node      Node
	Services  ServiceMap
	Endpoints EndpointMap
}

// An Entry is one service with its endpoints.
type Entry struct {
	Service   Service
	Endpoints []Endpoint
}

// A Change is one service that changed. Before is nil where it is new, After where it is gone.
type Change struct {
	Name          ServiceName
	Before, After *Entry
}

// A Diff names every service that changed, sorted by name. A Node that is not nil replaces the old one and means that
// the endpoints of every service are selected anew. The zero Diff changes nothing.
//
// What a Diff from a [Tracker] points to is shared: read it, don't write it.
type Diff struct {
	Node    *Node
	Changes []Change
}

// Empty reports whether d changes nothing.
func (d Diff) Empty() bool { return d.Node == nil && len(d.Changes) == 0 }

// DiffStates returns the Diff that leads from one state to another. It looks at every service; a [Tracker] does not.
func DiffStates(from, to State) Diff {
	t := NewTracker(from.Node)
	t.Replace(from)
	t.Diff()
	t.Replace(to)
	return t.Diff()
}
