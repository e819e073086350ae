// Headgate is a CNI plugin that publishes containers' ports on the node, and joins containers to services by name. It
// is chained behind a plugin that gives containers their addresses, such as bridge:
//
//	{
//	  "cniVersion": "1.1.0",
//	  "name": "shop",
//	  "plugins": [
//	    {"type": "bridge", "bridge": "cni0", "isGateway": true,
//	     "ipam": {"type": "host-local", "subnet": "10.88.0.0/16", "routes": [{"dst": "0.0.0.0/0"}]}},
//	    {"type": "headgate", "capabilities": {"portMappings": true},
//	     "services": {"web": {"frontends": ["10.96.0.10:80"], "port": 8080}}}
//	  ]
//	}
//
// README.md has the whole of the configuration, and go run ./demo shows it at work.
//
// Each invocation is a process of its own, that knows nothing. What it has to know is in one file, see store; what the
// kernel shall hold follows from that, see state; and a Sync makes the kernel hold it, see program. For the protocol see
// https://www.cni.dev/docs/spec/.
package main

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/version"

	"github.com/headgate/headgate/nftables"
)

// patience is how long a command may take, the wait for those before it included.
const patience = 2 * time.Minute

func main() {
	runtime.LockOSThread() // threads that become others' stay apart from the first one, which stands for the process
	skel.PluginMainFuncs(skel.CNIFuncs{Add: with(add), Del: with(del), Check: with(check), GC: with(gc), Status: with(status)},
		version.PluginSupports("0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"),
		"CNI plugin headgate: publishes ports of containers on the node and joins containers to services\n"+
			"(a runtime starts it; to see it at work: sudo go run ./demo)")
}

// with makes a function that skel can call of a command.
func with(command func(context.Context, *skel.CmdArgs, config) error) func(*skel.CmdArgs) error {
	return func(args *skel.CmdArgs) error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		conf, err := parse(args)
		if err == nil {
			err = command(ctx, args, conf)
		}
		return coded(err)
	}
}

// add publishes the container's ports and joins it to its services. What it did it undoes if it fails half way, so that
// nobody meets half a container.
func add(ctx context.Context, args *skel.CmdArgs, conf config) error {
	a, err := conf.attachment(args)
	if err != nil {
		return err
	}
	if !a.idle() {
		if err := attach(ctx, conf, a); err != nil {
			return err
		}
	}
	return types.PrintResult(conf.PrevResult, conf.CNIVersion)
}

func attach(ctx context.Context, conf config, a attachment) error {
	s, before, err := openStore(ctx, conf.StateDir, exclusive)
	if err != nil {
		return err
	}
	defer s.Close()
	after, err := before.with(a)
	if err != nil {
		return err
	}
	p, err := nftables.New(ctx, nftables.Config{Table: conf.Table})
	if err != nil {
		return err
	}
	defer p.Close()
	// The file first: whatever the kernel may hold is in it, wherever this process ends.
	if err := s.save(after); err != nil {
		return err
	}
	err = program(ctx, p, before, after, a.serviceNames())
	if err != nil {
		undo := program(context.WithoutCancel(ctx), p, after, before, nil)
		if undo == nil {
			undo = s.save(before)
		}
		warn("this is left to DEL: undoing what was done", undo)
	}
	return err
}

// del undoes what add did, as far as it did it. It needs neither the container nor prevResult, and it is not an error
// if there is nothing to undo.
func del(ctx context.Context, args *skel.CmdArgs, conf config) error {
	return detach(ctx, conf, func(s state) state {
		return s.without(func(a attachment) bool { return a.key == conf.key(args) })
	})
}

// gc undoes what add did for attachments to this network that are not valid any more.
func gc(ctx context.Context, _ *skel.CmdArgs, conf config) error {
	return detach(ctx, conf, func(s state) state {
		s.damaged = nil // nobody will come back for them
		return s.without(func(a attachment) bool {
			valid := types.GCAttachment{ContainerID: a.Container, IfName: a.Interface}
			return a.Network == conf.Name && !slices.Contains(conf.ValidAttachments, valid)
		})
	})
}

func detach(ctx context.Context, conf config, left func(state) state) error {
	s, before, err := openStore(ctx, conf.StateDir, exclusive)
	if err != nil {
		return err
	}
	defer s.Close()
	after := left(before)
	p, err := nftables.New(ctx, nftables.Config{Table: conf.Table})
	if err != nil {
		return err
	}
	defer p.Close()
	// The kernel first, for the same reason.
	if err := program(ctx, p, before, after, nil); err != nil {
		return err
	}
	return s.save(after)
}

// warn tells the runtime's log of an error that is not worth failing for.
func warn(doing string, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "headgate: %s: %v\n", doing, err)
	}
}
