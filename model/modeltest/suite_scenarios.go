package modeltest

import (
	"testing"

	"github.com/headgate/headgate/model"
)

// Every scenario as traffic. There is one subtest per scenario, and in it one per packet.
func scenarioChecks() []check {
	var all []check
	for _, sc := range Scenarios() {
		all = append(all, check{sc.Name, func(t *testing.T, h *harness) { playScenario(t, h, sc) }})
	}
	return all
}

func playScenario(t *testing.T, h *harness, sc Scenario) {
	for _, svc := range sc.State.Services {
		h.can(t, svc)
	}
	r := h.rig(t, sc.State.Node)
	r.prepare(t, model.State{Node: sc.State.Node, Endpoints: sc.State.Endpoints}, packets(sc.Packets)...)
	r.sync(t, sc.State)
	for _, e := range sc.Packets {
		t.Run(e.Name, func(t *testing.T) {
			h.maySkip(t)
			h.same(t, e.Unless...)
			r.prepare(t, model.State{Node: r.node}, e.Packet)
			err := r.try(e)
			if unsupported(err) {
				t.Skipf("the world cannot send this: %v", err)
			}
			if err != nil {
				t.Errorf("%s: %v\n%s", e.Name, err, sc.Doc)
			}
			r.explained(t, e.Packet, e.Want)
		})
	}
}
