package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/lab"
)

func TestDoIsInside(t *testing.T) {
	lab.CheckLeaks(t)
	n := lab.StartNetNS(t, "inside")
	outside, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	inside, err := os.Readlink(n.Path())
	require.NoError(t, err)
	require.NotEqual(t, outside, inside)
	for range 20 {
		require.NoError(t, n.Do(func() error {
			here, err := os.Readlink("/proc/thread-self/ns/net")
			require.Equal(t, inside, here)
			return err
		}))
	}
	after, err := os.Readlink("/proc/self/ns/net")
	require.NoError(t, err)
	require.Equal(t, outside, after)
	out, err := n.Command(t.Context(), "readlink", "/proc/self/ns/net").Output()
	require.NoError(t, err)
	require.Equal(t, inside, strings.TrimSpace(string(out)))
}

func TestDoHandsOnHowItEnds(t *testing.T) {
	lab.CheckLeaks(t)
	n := lab.StartNetNS(t, "ends")
	broken := errors.New("broken")
	require.ErrorIs(t, n.Do(func() error { return broken }), broken)
	require.PanicsWithValue(t, "oops", func() { _ = n.Do(func() error { panic("oops") }) })
	exited := make(chan bool)
	go func() {
		defer close(exited)
		_ = n.Do(func() error { runtime.Goexit(); return nil })
		exited <- true
	}()
	require.False(t, <-exited, "Goexit must go on in the caller")
	require.NoError(t, n.Close())
	require.NoError(t, n.Close())
	require.ErrorIs(t, n.Do(func() error { return nil }), lab.ErrClosed)
	require.ErrorIs(t, n.Sysctl("net/ipv4/ip_forward", "1"), lab.ErrClosed)
}

func TestSysctlIsOfTheNamespace(t *testing.T) {
	n := lab.StartNetNS(t, "sysctl")
	own, err := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl")
	require.NoError(t, err)
	require.NoError(t, n.Sysctl("net/ipv4/ip_default_ttl", "77"))
	v, err := n.ReadSysctl("net/ipv4/ip_default_ttl")
	require.NoError(t, err)
	require.Equal(t, "77", v)
	still, err := os.ReadFile("/proc/sys/net/ipv4/ip_default_ttl")
	require.NoError(t, err)
	require.Equal(t, own, still)
}

func TestCommandDiesWithItsNamespace(t *testing.T) {
	lab.CheckLeaks(t)
	n := lab.StartNetNS(t, "command")
	c := n.Command(context.Background(), "sleep", "1000")
	require.NoError(t, c.Start())
	require.NoError(t, n.Close())
	err := c.Wait()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, unix.SIGKILL, exit.Sys().(syscall.WaitStatus).Signal())
}

// TestNothingSurvivesAKill runs this test binary again, which builds a topology and is killed.
func TestNothingSurvivesAKill(t *testing.T) {
	lab.NeedRoot(t)
	lab.CheckLeaks(t)
	if os.Getenv("LAB_TO_BE_KILLED") != "" {
		topo := network(t)
		c := topo.Node.Command(context.Background(), "sleep", "1000")
		require.NoError(t, c.Start())
		_, err := fmt.Fprintln(os.Stdout, "sleeper", c.Process.Pid)
		require.NoError(t, err)
		time.Sleep(time.Hour) // blocked for good, a program whose goroutines all sleep would be ended by the runtime
	}
	c := exec.Command("/proc/self/exe", "-test.run=^TestNothingSurvivesAKill$")
	c.Env = append(os.Environ(), "LAB_TO_BE_KILLED=1")
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	var sleeper int
	_, err = fmt.Fscanln(out, new(string), &sleeper)
	require.NoError(t, err)
	require.NoError(t, unix.Kill(sleeper, 0), "it runs")
	require.NoError(t, c.Process.Kill())
	_ = c.Wait()
	require.Eventually(t, func() bool { return !runs(sleeper, "sleep") }, 20*time.Second, 20*time.Millisecond)
}

// runs reports whether a process of that name has the number. One that nobody waited for yet has ended.
func runs(pid int, name string) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), "("+name+")") && !strings.Contains(string(stat), ") Z ")
}

func TestServersOfTheCallersOwn(t *testing.T) {
	lab.CheckLeaks(t)
	topo := network(t)
	l, err := topo.Host("a").Listen(netip.MustParseAddrPort("10.128.0.11:9000"))
	require.NoError(t, err)
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			_, _ = c.Write([]byte("hello"))
			c.Close()
		}
	}()
	c, err := topo.Host("client").DialContext(t.Context(), "tcp", "10.128.0.11:9000")
	require.NoError(t, err)
	defer c.Close()
	buf := make([]byte, 5)
	_, err = c.Read(buf)
	require.NoError(t, err)
	require.Equal(t, "hello", string(buf))
	require.Equal(t, "10.128.0.100", c.LocalAddr().(*net.TCPAddr).IP.String())
}

func TestEchoOfThePing(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	for _, c := range []struct {
		from, to string
		verdict  lab.Verdict
	}{
		{"10.128.0.100", "10.128.0.11:0", lab.Answered},
		{"10.128.0.100", "203.0.113.5:0", lab.Answered},
		{"198.51.100.10", "10.128.1.21:0", lab.Answered},
		{"fd10:128:0:a::100", "[2001:db8:e::5]:0", lab.Answered},
		{"2001:db8:a::10", "[fd10:128:0:a::11]:0", lab.Answered},
		{"10.128.0.100", "172.20.0.8:80", lab.Refused},
		{"fd10:128:0:a::100", "[fd20::8]:0", lab.Refused},
		{"198.51.100.10", "172.20.0.8:0", lab.Refused},
		{"2001:db8:a::10", "[fd20::8]:0", lab.Refused},
		{"10.128.0.100", "172.20.0.9:0", lab.Dropped},
		{"2001:db8:a::10", "[fd20::9]:0", lab.Dropped},
		{"203.0.113.5", "172.20.0.1:80", lab.Passed},
		{"2001:db8:a::10", "[fd20::1]:0", lab.Passed},
	} {
		a, err := topo.Ask(t.Context(), query(c.from, lab.ICMP, c.to))
		require.NoError(t, err)
		require.Equal(t, c.verdict, a.Verdict, "%s -> %s: %s", c.from, c.to, a)
	}
}

func TestRefusalNamesItsAuthor(t *testing.T) {
	topo := network(t)
	load(t, topo, rules)
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP, lab.ICMP} {
		a, err := topo.Ask(t.Context(), query("10.128.0.100", p, "172.20.0.8:80"))
		require.NoError(t, err)
		if _, err := os.Stat("/proc/net/sctp"); p != lab.SCTP || err != nil { // the sockets of SCTP do not tell
			require.Equal(t, "198.51.100.10", a.By.String(), "%s: %s", p, a)
		}
		require.ErrorIs(t, a.Err, unix.ECONNREFUSED, p)
	}
	a, err := topo.Ask(t.Context(), query("10.128.0.100", lab.TCP, "172.20.0.7:80"))
	require.NoError(t, err)
	require.Equal(t, lab.Refused, a.Verdict)
	require.False(t, a.By.IsValid(), "a reset has no author")
}

// A host that nobody serves on refuses by itself.
func TestHostsRefuseWhatTheyDoNotServe(t *testing.T) {
	topo := network(t)
	lab.Serve(t, topo, lab.SCTP, netip.MustParseAddrPort("10.128.0.11:8080"))
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP, lab.SCTP} {
		for _, to := range []string{"10.128.0.11:81", "10.128.0.12:81", "198.51.100.10:81"} {
			a, err := topo.Ask(t.Context(), query("10.128.0.100", p, to))
			require.NoError(t, err)
			require.Equal(t, lab.Refused, a.Verdict, "%s %s: %s", p, to, a)
		}
	}
}
