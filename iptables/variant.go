package iptables

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/headgate/headgate/internal/netns"
	"github.com/headgate/headgate/model"
)

// A finder looks for the programs of this host.
type finder struct {
	cfg Config
	ns  *netns.NetNS
}

// tools returns the programs of a family and variant: those named after it or, if there are none, the plain ones if they are
// of that variant.
func (f *finder) tools(ctx context.Context, fam model.Family, v Variant) (*tools, error) {
	t, err := lookTools(fam, v, f.cfg.Dir)
	if err == nil {
		return f.settle(t, v), nil
	}
	plain, plainErr := lookTools(fam, Auto, f.cfg.Dir)
	if plainErr != nil {
		return nil, fmt.Errorf("%w: %w", model.ErrNotSupported, err)
	}
	f.settle(plain, v)
	is, err := plain.ofVariant(ctx)
	switch {
	case err != nil:
		return nil, err
	case is != v:
		return nil, fmt.Errorf("%s is of the variant %s, and there are no programs of the variant %s: %w", plain.iptables, is, v, model.ErrNotSupported)
	}
	return plain, nil
}

func (f *finder) settle(t *tools, v Variant) *tools {
	t.variant, t.ns, t.lockWait, t.timeout, t.exec = v, f.ns, f.cfg.LockWait, f.cfg.Timeout, execute
	return t
}

// A holding is what one variant holds in the namespace.
type holding struct {
	tools [len(model.Families)]*tools
	ours  bool // chains of ours are there
	rules int  // of anybody
}

// look finds out what a variant holds; nil if the host does not have it.
func (f *finder) look(ctx context.Context, v Variant) (*holding, error) {
	h := &holding{}
	for _, fam := range model.Families {
		t, err := f.tools(ctx, fam, v)
		if err != nil {
			if errors.Is(err, model.ErrNotSupported) {
				continue
			}
			return nil, err
		}
		h.tools[fam] = t
		if err := h.add(ctx, t, names{f.cfg.Prefix}); err != nil {
			return nil, err
		}
	}
	if h.tools[model.IPv4] == nil && h.tools[model.IPv6] == nil {
		return nil, nil
	}
	return h, nil
}

// add looks at one family.
func (h *holding) add(ctx context.Context, t *tools, n names) error {
	there, err := t.instantiated()
	if err != nil || len(there) == 0 {
		return err
	}
	ours, err := t.hasChain(ctx, nat, n.fixed(chainCanary))
	if err != nil {
		return err
	}
	if ours {
		h.ours = true
		return nil // then the number does not matter, and counting may take long
	}
	out, err := t.run(ctx, t.save, nil, nil)
	if err != nil {
		return err
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "-A ") {
			h.rules++
		}
	}
	return nil
}

// instantiated returns those of iptables' tables that there are. The legacy variant makes a table by being asked for it, so
// it must not be asked for others.
func (t *tools) instantiated() ([]string, error) {
	if t.variant == Legacy {
		return t.legacyTables()
	}
	all, err := t.nftTables()
	return slices.DeleteFunc(all, func(name string) bool { return !slices.Contains(builtinTables[:], name) }), err
}

var builtinTables = [...]string{"filter", "nat", "mangle", "raw", "security"}

// legacyTables returns the names of the tables that the legacy variant has in the namespace.
func (t *tools) legacyTables() ([]string, error) {
	path := "/proc/thread-self/net/ip_tables_names"
	if t.family == model.IPv6 {
		path = "/proc/thread-self/net/ip6_tables_names"
	}
	var text []byte
	err := t.ns.Do(func() (err error) {
		text, err = os.ReadFile(path)
		if errors.Is(err, os.ErrNotExist) {
			err = nil // the module is not there
		}
		return err
	})
	return strings.Fields(string(text)), denied(err)
}

// choose settles for a variant: the one that was asked for, the one that holds our rules, the one that holds any, the
// one that the host runs as plain iptables, or the one that there is. It also returns what the other one holds, nil if
// the host does not have it.
func (f *finder) choose(ctx context.Context) (Variant, *holding, error) {
	var held [NFT + 1]*holding
	for _, v := range []Variant{Legacy, NFT} {
		if v == f.cfg.Variant {
			continue // nobody needs to know
		}
		h, err := f.look(ctx, v)
		if err != nil {
			return f.cfg.Variant, nil, err
		}
		held[v] = h
	}
	if v := f.cfg.Variant; v != Auto {
		return v, held[v.other()], nil
	}
	legacy, nft := held[Legacy], held[NFT]
	v := NFT
	switch {
	case legacy == nil && nft == nil:
		_, err := lookTools(model.IPv4, Auto, f.cfg.Dir)
		return Auto, nil, fmt.Errorf("no iptables programs: %w: %w", model.ErrNotSupported, err)
	case nft == nil, legacy != nil && nft.worseThan(legacy):
		v = Legacy
	case legacy == nil, legacy.worseThan(nft):
	default:
		if plain, err := lookTools(model.IPv4, Auto, f.cfg.Dir); err == nil {
			if is, err := f.settle(plain, Auto).ofVariant(ctx); err == nil {
				v = is
			}
		}
	}
	return v, held[v.other()], nil
}

// worseThan reports whether o is the better choice for what it holds.
func (h *holding) worseThan(o *holding) bool {
	if h.ours != o.ours {
		return o.ours
	}
	return h.rules == 0 && o.rules > 0
}

// any reports whether the variant holds anybody's rules.
func (h *holding) any() bool { return h != nil && (h.ours || h.rules > 0) }
