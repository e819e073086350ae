package nftables_test

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/nftables"
)

// A field is a node with a client and six servers on it, and a Programmer for the node.
type field struct {
	node, client *lab.NetNS
	p            *nftables.Programmer
	state        model.State
	all          []model.Endpoint
}

var vip = netip.MustParseAddrPort("10.96.0.1:80")

// emulated says that an emulated processor may be slow for no reason of ours. That no SYN was sent twice, and no
// connection reset, is told by the kernel even there.
var emulated = os.Getenv("HEADGATE_VM") != ""

// times returns n, or a tenth of it on an emulated processor.
func times(n int) int {
	if emulated {
		return n / 10
	}
	return n
}

const churned = model.ServiceName("default/churned")

func newField(t *testing.T) *field {
	t.Helper()
	hosts := []lab.Host{{Name: "client", Addrs: []netip.Addr{netip.MustParseAddr("10.244.0.100")}}}
	var eps []model.Endpoint
	for i := range 6 {
		addr := netip.AddrFrom4([4]byte{10, 244, 0, byte(1 + i)})
		hosts = append(hosts, lab.Host{Name: fmt.Sprint("server-", i), Addrs: []netip.Addr{addr}})
		eps = append(eps, model.Endpoint{Addr: netip.AddrPortFrom(addr, 8080), Local: true})
	}
	topo := lab.Start(t, lab.Spec{Node: []netip.Addr{netip.MustParseAddr("192.0.2.1")}, Hosts: hosts})
	for _, e := range eps {
		_, err := topo.Serve(lab.TCP, e.Addr)
		require.NoError(t, err)
	}
	f := &field{node: topo.Node, client: topo.Host("client"), all: eps}
	f.state = model.State{
		Node:      model.Node{Name: "node", Detector: model.LocalDetector{Prefixes: []netip.Prefix{netip.MustParsePrefix("10.244.0.0/16")}}},
		Services:  model.ServiceMap{churned: {Frontends: []model.Frontend{{Addr: vip}}}},
		Endpoints: model.EndpointMap{churned: eps[:3]},
	}
	f.p = f.restart(t)
	_, err := f.p.Sync(context.Background(), f.state)
	require.NoError(t, err)
	return f
}

func (f *field) restart(t *testing.T) *nftables.Programmer {
	p, err := nftables.New(context.Background(), nftables.Config{NetNS: f.node.FD()})
	require.NoError(t, err)
	t.Cleanup(func() { p.Close() })
	return p
}

// under runs a change while connections to the service keep coming, and while some stay open.
func (f *field) under(t *testing.T, change func(ctx context.Context) error) {
	t.Helper()
	load := lab.Load{Query: lab.Query{Proto: lab.TCP, To: vip}, Flows: 3}
	if emulated {
		load.Slow = 20 * time.Second
	}
	report, err := f.client.Load(context.Background(), load, change)
	require.NoError(t, err)
	require.NoError(t, report.Err())
	require.Greater(t, report.Asked, 10, "there was hardly any traffic")
	require.Positive(t, report.Pings, "no open connection was asked")
	t.Logf("%d connections and %d answers on open ones in %v, the slowest %v", report.Asked, report.Pings, report.Took, report.Slowest)
}

// No SYN is lost and no connection is reset while endpoints come and go.
func TestChurnLosesNothing(t *testing.T) {
	f := newField(t)
	f.under(t, func(ctx context.Context) error {
		tracker := model.NewTracker(f.state.Node)
		tracker.Replace(f.state)
		tracker.State()
		for i := range times(1000) {
			// The first three, which the open connections may be with, drain; the others come and go.
			eps := append([]model.Endpoint(nil), f.all[:3+i%4]...)
			eps[i%3].State = []model.EndpointState{model.Ready, model.Draining}[i/3%2]
			tracker.SetEndpoints(churned, eps)
			if res, err := f.p.Apply(ctx, tracker.Diff()); err != nil || res.Err() != nil {
				return fmt.Errorf("change %d: %w %w", i, err, res.Err())
			}
		}
		return nil
	})
}

// Nor across restarts, nor across full resyncs.
func TestRestartLosesNothing(t *testing.T) {
	f := newField(t)
	f.under(t, func(ctx context.Context) error {
		for range times(50) {
			p, err := nftables.New(ctx, nftables.Config{NetNS: f.node.FD()})
			if err != nil {
				return err
			}
			if _, err := p.Sync(ctx, f.state); err != nil {
				return err
			}
			if _, err := p.Sync(ctx, f.state); err != nil {
				return err
			}
			if err := p.Close(); err != nil {
				return err
			}
			time.Sleep(time.Millisecond)
		}
		return nil
	})
}
