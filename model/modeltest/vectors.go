package modeltest

import (
	"net/netip"
	"time"

	"github.com/headgate/headgate/model"
)

// A Vector is a case that users of service proxies know, from testdata/vectors.json: states that follow one another,
// and what packets meet in each. [RunVectors] plays them all.
type Vector struct {
	// ID is unique, in lower case with hyphens.
	ID, Category, Doc string
	// Family is that of the packets. There are objects of the other family too.
	Family model.Family
	// Steps are complete states, each reached from the one before by a change.
	Steps []VectorStep
}

// A VectorStep is a state and what it is good for.
type VectorStep struct {
	Doc     string
	State   model.State
	Packets []VectorPacket

	selections []vectorSelection
}

// A VectorPacket is a packet and what becomes of it.
type VectorPacket struct {
	Packet
	// Want is what becomes of it in headgate. Where it is not what the vector says, a [VectorDifference] tells why.
	Want Want
	// SameAs names the packet before, in the same vector, whose endpoint this one goes to as well.
	SameAs string
	// Samples is how many connections to open at least. 0: as many as it takes.
	Samples int
	// Wait is how long to wait before the packet.
	Wait time.Duration

	// raw is the packet as the vectors have it, unmirrored.
	raw packetJSON
	// other are the answers of other backends, as far as they are not Want.
	other map[string]otherAnswer
}

// An otherAnswer is what becomes of a packet in a backend that names a difference.
type otherAnswer struct {
	difference string
	want       Want
	unknown    bool // there is no telling
}

// A vectorSelection says which endpoints of a service were chosen.
type vectorSelection struct {
	service        model.ServiceName
	cluster, local []netip.AddrPort
	usable         bool
}

// In returns what becomes of the packet in a backend of a name and with its features, and whether that can be told.
func (p VectorPacket) In(backend string, features model.FeatureSet) (want Want, known bool) {
	for name, o := range p.other {
		if !features.Differs(o.difference) {
			continue
		}
		if name == backend {
			return o.want, !o.unknown
		}
		known = true
	}
	// The backend differs here, but not in the way of one that the vectors know.
	return p.Want, !known
}

// Vectors returns every vector, always in the same order. The result is the caller's own.
func Vectors() []Vector {
	f := loadVectors()
	var out []Vector
	for _, v := range f.Vectors {
		out = append(out, v.vectorHead.vector(v.Node, stepJSON{stepBody: v.stepBody}))
	}
	for _, s := range f.Sequences {
		out = append(out, s.vectorHead.vector(s.Node, s.Steps...))
	}
	for _, s := range f.Affinity {
		out = append(out, s.vectorHead.vector(s.Node, s.Steps...))
	}
	return out
}

// loadVectors decodes the embedded file. A mistake in that is one of this package.
func loadVectors() *vectorFile {
	f, err := decodeVectors(vectorsJSON)
	if err != nil {
		panic(err)
	}
	return f
}

func (h vectorHead) vector(node nodeJSON, steps ...stepJSON) Vector {
	v := Vector{ID: h.ID, Category: h.Category, Doc: h.Description, Family: h.Family.model()}
	for _, s := range steps {
		step := VectorStep{Doc: s.Description, State: s.state(node)}
		for _, sel := range s.Selection {
			step.selections = append(step.selections, vectorSelection{
				service: portName(sel.Service, sel.PortName, sel.Proto),
				cluster: sel.Cluster, local: sel.Local, usable: sel.AnyUsable,
			})
		}
		for _, p := range s.Packets {
			step.Packets = append(step.Packets, p.packet(step.State))
		}
		v.Steps = append(v.Steps, step)
	}
	return v
}
