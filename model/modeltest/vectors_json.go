package modeltest

import (
	_ "embed" // for vectors.json
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// vectorsJSON is what a service proxy that many people know answers, as data: desired states, packets and verdicts. Its
// states are told in that program's terms. It is embedded so that test binaries may run anywhere.
//
//go:embed testdata/vectors.json
var vectorsJSON []byte

// A vectorFile is the whole of vectors.json.
type vectorFile struct {
	About struct {
		What string `json:"what"`
	} `json:"about"`
	Vectors          []vectorJSON      `json:"vectors"`
	Sequences        []sequenceJSON    `json:"sequences"`
	Affinity         []sequenceJSON    `json:"affinity"`
	ConntrackCleanup []conntrackJSON   `json:"conntrack_cleanup"`
	Termination      []terminationJSON `json:"ipvs_graceful_termination"`
}

// A vectorHead is what vectors of all kinds begin with.
type vectorHead struct {
	ID          string   `json:"id"`
	Category    string   `json:"category"`
	Description string   `json:"description"`
	Provenance  []string `json:"provenance"` // where the expectation was found
	// Family is the half of the proxy under test. Objects of the other family are there on purpose.
	Family familyJSON `json:"family"`
}

type vectorJSON struct {
	vectorHead
	Node nodeJSON `json:"node"`
	stepBody
}

type sequenceJSON struct {
	vectorHead
	Node  nodeJSON   `json:"node"`
	Steps []stepJSON `json:"steps"`
}

// A stepJSON is the complete desired state after one change.
type stepJSON struct {
	Description string `json:"description"`
	stepBody
}

type stepBody struct {
	Services  []serviceJSON   `json:"services"`
	Endpoints []endpointJSON  `json:"endpoints"`
	Packets   []packetJSON    `json:"packets"`
	Selection []selectionJSON `json:"selection"`
}

type nodeJSON struct {
	Name        string       `json:"name"`
	Zone        string       `json:"zone"`
	NodeIP      netip.Addr   `json:"node_ip"`   // the primary one of the family under test
	LocalIPs    []netip.Addr `json:"local_ips"` // all but loopback
	DetectLocal struct {
		Mode   detectJSON `json:"mode"`
		Values []string   `json:"values"` // CIDRs, or prefixes of interface names
	} `json:"detect_local"`
	MasqueradeAll     bool         `json:"masquerade_all"`
	NodePortAddresses []prefixJSON `json:"node_port_addresses"`
	ServiceCIDRs      []prefixJSON `json:"service_cidrs"`
	// LocalhostNodePorts is an option of another program's iptables mode; ours is an opt-in.
	LocalhostNodePorts bool `json:"iptables_localhost_node_ports"`
}

type serviceJSON struct {
	Name           string            `json:"name"`
	ClusterIPs     []netip.Addr      `json:"cluster_ips"`
	Ports          []servicePortJSON `json:"ports"`
	InternalPolicy policyJSON        `json:"internal_policy"`
	ExternalPolicy policyJSON        `json:"external_policy"`
	Affinity       struct {
		Type           affinityJSON `json:"type"`
		TimeoutSeconds int          `json:"timeout_seconds"`
	} `json:"affinity"`
	ExternalIPs []netip.Addr `json:"external_ips"`
	LBIPs       []struct {
		IP   netip.Addr `json:"ip"`
		Mode lbModeJSON `json:"mode"`
	} `json:"lb_ips"`
	SourceRanges []prefixJSON `json:"source_ranges"` // of the load-balancer addresses
	// HealthCheckNodePort is where a health server listens. It needs no rule.
	HealthCheckNodePort uint16   `json:"health_check_node_port"`
	Skip                skipJSON `json:"skip"` // why the object is to be ignored
}

type servicePortJSON struct {
	Name     string    `json:"name"`
	Port     uint16    `json:"port"`
	Proto    protoJSON `json:"proto"`
	NodePort uint16    `json:"node_port"`
}

// An endpointJSON belongs to the port of a service with the same service, port name and protocol.
type endpointJSON struct {
	Service     string     `json:"service"`
	PortName    string     `json:"port_name"`
	IP          netip.Addr `json:"ip"`
	Port        uint16     `json:"port"`
	Proto       protoJSON  `json:"proto"`
	Node        string     `json:"node"`
	Local       bool       `json:"local"`
	Ready       *bool      `json:"ready"`   // missing: yes
	Serving     *bool      `json:"serving"` // missing: yes
	Terminating bool       `json:"terminating"`
	ZoneHints   []string   `json:"zone_hints"`
	NodeHints   []string   `json:"node_hints"`
	Ignored     string     `json:"ignored"` // why the object is to be ignored
}

type packetJSON struct {
	Name string `json:"name"`
	From struct {
		Kind  kindJSON   `json:"kind"`
		IP    netip.Addr `json:"ip"`
		Iface string     `json:"iface"`
	} `json:"from"`
	To struct {
		IP    netip.Addr `json:"ip"`
		Port  uint16     `json:"port"`
		Proto protoJSON  `json:"proto"`
	} `json:"to"`
	Loopback  bool                  `json:"loopback"`
	Samples   int                   `json:"samples"`
	Tracer    *bool                 `json:"tracer"` // false: cannot be judged without a real kernel
	Note      string                `json:"note"`
	WaitMS    int                   `json:"wait_ms"`
	Expect    expectJSON            `json:"expect"`
	ByBackend map[string]expectJSON `json:"by_backend"` // where a mode of that program answers otherwise
}

type expectJSON struct {
	Verdict        verdictJSON             `json:"verdict"`
	Endpoints      []netip.AddrPort        `json:"endpoints"`
	Masq           *bool                   `json:"masq"`
	MasqByEndpoint map[netip.AddrPort]bool `json:"masq_by_endpoint"`
	Sticky         bool                    `json:"sticky"`
	SameBackendAs  string                  `json:"same_backend_as"`
}

type selectionJSON struct {
	Service   string           `json:"service"`
	PortName  string           `json:"port_name"`
	Proto     protoJSON        `json:"proto"`
	Cluster   []netip.AddrPort `json:"cluster"`
	Local     []netip.AddrPort `json:"local"`
	AnyUsable bool             `json:"any_usable"`
}

type conntrackJSON struct {
	vectorHead
	Services  []serviceJSON  `json:"services"`
	Endpoints []endpointJSON `json:"endpoints"`
	Removed   []serviceJSON  `json:"services_removed_in_this_sync"`
	Entries   []struct {
		ID           string     `json:"id"`
		Proto        protoJSON  `json:"proto"`
		OrigSrc      netip.Addr `json:"orig_src"`
		OrigSrcPort  uint16     `json:"orig_src_port"`
		OrigDst      netip.Addr `json:"orig_dst"`
		OrigDstPort  uint16     `json:"orig_dst_port"`
		ReplySrc     netip.Addr `json:"reply_src"`
		ReplySrcPort uint16     `json:"reply_src_port"`
	} `json:"entries"`
	ExpectDeleted []string `json:"expect_deleted"`
}

type terminationJSON struct {
	vectorHead
	Proto                 protoJSON         `json:"proto"`
	DestinationsBefore    []Destination     `json:"destinations_before"`
	WantedBackends        *[]netip.AddrPort `json:"wanted_backends"` // null: the service is gone
	DestinationsAfterSync []Destination     `json:"destinations_after_sync"`
	DrainingBefore        []netip.AddrPort  `json:"draining_before"`
	Draining              []netip.AddrPort  `json:"draining"`
	FirstSync             bool              `json:"first_sync"`
	At                    atJSON            `json:"at"`
}

// The words of the file. Each type knows all of its own.
type (
	familyJSON   string
	detectJSON   string
	policyJSON   string
	affinityJSON string
	lbModeJSON   string
	skipJSON     string
	protoJSON    string
	kindJSON     string
	verdictJSON  string
	atJSON       string
)

func (v *familyJSON) UnmarshalText(b []byte) error { return oneOf(v, b, "ipv4", "ipv6") }
func (v *detectJSON) UnmarshalText(b []byte) error {
	return oneOf(v, b, "cluster-cidr", "iface-prefix", "none")
}
func (v *policyJSON) UnmarshalText(b []byte) error   { return oneOf(v, b, "cluster", "local") }
func (v *affinityJSON) UnmarshalText(b []byte) error { return oneOf(v, b, "none", "client-ip") }
func (v *lbModeJSON) UnmarshalText(b []byte) error   { return oneOf(v, b, "vip", "proxy") }
func (v *skipJSON) UnmarshalText(b []byte) error {
	return oneOf(v, b, "headless", "external-name", "service-proxy-name-label")
}
func (v *protoJSON) UnmarshalText(b []byte) error { return oneOf(v, b, "tcp", "udp", "sctp", "icmp") }
func (v *kindJSON) UnmarshalText(b []byte) error {
	return oneOf(v, b, kindJSON(FromPod), kindJSON(FromRemotePod), kindJSON(FromNode), kindJSON(FromOutside), kindJSON(FromVIP))
}
func (v *verdictJSON) UnmarshalText(b []byte) error {
	return oneOf(v, b, verdictJSON(Translated), verdictJSON(Dropped), verdictJSON(Refused), verdictJSON(Untouched), inUserspace, letIn, undefined)
}
func (v *atJSON) UnmarshalText(b []byte) error { return oneOf(v, b, "periodic check") }

// The verdicts of the file that no packet of ours meets.
const (
	inUserspace verdictJSON = "userspace" // translated by a listener on loopback
	letIn       verdictJSON = "accept"    // let in by a rule of its own
	undefined   verdictJSON = "undefined" // the other program has no one answer
)

func oneOf[T ~string](v *T, text []byte, words ...T) error {
	if !slices.Contains(words, T(text)) {
		return fmt.Errorf("%q is none of %q", text, words)
	}
	*v = T(text)
	return nil
}

// A prefixJSON may have blanks around it, as people write such lists.
type prefixJSON struct{ netip.Prefix }

func (p *prefixJSON) UnmarshalText(b []byte) (err error) {
	p.Prefix, err = netip.ParsePrefix(strings.TrimSpace(string(b)))
	return err
}
