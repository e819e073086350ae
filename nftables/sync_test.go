package nftables_test

import (
	"context"
	"net/netip"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

// A Sync, even of a changed kernel, shows no packet a moment in which an unchanged service is not served: not one that
// is on its way through the old rules, nor one whose source is looked up among the ranges of thousands of services.
func TestSyncShowsNoHole(t *testing.T) {
	ctx := context.Background()
	w := modeltest.NewLab(t, modeltest.StageNode())
	s := modeltest.Big(300, 3)
	s.Node = modeltest.StageNode()
	ranges := []netip.Prefix{netip.MustParsePrefix("10.128.0.0/16")}
	frontends := []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.90:80")}, {Addr: netip.MustParseAddrPort("172.20.0.91:80"), SourceRanges: ranges}}
	s.Services["still"] = model.Service{Frontends: frontends}
	s.Endpoints["still"] = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}}
	moving := model.ServiceName("moving")
	s.Endpoints[moving] = s.Endpoints["still"]
	p := newIn("headgate")(t, w)
	resync := func(i int) {
		f := model.Frontend{Addr: netip.MustParseAddrPort("172.20.0.92:80"), SourceRanges: []netip.Prefix{netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(i)}), 16)}}
		s.Services[moving] = model.Service{Frontends: []model.Frontend{f}}
		_, err := p.Sync(ctx, s)
		require.NoError(t, err)
	}
	resync(0)
	stop := make(chan struct{})
	var load sync.WaitGroup
	for _, f := range frontends {
		load.Go(func() {
			sent, lost := 0, 0
			for stopped := false; !stopped; sent++ {
				out, err := w.Send(ctx, modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.100"), To: f.Addr}, 1)
				if err != nil {
					t.Error(err)
					return
				}
				if out[0].Verdict != modeltest.Translated {
					lost++
				}
				select {
				case <-stop:
					stopped = true
				default:
				}
			}
			if sent < 20 || lost > 0 {
				t.Errorf("%s: %d connections, %d of them lost", f.Addr, sent, lost)
			}
		})
	}
	for i := range times(400) {
		resync(1 + i%200)
	}
	close(stop)
	load.Wait()
}

// Ranges are read and compared: a Sync leaves those that are right, and mends what others did.
func TestSyncMendsRanges(t *testing.T) {
	ctx := context.Background()
	w := modeltest.NewLab(t, modeltest.StageNode())
	s := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	s.Services["restricted"] = model.Service{Frontends: []model.Frontend{{Addr: netip.MustParseAddrPort("172.20.0.90:80"),
		SourceRanges: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("192.0.2.0/24")}}}}
	s.Endpoints["restricted"] = []model.Endpoint{{Addr: netip.MustParseAddrPort("10.128.0.11:8080")}}
	p := newIn("headgate")(t, w)
	_, err := p.Sync(ctx, s)
	require.NoError(t, err)
	elements := func() []string {
		found := regexp.MustCompile(`172\.[^,}]*`).FindAllString(nft(t, w, "", "list", "set", "ip", "headgate", "allowed"), -1)
		for i := range found {
			found[i] = strings.TrimSpace(found[i])
		}
		return found
	}
	before := elements()
	require.Len(t, before, 2)
	for _, script := range []string{
		"delete element ip headgate allowed { 172.20.0.90 . tcp . 80 . 10.0.0.0/8 }",
		"add element ip headgate allowed { 172.20.0.90 . tcp . 80 . 198.51.100.0/24 }",
		"flush set ip headgate allowed",
		"add element ip headgate allowed { 172.20.0.91 . tcp . 80-90 . 198.51.100.0/24 }",
	} {
		nft(t, w, script)
		require.NotElementsMatch(t, before, elements())
		_, err := p.Sync(ctx, s)
		require.NoError(t, err, script)
		require.ElementsMatch(t, before, elements(), script)
	}
}

// A client keeps its endpoint though somebody else's rules translate the source before ours could.
func TestAffinityBehindForeignSourceNAT(t *testing.T) {
	ctx := context.Background()
	w := modeltest.NewLab(t, modeltest.StageNode())
	s := model.State{Node: modeltest.StageNode(), Services: model.ServiceMap{}, Endpoints: model.EndpointMap{}}
	vip := netip.MustParseAddrPort("172.20.0.90:80")
	s.Services["sticky"] = model.Service{Frontends: []model.Frontend{{Addr: vip}}, Affinity: time.Hour}
	for _, a := range []string{"10.128.0.11:8080", "10.128.0.12:8080", "10.128.0.13:8080", "10.128.0.14:8080"} {
		s.Endpoints["sticky"] = append(s.Endpoints["sticky"], model.Endpoint{Addr: netip.MustParseAddrPort(a)})
	}
	p := newIn("headgate")(t, w)
	_, err := p.Sync(ctx, s)
	require.NoError(t, err)
	nft(t, w, "add table ip other; add chain ip other post { type nat hook postrouting priority 10; }; add rule ip other post masquerade")
	out, err := w.Send(ctx, modeltest.Packet{Kind: modeltest.FromPod, From: netip.MustParseAddr("10.128.0.100"), To: vip}, 20)
	require.NoError(t, err)
	for _, o := range out {
		require.Equal(t, modeltest.Translated, o.Verdict)
		require.Equal(t, out[0].Endpoint, o.Endpoint, "the client was led elsewhere")
	}
}
