package main

import (
	"encoding/binary"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/model"
)

// message returns a netlink message without attributes, as nfnetlink has them.
func message(typ, flags uint16, payload ...byte) []byte {
	size := unix.SizeofNlMsghdr + len(payload)
	b := make([]byte, 0, size+3)
	b = binary.NativeEndian.AppendUint32(b, uint32(size))
	b = binary.NativeEndian.AppendUint16(b, typ)
	b = binary.NativeEndian.AppendUint16(b, flags|unix.NLM_F_REQUEST)
	b = append(b, make([]byte, 8)...) // sequence number and port
	b = append(b, payload...)
	return append(b, make([]byte, -len(b)&3)...)
}

// batch returns a transaction of messages.
func batch(messages ...[]byte) []byte {
	begin := message(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
	end := message(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNETLINK_V0, 0, unix.NFNL_SUBSYS_NFTABLES)
	for _, m := range messages {
		begin = append(begin, m...)
	}
	return append(begin, end...)
}

// table returns a message about the table "t".
func table(typ uint16, flags uint16) []byte {
	return message(unix.NFNL_SUBSYS_NFTABLES<<8|typ, flags|unix.NLM_F_ACK,
		unix.AF_INET, unix.NFNETLINK_V0, 0, 0, 6, 0, unix.NFTA_TABLE_NAME, 0, 't', 0, 0, 0)
}

func TestNetfilterSocket(t *testing.T) {
	ns := lab.StartNetNS(t, "floor")
	f, err := openNetfilterSocket(ns)
	require.NoError(t, err)
	defer f.Close()

	add := batch(table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE))
	took, err := send(f, [][]byte{add, add})
	require.NoError(t, err)
	require.Positive(t, took)

	_, err = send(f, [][]byte{batch(table(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE|unix.NLM_F_EXCL))})
	require.ErrorIs(t, err, unix.EEXIST)
	_, err = send(f, [][]byte{batch(table(unix.NFT_MSG_DELTABLE, 0))})
	require.NoError(t, err, "an error must not stay in the socket")
	_, err = send(f, [][]byte{batch(table(unix.NFT_MSG_DELTABLE, 0))})
	require.ErrorIs(t, err, unix.ENOENT)

	_, err = send(f, [][]byte{batch()})
	require.ErrorContains(t, err, "asks for no acknowledgement")
	_, err = send(f, nil)
	require.ErrorContains(t, err, "reported nothing")
}

func TestSplitBatches(t *testing.T) {
	one, two := batch(message(1, 0, 1, 2, 3)), batch()
	batches, err := splitBatches(append(append([]byte(nil), one...), two...))
	require.NoError(t, err)
	require.Equal(t, [][]byte{one, two}, batches)

	for name, stream := range map[string][]byte{
		"few bytes": {1, 2, 3},
		"too short": one[:len(one)-4],
		"no size":   make([]byte, 16),
		"no end":    append(append([]byte(nil), one...), message(1, 0)...),
	} {
		_, err := splitBatches(stream)
		require.Error(t, err, name)
	}
}

func TestRecorderKeepsCopies(t *testing.T) {
	r, err := newRecorder()
	require.NoError(t, err)
	defer r.Close()
	piece := []byte("abc")
	r.record(piece)
	piece[0] = 'x'
	r.record(piece)
	require.Equal(t, [][]byte{[]byte("abc"), []byte("xbc")}, r.take())
	require.Empty(t, r.take())
}

func TestChurn(t *testing.T) {
	for _, services := range []int{1, 7, 100, 1234} {
		cfg := config{services: services, endpoints: 3}
		want := cfg.state()
		tracker := cfg.track()
		tracker.State()
		c := newChurn(cfg, want)
		touched := map[model.ServiceName]bool{}
		for n := range 2 * changes {
			change, grows := c.add, 1
			if n >= changes {
				change, grows = c.remove, -1
			}
			e := change(n % changes)
			tracker.SetEndpoints(e.name, e.endpoints)
			d := tracker.Diff()
			require.Len(t, d.Changes, 1)
			before, after := d.Changes[0].Before.Endpoints, d.Changes[0].After.Endpoints
			require.Equal(t, len(before)+grows, len(after))
			touched[e.name] = true
		}
		require.Len(t, touched, min(services, changes))
	}
}

func TestStateHasWhatWasAsked(t *testing.T) {
	s := config{services: 10, endpoints: 4, affinity: 3, restricted: 2}.state()
	affine, restricted := 0, 0
	for name, svc := range s.Services {
		require.Len(t, s.Endpoints[name], 4)
		require.Len(t, svc.Frontends, 1)
		if svc.Affinity > 0 {
			affine++
		}
		if svc.Frontends[0].Restricted() {
			restricted++
		}
	}
	require.Equal(t, []int{10, 3, 2}, []int{len(s.Services), affine, restricted})
}

func TestQuantiles(t *testing.T) {
	values := []time.Duration{5, 1, 4, 2, 3}
	require.Equal(t, time.Duration(3), median(values))
	require.Equal(t, time.Duration(5), quantile(values, 0.99))
	require.Equal(t, time.Duration(1), quantile(values, 0))
	require.Equal(t, []time.Duration{5, 1, 4, 2, 3}, values, "the values must stay as they were")
	require.Zero(t, median([]int(nil)))
}

func TestCombine(t *testing.T) {
	samples := []sample{{sync: 3, removeFloor: 9, objects: 1}, {sync: 1, removeFloor: 8}, {sync: 2, removeFloor: 7, removeTransactions: 2}}
	require.Equal(t, sample{sync: 1, removeFloor: 7, objects: 1, removeTransactions: 2}, combine(samples, slices.Min))
	require.Equal(t, sample{sync: 2, removeFloor: 8, objects: 1, removeTransactions: 2}, combine(samples, median))
	require.Equal(t, time.Duration(3), samples[0].sync, "the samples must stay as they were")
}

func TestBars(t *testing.T) {
	bars := []bar{
		{"met", func(r map[string]*report) float64 { return r["a"].SyncSeconds / r["a"].FloorSeconds }, 1.5},
		{"missed", func(r map[string]*report) float64 { return r["a"].SyncSeconds }, 2},
		{"told", func(r map[string]*report) float64 { return 7 }, 0},
		{"no number", func(r map[string]*report) float64 { return (r["a"].CleanupSeconds) / r["a"].RestartSeconds }, 2},
	}
	reports := map[string]*report{"a": {SyncSeconds: 3, FloorSeconds: 2}}
	var out strings.Builder
	require.ErrorIs(t, judge(bars, reports, &out), errMissed)
	require.Equal(t, "met        1.50  at most 1.50  ok\nmissed     3.00  at most 2.00  MISSED\ntold       7.00                for information\nno number  NaN   at most 2.00  MISSED\n", out.String())
	require.NoError(t, judge(bars[:1], reports, &out))
}

func TestEveryBackendHasBars(t *testing.T) {
	for _, name := range backendNames() {
		c, ok := checks()[name]
		require.True(t, ok, name)
		reports := map[string]*report{}
		for _, run := range c.runs {
			reports[run.name] = &report{connectReport: &connectReport{}, ruleReport: &ruleReport{}, peerReport: &peerReport{}, churnReport: &churnReport{}}
			cfg := run.config
			cfg.runs = 1
			require.NoError(t, cfg.check(), run.name)
		}
		for _, b := range c.bars {
			b.ratio(reports) // panics if it speaks of a run that is not made
			require.GreaterOrEqual(t, b.most, 0.0, b.what)
		}
	}
}

// A stream of pieces falls apart where each of them says for which family it is.
func TestSplitScripts(t *testing.T) {
	four, six := append(heading(model.IPv4), "*nat\nCOMMIT\n"...), append(heading(model.IPv6), "*filter\nCOMMIT\n"...)
	pieces, err := splitScripts(slices.Concat(six, four, four))
	require.NoError(t, err)
	require.Equal(t, [][]byte{six, four, four}, pieces)
	f, err := familyOf(pieces[0])
	require.NoError(t, err)
	require.Equal(t, model.IPv6, f)
	_, err = splitScripts([]byte("*nat\nCOMMIT\n"))
	require.ErrorContains(t, err, "does not say for which family")
}

// A stream of pieces falls apart where each of them says where it goes.
func TestSplitAddressed(t *testing.T) {
	one, two := addressed(unix.NETLINK_ROUTE, message(24, 0, 1, 2, 3)), addressed(unix.NETLINK_NETFILTER, batch())
	pieces, err := splitAddressed(slices.Concat(one, two))
	require.NoError(t, err)
	require.Equal(t, [][]byte{one, two}, pieces)
	family, messages, err := addressee(pieces[0])
	require.NoError(t, err)
	require.Equal(t, unix.NETLINK_ROUTE, family)
	require.Equal(t, message(24, 0, 1, 2, 3), messages)
	_, _, err = addressee(messages)
	require.ErrorContains(t, err, "does not say where it goes")
	_, err = splitAddressed([]byte{1, 2, 3})
	require.Error(t, err)
}
