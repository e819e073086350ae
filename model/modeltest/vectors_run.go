package modeltest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// RunVectors plays every vector against a target, and every IPv4 vector once more in IPv6: each state by Sync, each
// change by Apply and then all of it by Sync alone. It requires the exact verdict, the exact set of endpoints, and the
// source address that each of them sees. Subtests are named by the vector's ID.
//
// Where the vectors know another answer of a backend with the target's Name, that is required if the target's
// FeatureSet names the difference; see [VectorDifferences].
//
// Vectors whose nodes have the same addresses share a world and a Programmer.
func RunVectors(t *testing.T, target Target) {
	t.Helper()
	RunVectorsWhere(t, target, func(string) bool { return true })
}

// RunVectorsWhere is RunVectors for those vectors alone whose ID is wanted.
func RunVectorsWhere(t *testing.T, target Target, wanted func(id string) bool) {
	t.Helper()
	r := &vectorRun{root: t, target: target, places: map[string]*vectorPlace{}}
	for _, v := range Vectors() {
		if !wanted(v.ID) {
			continue
		}
		t.Run(v.ID, func(t *testing.T) {
			for _, v := range v.bothFamilies() {
				t.Run(v.Family.String(), func(t *testing.T) { r.play(t, v) })
			}
		})
	}
	for _, p := range r.places {
		require.NoError(t, p.programmer.Cleanup(p.ctx))
	}
}

// A vectorRun is one run of all vectors.
type vectorRun struct {
	root   *testing.T // worlds live as long as it
	target Target
	places map[string]*vectorPlace
}

// A vectorPlace is a world with a Programmer in it.
type vectorPlace struct {
	ctx        context.Context
	target     Target
	world      World
	programmer model.Programmer
	features   model.FeatureSet
}

// at returns the place for a node.
func (r *vectorRun) at(t *testing.T, node model.Node) *vectorPlace {
	t.Helper()
	key := fmt.Sprint(node.Addrs)
	if p := r.places[key]; p != nil {
		return p
	}
	const patience = 30 * time.Minute
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	r.root.Cleanup(cancel)
	newWorld := r.target.NewWorld
	if newWorld == nil {
		newWorld = NewLab
	}
	p := &vectorPlace{ctx: ctx, target: r.target, world: newWorld(r.root, node)}
	p.programmer = r.target.New(r.root, p.world)
	r.root.Cleanup(func() { require.NoError(r.root, p.programmer.Close()) })
	p.features = p.programmer.Features()
	r.places[key] = p
	return p
}

// play plays one vector in one family.
func (r *vectorRun) play(t *testing.T, v Vector) {
	p := r.at(t, v.Steps[0].State.Node)
	if len(v.Steps) == 1 && v.Category != "affinity" {
		p.sync(t, v.Steps[0].State)
		p.meet(t, v.Steps[0], map[string]netip.AddrPort{})
		return
	}
	t.Run("apply", func(t *testing.T) {
		p.empty(t, v.Steps[0].State.Node)
		met := map[string]netip.AddrPort{}
		for i, step := range v.Steps {
			if i == 0 {
				p.sync(t, step.State)
			} else {
				p.apply(t, v.Steps[i-1].State, step.State)
			}
			t.Run(step.Doc, func(t *testing.T) { p.meet(t, step, met) })
		}
	})
	t.Run("sync", func(t *testing.T) {
		p.empty(t, v.Steps[0].State.Node)
		met := map[string]netip.AddrPort{}
		for _, step := range v.Steps {
			p.sync(t, step.State)
			t.Run(step.Doc, func(t *testing.T) { p.meet(t, step, met) })
		}
	})
}

// empty forgets all services, and with them the affinity of their clients.
func (p *vectorPlace) empty(t *testing.T, node model.Node) {
	t.Helper()
	p.sync(t, model.State{Node: node})
}

func (p *vectorPlace) sync(t *testing.T, s model.State) {
	t.Helper()
	p.prepare(t, s)
	res, err := p.programmer.Sync(p.ctx, s)
	require.NoError(t, err, "Sync")
	require.NoError(t, res.Err(), "Sync rejected something")
}

func (p *vectorPlace) apply(t *testing.T, from, to model.State) {
	t.Helper()
	p.prepare(t, to)
	res, err := p.programmer.Apply(p.ctx, model.DiffStates(from, to))
	require.NoError(t, err, "Apply")
	require.NoError(t, res.Err(), "Apply rejected something")
}

func (p *vectorPlace) prepare(t *testing.T, s model.State, packets ...Packet) {
	t.Helper()
	if w, ok := p.world.(Preparer); ok {
		w.Prepare(t, s, packets)
	}
}

// meet sends the packets of a step. met has the endpoint that packets with affinity met before, by name.
func (p *vectorPlace) meet(t *testing.T, step VectorStep, met map[string]netip.AddrPort) {
	t.Helper()
	for _, v := range step.Packets {
		t.Run(v.Name, func(t *testing.T) {
			if _, known := v.In(p.target.Name, p.features); !known {
				t.Skipf("%s differs here, and the vectors do not say how", p.target.Name)
			}
			p.prepare(t, step.State, v.Packet)
			require.NoError(t, p.send(step.State.Node, v, met))
		})
	}
}

// send sends one packet and says what is wrong with what became of it.
func (p *vectorPlace) send(node model.Node, v VectorPacket, met map[string]netip.AddrPort) error {
	p.wait(v.Wait)
	w, _ := v.In(p.target.Name, p.features)
	outcomes, err := p.world.Send(p.ctx, v.Packet, v.samples(w))
	if err != nil {
		return err
	}
	if err := checkOutcomes(node, v.Packet, w, outcomes); err != nil || !w.One {
		return err
	}
	at := outcomes[0].Endpoint
	if before, ok := met[v.SameAs]; v.SameAs != "" && (!ok || before != at) {
		return fmt.Errorf("want the endpoint of %q, %s, got %s", v.SameAs, before, at)
	}
	met[v.Name] = at
	return nil
}

func (p *vectorPlace) wait(d time.Duration) {
	switch w, ok := p.world.(Sleeper); {
	case d == 0:
	case ok:
		w.Sleep(d)
	default:
		time.Sleep(d)
	}
}
