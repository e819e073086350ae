package netns

import (
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/internal/lab"
)

// What runs inside is inside, whatever thread it came from, and the caller stays where it is.
func TestDo(t *testing.T) {
	lab.NeedRoot(t)
	there := lab.StartNetNS(t, "there")
	ns, err := Open(there.FD())
	require.NoError(t, err)
	where := func() string {
		place, err := os.Readlink(ofThread)
		assert.NoError(t, err)
		return place
	}
	home, inside := where(), ""
	for range 100 {
		require.NoError(t, ns.Do(func() error { inside = where(); return nil }))
		require.NotEqual(t, home, inside)
		require.Equal(t, home, where())
	}
	failed := errors.New("failed")
	require.ErrorIs(t, ns.Do(func() error { return failed }), failed)
	require.NoError(t, ns.Do(func() error {
		again, err := Open(0)
		if assert.NoError(t, err) {
			assert.True(t, again.entered(), "0 is the calling thread's")
			err = again.Close()
		}
		return err
	}))
	require.NoError(t, InScratch(func() error {
		assert.NotContains(t, []string{home, inside}, where())
		return nil
	}))
	require.NoError(t, ns.Close())
	_, err = Open(1 << 20)
	require.ErrorContains(t, err, "descriptor 1048576 of a network namespace")
}

func TestSysctls(t *testing.T) {
	lab.NeedRoot(t)
	ns, err := Open(lab.StartNetNS(t, "sysctls").FD())
	require.NoError(t, err)
	defer ns.Close()
	require.NoError(t, ns.Do(func() error {
		const forward, none = "net.ipv4.ip_forward", "net.ipv4.no_such_thing"
		assert.NoError(t, WriteSysctl(forward, "0"))
		found, err := Zeros(forward, none)
		assert.NoError(t, err)
		if assert.Len(t, found, 1) {
			assert.Equal(t, forward, found[0].What)
		}
		assert.NoError(t, WriteSysctl(forward, "1"))
		value, err := ReadSysctl(forward)
		assert.NoError(t, err)
		assert.Equal(t, "1", value)
		found, err = Zeros(forward, none)
		assert.NoError(t, err)
		assert.Empty(t, found)
		assert.Error(t, WriteSysctl(none, "1"))
		return nil
	}))
}
