package main

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
)

func TestUnhealthy(t *testing.T) {
	now := time.Now()
	ago := func(d time.Duration) time.Time { return now.Add(-d) }
	good := func(change func(*model.Overview)) model.Overview {
		o := model.Overview{Ready: true, Synced: true, Running: true, LastSync: ago(time.Hour), LastCheck: ago(5 * time.Second)}
		change(&o)
		return o
	}
	refused := errors.New("netlink: no buffer space")
	for name, c := range map[string]struct {
		o    model.Overview
		want string
	}{
		"well":               {good(func(*model.Overview) {}), ""},
		"change just made":   {good(func(o *model.Overview) { o.PendingSince = ago(time.Second) }), ""},
		"failure just now":   {good(func(o *model.Overview) { o.PendingSince, o.Err = ago(time.Second), refused }), ""},
		"synced, no check":   {good(func(o *model.Overview) { o.LastSync, o.LastCheck = ago(time.Second), time.Time{} }), ""},
		"no file":            {model.Overview{Running: true}, "nothing is programmed: there was no good file yet"},
		"refused from start": {model.Overview{Running: true, Ready: true, Err: refused}, "nothing is programmed yet: netlink: no buffer space"},
		"behind":             {good(func(o *model.Overview) { o.PendingSince, o.Err = ago(31*time.Second), refused }), "a change has been waiting for 31s: netlink: no buffer space"},
		"unchecked":          {good(func(o *model.Overview) { o.LastCheck = ago(time.Minute) }), "the kernel was last seen in step 1m0s ago"},
		"stopped":            {good(func(o *model.Overview) { o.Running = false }), "stopped"},
	} {
		t.Run(name, func(t *testing.T) {
			err := unhealthy(c.o, now, 30*time.Second)
			if c.want == "" {
				require.NoError(t, err)
			} else {
				require.EqualError(t, err, c.want)
			}
		})
	}
}

func TestReportIsReadable(t *testing.T) {
	now := time.Now()
	r := report{
		Backend: "nftables", Unhealthy: "a change has been waiting for 31s", LastSync: now.Add(-time.Minute), Drifts: 2,
		File: fileReport{Path: "/etc/fileproxy/services.yaml", Taken: now.Add(-time.Hour), Err: "line 3: no\nline 4: no"},
		Services: []serviceReport{
			{Name: "shop/dns", State: "faulty", Errors: []string{`line 9: unknown field "adress"`}},
			{Name: "shop/web", State: "programmed", Frontends: []string{"10.96.0.10:80 tcp"}, Endpoints: []string{"10.0.1.1:8080 ready", "10.0.1.2:8080 draining"}},
		},
	}
	var b strings.Builder
	r.write(&b, now)
	require.Equal(t, strings.TrimPrefix(`
nftables: NOT HEALTHY: a change has been waiting for 31s
  programmed 1m0s ago, checked never, mended 2 times what others had changed
/etc/fileproxy/services.yaml: last good 1h0m0s ago
  NO GOOD NOW: line 3: no
  line 4: no

SERVICE   STATE       FRONTENDS          ENDPOINTS
shop/dns  faulty
  line 9: unknown field "adress"
shop/web  programmed  10.96.0.10:80 tcp  10.0.1.1:8080 ready
                                         10.0.1.2:8080 draining
`, "\n"), b.String())
}
