package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/example/exampletest"
	"github.com/headgate/headgate/internal/lab"
)

func TestMain(m *testing.M) { os.Exit(exampletest.Main(m, main)) }

// A rig is a node on which a fileproxy runs, between a client and three servers:
//
//	client 203.0.113.7 --- node 192.0.2.1 --- alpha 10.0.1.1, beta 10.0.1.2, gamma 10.0.1.3
type rig struct {
	*lab.Topology
	t         *testing.T
	dir, file string
	args      []string
	wrap      []string // a program that starts fileproxy, with its arguments
	self      string
	env       []string
	running   *lab.Cmd
	log       *journal
}

const (
	vip     = "10.96.0.10:80"
	dnsVIP  = "10.96.0.53:53"
	metrics = "127.0.0.1:9770"
)

// start builds the network. Nothing runs yet, and there is no file.
func start(t *testing.T, args ...string) *rig {
	program := exampletest.Command(t)
	r := &rig{t: t, dir: t.TempDir(), args: args, self: program.Path, env: program.Env, log: &journal{}}
	r.file = filepath.Join(t.TempDir(), "services.yaml")
	spec := lab.Spec{
		Node:  []netip.Addr{netip.MustParseAddr("192.0.2.1")},
		Hosts: []lab.Host{{Name: "client", Place: lab.Far, Addrs: []netip.Addr{netip.MustParseAddr("203.0.113.7")}}},
	}
	names := []string{"alpha", "beta", "gamma"}
	for i, name := range names {
		spec.Hosts = append(spec.Hosts, lab.Host{Name: name, Addrs: []netip.Addr{netip.AddrFrom4([4]byte{10, 0, 1, byte(i + 1)})}})
	}
	r.Topology = lab.Start(t, spec)
	for _, name := range names {
		_, err := r.Host(name).ServeAs(name, lab.TCP, netip.MustParseAddrPort("0.0.0.0:8080"))
		require.NoError(t, err)
		_, err = r.Host(name).ServeAs(name, lab.UDP, netip.MustParseAddrPort("0.0.0.0:5353"))
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.log.String())
		}
	})
	return r
}

// command prepares a fileproxy in the node's namespace.
func (r *rig) command(args ...string) *lab.Cmd {
	all := append(append([]string{}, r.wrap...), append([]string{r.self}, args...)...)
	cmd := r.Node.Command(context.Background(), all[0], all[1:]...)
	cmd.Env = r.env
	return cmd
}

// run starts the daemon.
func (r *rig) run() {
	r.t.Helper()
	cmd := r.command(append([]string{"-dir", r.dir, "-file", r.file, "-listen", metrics}, r.args...)...)
	cmd.Stderr = r.log
	require.NoError(r.t, cmd.Start())
	r.running = cmd
}

// end sends the daemon a signal and returns how it ended.
func (r *rig) end(sig os.Signal) error {
	r.t.Helper()
	require.NoError(r.t, r.running.Process.Signal(sig))
	return r.running.Wait()
}

// client runs a subcommand to its end, and returns what it printed.
func (r *rig) client(args ...string) (string, error) {
	cmd := r.command(append(args, "-dir", r.dir)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// write makes text the content of the file, as editors do.
func (r *rig) write(text string) {
	r.t.Helper()
	writeFile(r.t, r.file, text)
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o644))
	require.NoError(t, os.Rename(path+".new", path))
}

// patience is how long anything may take.
const patience = time.Minute

// until waits until the daemon's report is as it should be.
func (r *rig) until(what string, is func(report) bool) report {
	r.t.Helper()
	var last report
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(20 * time.Millisecond) {
		last = report{}
		body, err := ask(context.Background(), r.dir, "/status", nil)
		if err == nil && json.Unmarshal(body, &last) == nil && is(last) {
			return last
		}
	}
	require.Failf(r.t, "waited in vain until "+what, "%+v", last)
	return last
}

// service returns what the report says of one service.
func (r report) service(name string) serviceReport {
	for _, s := range r.Services {
		if string(s.Name) == name {
			return s
		}
	}
	return serviceReport{}
}

// programmed reports whether the service is, with so many endpoints.
func programmed(name string, endpoints int) func(report) bool {
	return func(r report) bool {
		s := r.service(name)
		return s.State == "programmed" && len(s.Endpoints) == endpoints
	}
}

// answers asks the service from the client, and requires that these servers answer and nobody else.
func (r *rig) answers(names ...string) {
	r.t.Helper()
	tally, err := r.Host("client").AskMany(context.Background(), web(), 60)
	require.NoError(r.t, err)
	require.Zero(r.t, tally.Refused+tally.TimedOut, "%+v", tally)
	var got []string
	for name := range tally.ByName {
		got = append(got, name)
	}
	require.ElementsMatch(r.t, names, got)
}

// silent requires that nobody answers.
func (r *rig) silent() {
	r.t.Helper()
	a, err := r.Ask(context.Background(), web())
	require.NoError(r.t, err)
	require.NotEqual(r.t, lab.Answered, a.Verdict)
}

func web() lab.Query {
	return lab.Query{Proto: lab.TCP, To: netip.MustParseAddrPort(vip), Source: netip.MustParseAddrPort("203.0.113.7:0")}
}

// get asks the daemon by HTTP in the node's namespace.
func (r *rig) get(path string) (code int, body string) {
	r.t.Helper()
	client := http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		return r.Node.DialContext(ctx, network, addr)
	}}}
	resp, err := client.Get("http://" + metrics + path)
	require.NoError(r.t, err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	require.NoError(r.t, err)
	return resp.StatusCode, string(text)
}

// sh runs one of the stock tools in the node's namespace.
func (r *rig) sh(name string, args ...string) string {
	r.t.Helper()
	out, err := r.Node.Command(context.Background(), name, args...).CombinedOutput()
	require.NoError(r.t, err, "%s", out)
	return string(out)
}

// everybodys copies the program to where everybody may run it, and makes the folders everybody's.
func (r *rig) everybodys() {
	r.t.Helper()
	r.self = exampletest.ForEverybody(r.t, r.self)
	dir := filepath.Dir(r.self)
	r.file, r.dir = filepath.Join(dir, "services.yaml"), filepath.Join(dir, "run")
	require.NoError(r.t, os.Mkdir(r.dir, 0o755))
	for _, path := range []string{dir, r.dir} {
		require.NoError(r.t, unix.Chown(path, 65534, 65534))
	}
}

// A journal is what a program logs.
type journal struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (j *journal) Write(b []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.Write(b)
}

func (j *journal) String() string {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.text.String()
}
