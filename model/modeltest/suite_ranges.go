package modeltest

import (
	"fmt"
	"net/netip"
	"testing"

	"github.com/headgate/headgate/model"
	"github.com/stretchr/testify/require"
)

// Source ranges: whatever their shape and order, and for nobody but their own frontend.
var rangeChecks = []check{
	{"nested-in-any-order", rangesNested},
	{"top-of-the-address-space", rangesTop},
	{"never-affect-another", rangesOthers},
	{"come-and-go", rangesComeAndGo},
}

// rangesFor returns a state with one restricted frontend of each family.
func rangesFor(ranges ...netip.Prefix) model.State {
	return stateOf(StageNode(), service("default/lbr:http", model.Service{Frontends: at(
		model.Frontend{Kind: model.External, Addr: ap("192.0.2.10:80"), SourceRanges: ranges},
		model.Frontend{Kind: model.External, Addr: ap("[2001:db8:c::10]:80"), SourceRanges: ranges})},
		epA, here("[fd10:128:0:a::11]:8080")))
}

func rangeFlows() []flow {
	return []flow{outside.to("192.0.2.10:80"), otherOutside.to("192.0.2.10:80"), pod.to("192.0.2.10:80"), theNode.to("192.0.2.10:80"),
		outside.to("[2001:db8:c::10]:80"), otherOutside.to("[2001:db8:c::10]:80")}
}

// Nested, adjacent and equal ranges are added and removed one by one, in an order that chance picks.
func rangesNested(t *testing.T, h *harness) {
	chance := h.seeded(t)
	pool := prefixes("203.0.113.0/24", "203.0.113.0/25", "203.0.113.128/25", "203.0.113.5/32", "203.0.113.4/31", "203.0.112.0/23", "203.0.113.200/32",
		"10.128.0.0/14", "10.128.0.0/24", "198.51.100.0/24", "198.51.100.10/32", "0.0.0.0/1", "128.0.0.0/1", "2001:db8:e::/64", "2001:db8:e::/48", "2001:db8:e:1::5/128")
	r := h.rig(t, StageNode())
	var held []netip.Prefix
	from := rangesFor()
	r.sync(t, from)
	for range r.pick(16, 400) {
		i := chance.IntN(len(pool) + len(held))
		if i < len(pool) {
			held = append([]netip.Prefix{pool[i]}, held...)
		} else {
			i -= len(pool)
			held = append(append([]netip.Prefix(nil), held[:i]...), held[i+1:]...)
		}
		to := rangesFor(held...)
		require.Empty(t, r.to(t, from, to).Rejected)
		from = to
		flows := rangeFlows()
		if !r.pretended() {
			flows = flows[chance.IntN(len(flows)):][:1]
		}
		r.predicted(t, flows...)
	}
	r.predicted(t, rangeFlows()...)
	require.NoError(t, r.p.Check(r.ctx))
	r.restart(t)
	r.sync(t, from)
	r.predicted(t, rangeFlows()...)
}

// Ranges that end where the address space does have no end of their own.
func rangesTop(t *testing.T, h *harness) {
	r := h.rig(t, StageNode())
	from := rangesFor()
	r.sync(t, from)
	for _, ranges := range [][]string{
		{"240.0.0.0/4", "ff00::/8"},
		{"240.0.0.0/4", "255.255.255.255/32", "ff00::/8", "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128"},
		{"255.255.255.255/32", "203.0.113.0/24", "2001:db8:e::/64"},
		{"128.0.0.0/1", "8000::/1"},
		{"0.0.0.0/1", "::/1"},
		{"0.0.0.0/1", "128.0.0.0/1", "::/1", "8000::/1"},
		{"0.0.0.0/0", "::/0"},
		{"0.0.0.0/32", "::/128"},
		{"0.0.0.0/0"},
		{"::/0"},
		{"255.255.255.254/32", "255.255.255.255/32"},
	} {
		to := rangesFor(prefixes(ranges...)...)
		require.Empty(t, r.to(t, from, to).Rejected, "%v", ranges)
		from = to
		r.predicted(t, rangeFlows()...)
		require.NoError(t, r.p.Check(r.ctx))
	}
}

// What restricts one frontend restricts no other: not of the same service, not at the same address, not elsewhere.
func rangesOthers(t *testing.T, h *harness) {
	others := []part{
		service("default/same-address:http", model.Service{Frontends: at(external("192.0.2.10:81"))}, epB),
		service("default/same-port:http", model.Service{Frontends: at(external("192.0.2.11:80"), internal("172.20.0.11:80"), nodePort(30080))}, epB),
		service("default/same-endpoint:http", model.Service{Frontends: at(external("192.0.2.12:80"))}, epA),
		service("default/same-number:dns", model.Service{Protocol: model.UDP, Frontends: at(external("192.0.2.10:80"))}, here("10.128.0.11:1053")),
	}
	restricted := func(ranges ...string) part {
		return service("default/restricted:http", model.Service{Frontends: at(external("192.0.2.10:80", ranges...), external("192.0.2.13:80"), internal("172.20.0.10:80"), nodePort(30010))}, epA)
	}
	flows := func() []flow {
		var all []flow
		for _, c := range []client{outside, otherOutside, pod} {
			all = append(all, c.to("192.0.2.10:81"), c.to("192.0.2.11:80"), c.to("192.0.2.12:80"), c.over(model.UDP, "192.0.2.10:80"),
				c.to("192.0.2.13:80"), c.to("172.20.0.10:80"), c.to("198.51.100.10:30010"), c.to("198.51.100.10:30080"))
		}
		return all
	}
	r := h.rig(t, StageNode())
	from := stateOf(StageNode(), others...)
	r.sync(t, from)
	for _, ranges := range [][]string{{"203.0.113.0/25"}, {"10.0.0.0/8"}, {"2001:db8::/32"}, {"198.51.100.10/32"}, nil} {
		to := stateOf(StageNode(), append(others, restricted(ranges...))...)
		r.to(t, from, to)
		from = to
		for _, f := range flows() {
			require.Equal(t, Translated, Predict(r.node, r.mirror.Forms(), f.p).Verdict, "the check itself is wrong about %s", f.p.Name)
		}
		r.predicted(t, flows()...)
		r.predicted(t, outside.to("192.0.2.10:80"), otherOutside.to("192.0.2.10:80"))
	}
}

// Many frontends with ranges come, change and go, in both families.
func rangesComeAndGo(t *testing.T, h *harness) {
	with := func(n int, ranges ...string) model.State {
		s := stateOf(StageNode())
		for i := range n {
			service(model.ServiceName(fmt.Sprintf("lbr/%d", i)), model.Service{Frontends: at(
				external(fmt.Sprintf("192.0.2.%d:80", 100+i), ranges...), external(fmt.Sprintf("[2001:db8:c::%d]:80", 100+i), ranges...))},
				epA, here("[fd10:128:0:a::11]:8080"))(&s)
		}
		return s
	}
	flows := []flow{outside.to("192.0.2.100:80"), otherOutside.to("192.0.2.100:80"), outside.to("192.0.2.104:80"), otherOutside.to("192.0.2.104:80"),
		outside.to("[2001:db8:c::104]:80"), otherOutside.to("[2001:db8:c::104]:80")}
	r := h.rig(t, StageNode())
	from := with(0)
	r.sync(t, from)
	for _, to := range []model.State{with(3, "203.0.113.0/25", "2001:db8:e::/64"), with(10, "203.0.113.0/25", "2001:db8:e::/64"), with(10, "203.0.113.128/25"),
		with(10), with(5, "203.0.113.0/24", "2001:db8::/32"), with(10, "203.0.113.200/32", "2001:db8:e:1::/64"), with(1, "203.0.113.5/32"), with(0)} {
		r.to(t, from, to)
		from = to
		r.predicted(t, flows...)
		require.NoError(t, r.p.Check(r.ctx))
	}
}
