package conntrack

import (
	"fmt"
	"path/filepath"
	"slices"
	"time"

	"github.com/headgate/headgate/model"
)

// Config configures [New]. The zero Config cleans UDP flows in the network namespace of the calling thread.
type Config struct {
	// NetNS is the file descriptor of the network namespace whose flows are cleaned. It stays the caller's, who may
	// close it after New. 0 means the namespace of the thread that calls New or, for variables, Tune.
	NetNS int
	// Protocols are those whose flows are cleaned. Empty means UDP alone. SCTP associations and TCP connections that
	// are forgotten break: ask for them only where that beats an endpoint that does not answer.
	Protocols []model.Protocol
	// Zones are the connection tracking zones of the balanced traffic. Empty means every zone for flows that were
	// translated, and zone 0 for those that were not: a packet may cross another zone, on a bridge say, untranslated
	// and rightly so.
	Zones []uint16
	// SecondLook is the time from a look to the second one. 0 means a second.
	SecondLook time.Duration
	// Orphans makes a comparison of everything, as after a restart, also forget translated flows to addresses in
	// [model.Node.ServiceRanges] at which there is no frontend: of services that were deleted while nobody watched.
	// It is for those ranges that nobody else translates.
	Orphans bool
	// NoKernelFilter lists the whole table of a family and looks for the flows in question here, as is done anyway
	// where the kernel cannot filter.
	NoKernelFilter bool
	// Timeout is how long to wait for the kernel's next answer. 0 means 10 seconds.
	Timeout time.Duration
	// Root is the directory that the proc and sys file systems are taken to be mounted below. Empty means "/".
	Root string
}

// withDefaults returns cfg with its zero values replaced by what they mean, or an error that wraps model.ErrInvalid.
func (cfg Config) withDefaults() (Config, error) {
	cfg.Protocols, cfg.Zones = slices.Clone(cfg.Protocols), slices.Clone(cfg.Zones)
	if len(cfg.Protocols) == 0 {
		cfg.Protocols = []model.Protocol{model.UDP}
	}
	for _, p := range cfg.Protocols {
		if p.Number() == 0 {
			return cfg, fmt.Errorf("conntrack: %s: %w", p, model.ErrInvalid)
		}
	}
	slices.Sort(cfg.Protocols)
	cfg.Protocols = slices.Compact(cfg.Protocols)
	if min(cfg.SecondLook, cfg.Timeout) < 0 || cfg.NetNS < 0 {
		return cfg, fmt.Errorf("conntrack: negative SecondLook, Timeout or NetNS: %w", model.ErrInvalid)
	}
	if cfg.SecondLook == 0 {
		cfg.SecondLook = time.Second
	}
	if cfg.Timeout == 0 {
		cfg.Timeout = 10 * time.Second
	}
	if cfg.Root == "" {
		cfg.Root = "/"
	}
	return cfg, nil
}

// path returns where a file of proc or sys is, "proc/sys/net" say.
func (cfg Config) path(name string) string { return filepath.Join(cfg.Root, name) }
