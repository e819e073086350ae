package modeltest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

// vectorCases returns each packet of the vectors with where it is from.
func vectorCases() map[string]vectorCase {
	all := map[string]vectorCase{}
	for _, v := range Vectors() {
		for i, step := range v.Steps {
			for _, p := range step.Packets {
				all[fmt.Sprintf("%s/%d/%s", v.ID, i, p.Name)] = vectorCase{state: step.State, packet: p.Packet, raw: p.raw}
			}
		}
	}
	return all
}

func TestEveryDifferenceIsMet(t *testing.T) {
	met := map[string]bool{}
	for _, c := range vectorCases() {
		for _, d := range vectorDifferences {
			if d.packet != nil && d.packet(c) {
				met[d.ID] = true
			}
			for _, answer := range c.raw.ByBackend {
				if d.mode != nil && d.mode(c, answer) {
					met[d.ID] = true
				}
			}
		}
	}
	for _, c := range rawConntrackCases() {
		for _, f := range c.Flows {
			for _, d := range vectorDifferences {
				if d.flow != nil && d.flow(c, f) {
					met[d.ID] = true
				}
			}
		}
	}
	ids := map[string]bool{}
	for _, d := range VectorDifferences() {
		require.False(t, ids[d.ID], "%s is there twice", d.ID)
		ids[d.ID] = true
		require.NotEmpty(t, d.Why, d.ID)
		require.True(t, met[d.ID], "%s is met by no vector", d.ID)
	}
}

// What the vectors say of a packet and headgate does not. Whoever adds a difference adds what it changes here.
var answeredOtherwise = []string{
	"ipv6-nodeport-all/0/loopback: none",
	"lb-source-ranges-other-family-only/0/IPv4 external client: drop",
	"nodeport-loopback-listed/0/loopback to loopback, TCP: none",
	"nodeport-loopback-listed/0/loopback to loopback, UDP: none",
}

// And of a flow, whether it is forgotten.
var forgottenOtherwise = []string{
	"ct-no-serving-backend/nodeport: true",
	"ct-node-port-any-address/foreign-host: false",
	"ct-removed-service/nodeport: true",
}

func TestNothingElseDiffers(t *testing.T) {
	var got []string
	for at, c := range vectorCases() {
		want := c.want()
		if raw, ok := c.raw.Expect.want(c.packet.From); !ok || raw.String() != want.String() {
			got = append(got, fmt.Sprintf("%s: %s", at, want))
		}
	}
	slices.Sort(got)
	require.Equal(t, answeredOtherwise, got)

	got = nil
	raw := rawConntrackCases()
	for i, c := range ConntrackCases() {
		for j, f := range c.Flows {
			if f.Forgotten != raw[i].Flows[j].Forgotten {
				got = append(got, fmt.Sprintf("%s/%s: %v", c.ID, f.ID, f.Forgotten))
			}
			require.Equal(t, c.isStale(f), f.Forgotten, "%s/%s: stale flows are forgotten, and no others", c.ID, f.ID)
		}
	}
	slices.Sort(got)
	require.Equal(t, forgottenOtherwise, got)
}

// Each answer of another mode has one reason, and packets that are about loopback have that one.
func TestOtherAnswersHaveOneReason(t *testing.T) {
	for at, c := range vectorCases() {
		for mode, answer := range c.raw.ByBackend {
			var why []string
			for _, d := range vectorDifferences {
				if d.want != nil && d.packet(c) || d.mode != nil && d.mode(c, answer) {
					why = append(why, d.ID)
				}
			}
			require.Len(t, why, 1, "%s, %s: %v", at, mode, answer)
		}
	}
}

func TestBackendsMayNameADifference(t *testing.T) {
	packet := func(id, name string) VectorPacket {
		for _, v := range Vectors() {
			for _, p := range v.Steps[0].Packets {
				if v.ID == id && p.Name == name {
					return p
				}
			}
		}
		t.Fatalf("no packet %q in %q", name, id)
		return VectorPacket{}
	}
	naming := func(ids ...string) (f model.FeatureSet) {
		for _, id := range ids {
			f.Differences = append(f.Differences, model.Difference{ID: id, Text: "for a test"})
		}
		return f
	}
	p := packet("clusterip-single", "right address, wrong port")
	for _, c := range []struct {
		backend  string
		features model.FeatureSet
		want     Verdict
		known    bool
	}{
		{"nftables", naming(), Refused, true},
		{"iptables", naming(), Refused, true},
		{"iptables", naming(DiffServiceRanges), Refused, true},
		{"iptables", naming(DiffOtherPorts), Untouched, true},
		{"nftables", naming(DiffOtherPorts), Refused, false},
	} {
		w, known := p.In(c.backend, c.features)
		require.Equal(t, c.known, known, "%+v", c)
		if known {
			require.Equal(t, c.want, w.Verdict, "%+v", c)
		}
	}
	_, known := packet("lb-source-ranges", "looped packet from the other VIP").In("ipvs", naming(DiffLoopedVIP))
	require.False(t, known, "undefined")
	w, known := packet("hints-do-not-affect-local-policy", "hairpin to a local backend outside the hinted set").In("ipvs", naming(DiffLocalShortCut))
	require.True(t, known)
	require.Equal(t, "dnat [10.128.0.11:80 10.128.0.12:80]", w.String())
}

// The vectors and what the scenarios of this package are judged by say the same.
func TestVectorsArePredicted(t *testing.T) {
	for _, v := range Vectors() {
		for _, v := range v.bothFamilies() {
			for _, step := range v.Steps {
				for _, p := range step.Packets {
					got := PredictState(step.State, p.Packet)
					// What may as well be one thing as the other: the node's own address, and that of a client which is the endpoint.
					own := p.Kind == FromNode || len(p.Want.Endpoints) == 1 && p.Want.Endpoints[0].Addr() == p.From
					got.Masqueraded = got.Masqueraded || own
					want := p.Want
					want.Masqueraded = want.Masqueraded || own
					if strings.Contains(v.Category, "affinity") && len(want.Endpoints) == 1 {
						want.One = false // goes without saying
					}
					if want.Verdict != Translated {
						want.Masqueraded, got.Masqueraded = false, false
					}
					require.Equal(t, want.String(), got.String(), "%s, %s, %s", v.ID, v.Family, p.Name)
				}
			}
		}
	}
}
