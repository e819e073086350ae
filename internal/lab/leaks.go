package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// CheckLeaks looks at the process and at its own network namespace now and again at the end of the test,
// after the cleanups that are registered later, and fails the test if anything is left: open
// descriptors, goroutines, threads inside another namespace, child processes; links, addresses or
// nftables tables of the process's own namespace. It changes nothing there.
// Nothing else may run in the process meanwhile: no parallel test.
func CheckLeaks(t TB) {
	t.Helper()
	// Goroutines, threads and sockets end a little later than the call that ends them.
	checkLeaks(t, 10*time.Second)
}

func checkLeaks(t TB, patience time.Duration) {
	t.Helper()
	// The runtime opens its poller at the first use and keeps it.
	if r, w, err := os.Pipe(); err == nil {
		r.Close()
		w.Close()
	}
	before, err := takeStock()
	if err != nil {
		t.Fatalf("check leaks: %v", err)
	}
	t.Cleanup(func() {
		t.Helper()
		deadline := time.Now().Add(patience)
		for {
			after, err := takeStock()
			if err != nil {
				t.Errorf("check leaks: %v", err)
				return
			}
			diff := before.diff(after)
			if diff == "" {
				return
			}
			if time.Now().After(deadline) {
				t.Errorf("left behind:\n%s", diff)
				return
			}
			time.Sleep(20 * time.Millisecond)
		}
	})
}

// A stock is what there is, by kind and identity, with a name for messages. What has the identity of
// something that was there before is no leak, and what is new is one, however many have gone meanwhile.
type stock map[string]map[string]string

func (s stock) add(kind, id, name string) {
	if s[kind] == nil {
		s[kind] = map[string]string{}
	}
	s[kind][id] = name
}

// diff says what is there that was not before, and for the namespace that is not ours also what is no more.
func (s stock) diff(after stock) string {
	var lines []string
	for kind, things := range after {
		for id, name := range things {
			if s[kind][id] != name {
				lines = append(lines, kind+": "+name)
			}
		}
	}
	for _, kind := range []string{"link", "address", "nftables table"} {
		for id, name := range s[kind] {
			if after[kind][id] != name {
				lines = append(lines, kind+" gone: "+name)
			}
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "\n")
}

func takeStock() (stock, error) {
	s := stock{}
	for _, take := range []func(stock) error{descriptors, goroutines, threads, children, hostNetwork} {
		if err := take(s); err != nil {
			return nil, err
		}
	}
	return s, nil
}

func descriptors(s stock) error {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return err
	}
	for _, e := range entries {
		to, err := os.Readlink(filepath.Join("/proc/self/fd", e.Name()))
		if err != nil {
			continue // that of ReadDir itself, or closed meanwhile
		}
		s.add("descriptor", e.Name(), to)
	}
	return nil
}

// goroutines are named after the function that they were started in, which is the last line of a stack.
// Those of the runtime and of package testing are not the test's business.
func goroutines(s stock) error {
	buf := make([]byte, 1<<20)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	for _, g := range bytes.Split(buf, []byte("\n\n")) {
		_, created, ok := bytes.Cut(g, []byte("created by "))
		if !ok {
			continue // the main goroutine
		}
		name, _, _ := bytes.Cut(created, []byte(" in goroutine"))
		if bytes.HasPrefix(name, []byte("runtime.")) || bytes.HasPrefix(name, []byte("testing.")) || bytes.HasPrefix(name, []byte("os/signal.")) {
			continue
		}
		_, place, _ := bytes.Cut(created, []byte("\n"))
		place, _, _ = bytes.Cut(bytes.TrimSpace(place), []byte(" +"))
		id, _, _ := bytes.Cut(g, []byte(" ["))
		s.add("goroutine", string(id), string(name)+" at "+string(place))
	}
	return nil
}

// threads are those outside the namespace of the process.
func threads(s stock) error {
	own, err := os.Readlink("/proc/self/ns/net")
	if err != nil {
		return err
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return err
	}
	for _, task := range tasks {
		ns, err := os.Readlink(filepath.Join("/proc/self/task", task.Name(), "ns/net"))
		if err == nil && ns != own { // an ended thread has none
			s.add("thread in another namespace", task.Name(), task.Name()+" in "+ns)
		}
	}
	return nil
}

func children(s stock) error {
	files, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		return err
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			continue // an ended thread
		}
		for pid := range strings.FieldsSeq(string(b)) {
			name, err := os.ReadFile(filepath.Join("/proc", pid, "comm"))
			if err == nil {
				s.add("child process", pid, strings.TrimSpace(string(name)))
			}
		}
	}
	return nil
}

// hostNetwork looks at the namespace of the calling goroutine, which is that of the process.
func hostNetwork(s stock) error {
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer h.Close()
	links, err := h.LinkList()
	if err != nil {
		return fmt.Errorf("list links: %w", err)
	}
	for _, l := range links {
		s.add("link", l.Attrs().Name, l.Attrs().Name)
		addrs, err := h.AddrList(l, netlink.FAMILY_ALL)
		if err != nil {
			return fmt.Errorf("list addresses: %w", err)
		}
		for _, a := range addrs {
			name := l.Attrs().Name + " " + a.IPNet.String()
			s.add("address", name, name)
		}
	}
	return nftTables(s)
}

// nftTables lists the tables of all families. A kernel without nftables has none.
func nftTables(s stock) error {
	req := nl.NewNetlinkRequest(unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE, unix.NLM_F_DUMP)
	req.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_UNSPEC, Version: nl.NFNETLINK_V0})
	msgs, err := req.Execute(unix.NETLINK_NETFILTER, unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_NEWTABLE)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list nftables tables: %w", err)
	}
	for _, m := range msgs {
		if len(m) < nl.SizeofNfgenmsg {
			continue
		}
		attrs, err := nl.ParseRouteAttr(m[nl.SizeofNfgenmsg:])
		if err != nil {
			return fmt.Errorf("list nftables tables: %w", err)
		}
		for _, a := range attrs {
			if a.Attr.Type == unix.NFTA_TABLE_NAME {
				name := fmt.Sprintf("family %d %s", m[0], unix.ByteSliceToString(a.Value))
				s.add("nftables table", name, name)
			}
		}
	}
	return nil
}
