package main

import (
	"net/netip"
	"strings"

	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/containernetworking/cni/pkg/types"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/examples/cni/internal/site"
	"github.com/headgate/headgate/internal/lab"
)

// bin has the programs of this test: the plugin, those that it stands behind, and cnitool.
var bin string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "headgate-cni-")
	if err == nil {
		defer os.RemoveAll(dir)
		bin = filepath.Join(dir, "bin")
		// One test runs the plugin as somebody else.
		err = errors.Join(os.Chmod(dir, 0o755), site.Build(context.Background(), dir))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return m.Run()
}

// A world is a site with what tests ask of it.
type world struct {
	*site.Site
	t testing.TB
}

// newWorld makes a site for one test.
func newWorld(t testing.TB, config map[string]any) *world {
	t.Helper()
	lab.NeedRoot(t)
	s, err := site.New(t.TempDir(), bin, config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return &world{s, t}
}

// container makes a container with servers in it, which answer at the port over TCP and UDP with its id.
func (w *world) container(id string, port uint16, ports ...map[string]any) *site.Container {
	w.t.Helper()
	c, err := w.NewContainer(id, ports...)
	require.NoError(w.t, err)
	w.t.Cleanup(func() { require.NoError(w.t, c.Close()) })
	serve(w.t, c, port)
	return c
}

// serve starts the servers of a container, at all addresses that it will have.
func serve(t testing.TB, c *site.Container, port uint16) {
	t.Helper()
	for _, p := range []lab.Protocol{lab.TCP, lab.UDP} {
		for _, all := range []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()} {
			_, err := c.ServeAs(c.Runtime.ContainerID, p, netip.AddrPortFrom(all, port))
			require.NoError(t, err)
		}
	}
}

// add attaches containers.
func (w *world) add(containers ...*site.Container) {
	w.t.Helper()
	for _, c := range containers {
		_, err := w.Add(w.t.Context(), c)
		require.NoError(w.t, err)
	}
}

// ask asks from a namespace.
func (w *world) ask(from *lab.NetNS, p lab.Protocol, to string) lab.Answer {
	w.t.Helper()
	a, err := from.Ask(w.t.Context(), lab.Query{Proto: p, To: netip.MustParseAddrPort(to)})
	require.NoError(w.t, err)
	return a
}

// answers sees that somebody answers.
func (w *world) answers(from *lab.NetNS, p lab.Protocol, to, name string) lab.Answer {
	w.t.Helper()
	a := w.ask(from, p, to)
	require.Equal(w.t, lab.Answered, a.Verdict, "%s from %s to %s", p, from.Name(), to)
	require.Equal(w.t, name, a.Name)
	return a
}

// silent sees that nobody answers.
func (w *world) silent(from *lab.NetNS, p lab.Protocol, to string) {
	w.t.Helper()
	require.NotEqual(w.t, lab.Answered, w.ask(from, p, to).Verdict, "%s from %s to %s", p, from.Name(), to)
}

// code returns the number of the error with which the plugin failed.
func (w *world) code(err error) uint {
	w.t.Helper()
	var told *types.Error
	require.ErrorAs(w.t, err, &told)
	return told.Code
}

// nft runs the stock tool on the node and returns what it prints.
func (w *world) nft(args ...string) string {
	w.t.Helper()
	out, err := w.Node.Command(w.t.Context(), "nft", args...).Output()
	require.NoError(w.t, err)
	return string(out)
}

// recorded returns the ids of the containers in the plugin's file.
func (w *world) recorded() []string {
	w.t.Helper()
	s := store{dir: w.StateDir()}
	st, err := s.load()
	require.NoError(w.t, err)
	require.Empty(w.t, st.damaged)
	var ids []string
	for _, a := range st.attachments {
		ids = append(ids, a.Container)
	}
	return ids
}

// command prepares the plugin to be run alone, as the second of the chain.
func (w *world) command(command string, env map[string]string, config string) *lab.Cmd {
	cmd := w.Node.Command(w.t.Context(), filepath.Join(bin, "headgate"))
	cmd.Env = append(os.Environ(), "CNI_COMMAND="+command, "CNI_PATH="+bin)
	for k, v := range env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	cmd.Stdin = strings.NewReader(config)
	return cmd
}

// plugin runs the plugin alone and returns what it prints.
func (w *world) plugin(command string, env map[string]string, config string) ([]byte, error) {
	return w.command(command, env, config).Output()
}

// told returns the error that the plugin printed.
func told(t testing.TB, out []byte) (e types.Error) {
	t.Helper()
	require.NoError(t, json.Unmarshal(out, &e), "%s", out)
	return e
}
