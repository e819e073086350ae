package ipvs

import (
	"context"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
	"github.com/headgate/headgate/internal/netns"
)

// B71: ten thousand Programmers that are opened, used and closed leave nothing behind: no descriptor, no goroutine, no
// thread. Where the kernel has IPVS some of them program it, and a brief deadline stops some.
func TestNothingLeaks(t *testing.T) {
	lab.NeedRoot(t)
	lab.CheckLeaks(t)
	ns := lab.StartNetNS(t, "leaks")
	ctx := context.Background()
	cfg, err := Config{NetNS: ns.FD(), SetSysctls: true}.withDefaults()
	require.NoError(t, err)
	_, missing := os.Stat("/proc/net/ip_vs")
	cycles, stopped := 10_000, 0
	if os.Getenv("HEADGATE_VM") != "" {
		cycles /= 10 // an emulated processor needs a hundred times as long
	}
	for i := range cycles {
		held, err := netns.Open(cfg.NetNS)
		require.NoError(t, err)
		p := newProgrammer(cfg, held, nil)
		_, err = p.kernel.services(ctx)
		require.Equal(t, missing != nil, errors.Is(err, errNoModule), "%v", err)
		_, err = p.kernel.routes(ctx)
		require.NoError(t, err)
		if i%100 == 0 && missing == nil {
			_, err = p.Sync(ctx, drainState(0, epA, epB))
			require.NoError(t, err)
			brief, cancel := context.WithTimeout(ctx, time.Duration(i)*time.Microsecond)
			if _, err = p.Sync(brief, drainState(0, epA)); err != nil {
				stopped++
			}
			cancel()
			require.NoError(t, p.Cleanup(ctx))
		}
		require.NoError(t, p.Close())
	}
	require.Equal(t, missing == nil, stopped > 0)
}
