package conntrack

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	"github.com/ti-mo/netfilter"
	"golang.org/x/sys/unix"
)

// probe asks whether this process may clean and what the kernel can, and notes whether it filters.
func (c *Cleaner) probe(ctx context.Context) error {
	_, err := c.usage(ctx)
	switch {
	case errors.Is(err, unix.EINVAL): // what nfnetlink says about a subsystem that is not there
		return fmt.Errorf("nf_conntrack_netlink: %w", model.ErrNotSupported)
	case errors.Is(err, model.ErrPermission):
		return fmt.Errorf("CAP_NET_ADMIN: %w", err)
	case err != nil:
		return err
	}
	if c.cfg.NoKernelFilter {
		return nil
	}
	c.filters, err = c.probeFilter(ctx)
	return err
}

// errSeen ends a listing as soon as it has begun.
var errSeen = errors.New("seen")

// probeFilter reports whether the kernel knows CTA_FILTER. A port without its protocol makes no sense to those that
// do, and they say so; the others do not look at it.
func (c *Cleaner) probeFilter(ctx context.Context) (bool, error) {
	ae := netfilter.NewAttributeEncoder()
	ae.Nested(ctaTupleOrig, func(tuple *netlink.AttributeEncoder) error {
		tuple.Nested(ctaTupleProto, func(proto *netlink.AttributeEncoder) error {
			proto.Uint16(ctaProtoDstPort, 1)
			return nil
		})
		return nil
	})
	ae.Nested(ctaFilter, func(flags *netlink.AttributeEncoder) error {
		flags.ByteOrder = binary.NativeEndian
		flags.Uint32(ctaFilterOrigFlags, filterDstPort)
		return nil
	})
	m, err := netfilter.EncodeNetlink(header(msgGet, netlink.Dump, netfilter.ProtoIPv4), ae)
	if err != nil {
		return false, err
	}
	err = c.table.ask(ctx, m, func([][]byte) error { return errSeen })
	switch {
	case errors.Is(err, unix.EINVAL):
		return true, nil
	case err == nil, errors.Is(err, errSeen):
		return false, nil
	default:
		return false, err
	}
}

// Probe says what a Cleaner with this configuration would lack, and what stands in its way. It writes nothing. The
// error is for what kept it from finding out.
func Probe(ctx context.Context, cfg Config) (model.Report, error) {
	var r model.Report
	c, err := New(ctx, cfg)
	switch {
	case errors.Is(err, model.ErrPermission):
		r.Missing = append(r.Missing, model.Finding{What: "CAP_NET_ADMIN", Err: err, Remedy: "run as root or with this capability"})
		return r, nil
	case errors.Is(err, model.ErrNotSupported):
		r.Missing = append(r.Missing, model.Finding{What: "nf_conntrack_netlink", Err: err, Remedy: "modprobe nf_conntrack_netlink"})
		return r, nil
	case err != nil:
		return r, err
	}
	defer c.Close()
	if !c.filters && !cfg.NoKernelFilter {
		r.Warnings = append(r.Warnings, model.Finding{What: "CTA_FILTER",
			Err: fmt.Errorf("the kernel lists whole tables alone, cleaning costs more: %w", model.ErrNotSupported), Remedy: "Linux 5.8 or later"})
	}
	u, err := c.Usage(ctx)
	if err != nil {
		return r, err
	}
	if u.Fraction() > fullWarning {
		r.Warnings = append(r.Warnings, model.Finding{What: sysctlMax,
			Err: fmt.Errorf("%d of %d entries are in use: new connections are dropped when it is full", u.Entries, u.Limit), Remedy: "Tune, or sysctl -w " + sysctlMax})
	}
	return r, nil
}

// fullWarning is how full a table may be before Probe warns.
const fullWarning = 0.85
