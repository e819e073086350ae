package modeltest

import (
	"fmt"
	"strings"

	"github.com/headgate/headgate/model"
)

// OddNames are service names that have broken programs of this kind: too long for a comment, with characters that
// mean something to a tool, not ASCII, empty.
func OddNames() []model.ServiceName {
	return []model.ServiceName{
		"",
		" ",
		`quo"ted 'twice' \back\slash`,
		"two\nlines\tand a tab",
		"-A PREROUTING -j ACCEPT",
		"# comment; } flush ruleset",
		"naïve/wéb:ŝtrange-日本語",
		"\xff\xfe not UTF-8 \x00 at all",
		model.ServiceName(strings.Repeat("x", 127) + "é"),
		model.ServiceName(strings.Repeat("long-", 200)),
		model.ServiceName(strings.Repeat("long-", 199) + "LONG-"),
	}
}

func oddScenarios() []Scenario {
	names := Scenario{Name: "odd-names", Doc: "Names that a tool's comment cannot hold as they are: too long, quoted, of several lines, no UTF-8, empty.",
		State: stateOf(StageNode())}
	for i, name := range OddNames() {
		vip := fmt.Sprintf("[fd20:96::a%x]:80", i)
		names.State.Services[name] = model.Service{Frontends: at(internal(vip))}
		names.State.Endpoints[name] = []model.Endpoint{here("[fd10:128:0:a::11]:8080")}
		names.Packets = append(names.Packets, pod.to(vip).reaches("[fd10:128:0:a::11]:8080"))
	}
	return []Scenario{names, {
		Name: "conflict",
		Doc:  "Two services claim one frontend: the first by name has it, the other its remaining ones.",
		State: stateOf(StageNode(),
			service("default/a:http", model.Service{Frontends: at(external("192.0.2.10:80"), internal("172.20.0.15:80"))}, here("10.128.0.11:8080")),
			service("default/b:http", model.Service{Frontends: at(external("192.0.2.10:80"), internal("172.20.0.16:80"))}, here("10.128.0.12:8080"))),
		Packets: []Expectation{
			outside.to("192.0.2.10:80").hidden("10.128.0.11:8080"),
			pod.to("172.20.0.15:80").reaches("10.128.0.11:8080"),
			pod.to("172.20.0.16:80").reaches("10.128.0.12:8080"),
		},
		Rejected: []model.ServiceName{"default/b:http"},
	}, {
		Name: "endpoint-left-out",
		Doc:  "Endpoints that make no sense are left out and reported; the others serve. One that is given twice counts once.",
		State: stateOf(StageNode(),
			service("default/mess:http", model.Service{Frontends: at(internal("172.20.0.17:80"))},
				here("10.128.0.11:8080"), here("10.128.0.11:8080"), draining(here("10.128.0.11:8080")), here("0.0.0.0:8080"), here("127.0.0.1:8080"), here("10.128.0.12:0"))),
		Packets: []Expectation{
			pod.to("172.20.0.17:80").reaches("10.128.0.11:8080"),
		},
		Rejected: []model.ServiceName{"default/mess:http"},
	}}
}
