package main

import (
	"context"
	"fmt"
	"reflect"
	"slices"

	"github.com/containernetworking/cni/pkg/skel"
	"github.com/containernetworking/cni/pkg/types"

	"github.com/headgate/headgate/nftables"
)

// check fails unless all that add does for the container is there: in the file and in the kernel.
func check(ctx context.Context, args *skel.CmdArgs, conf config) error {
	a, err := conf.attachment(args)
	if err != nil || a.idle() {
		return err
	}
	s, st, err := openStore(ctx, conf.StateDir, shared)
	if err != nil {
		return err
	}
	defer s.Close()
	if recorded, ok := st.find(a.key); !ok {
		return fmt.Errorf("%s is not recorded in %s", a.key, s.file())
	} else if !reflect.DeepEqual(recorded, a) {
		return fmt.Errorf("%s is recorded in %s otherwise than it is configured", a.key, s.file())
	}
	want := st.wanted(nil)
	names := a.serviceNames()
	for name := range want.Services {
		if !slices.Contains(names, name) {
			delete(want.Services, name)
		}
	}
	return verify(ctx, conf, want)
}

// status fails if add would, or if what was done for containers is not there any more.
func status(ctx context.Context, _ *skel.CmdArgs, conf config) error {
	p, err := nftables.New(ctx, nftables.Config{Table: conf.Table})
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "nftables cannot be programmed", err.Error())
	}
	defer p.Close()
	if report, err := p.Probe(ctx); err == nil {
		for _, w := range report.Warnings {
			warn("what may stand in the way of traffic", w)
		}
	}
	s, st, err := openStore(ctx, conf.StateDir, shared)
	if err != nil {
		return types.NewError(types.ErrPluginNotAvailable, "the state cannot be kept", err.Error())
	}
	defer s.Close()
	if n := len(st.damaged); n > 0 {
		return types.NewError(types.ErrLimitedConnectivity, "containers have been lost", fmt.Sprintf("%s has %d lines that cannot be read", s.file(), n))
	}
	if err := verify(ctx, conf, st.wanted(nil)); err != nil {
		return types.NewError(types.ErrLimitedConnectivity, "rules of containers are missing; the next ADD or DEL brings them back", err.Error())
	}
	return nil
}
