package iptables

import (
	"fmt"
	"log/slog"
	"math/bits"
	"os"
	"time"

	"github.com/headgate/headgate/model"
)

// A Variant is one of the two implementations of iptables, which the kernel evaluates side by side. The zero Variant is
// Auto.
type Variant uint8

// The variants.
const (
	// Auto takes the variant that holds our rules, else the one that holds anybody's, else the host's default.
	Auto Variant = iota
	// Legacy replaces a whole table in each transaction, which takes time in proportion to its size.
	Legacy
	// NFT keeps the rules in nf_tables.
	NFT
)

func (v Variant) String() string {
	names := [...]string{"auto", "legacy", "nft"}
	if int(v) < len(names) {
		return names[v]
	}
	return fmt.Sprintf("variant %d", v)
}

// other returns the other one of Legacy and NFT.
func (v Variant) other() Variant {
	if v == Legacy {
		return NFT
	}
	return Legacy
}

// Config configures New. The zero Config is ready to use.
type Config struct {
	// NetNS is a descriptor of the network namespace to program; New duplicates it. 0 means the namespace of the thread that
	// calls New. Any other than that of the process needs CAP_SYS_ADMIN.
	NetNS int
	// Variant is which iptables to use. The zero Variant detects it.
	Variant Variant
	// Dir is the directory that has the programs: iptables-nft, iptables-nft-restore, iptables-nft-save, or the same
	// with legacy, or without, and those of ip6tables. Empty means $PATH and then the usual directories.
	Dir string
	// Families are those to program; frontends of the other one are left out. Empty means both, as far as the host has them.
	Families []model.Family
	// Prefix begins the names of our chains: 1 to 9 letters, digits and underscores. Empty means "HEADGATE". Each
	// Programmer in a namespace needs one of its own.
	Prefix string
	// MasqueradeMark is the one bit of the packet mark that tells from the choice of an endpoint to postrouting what
	// must be masqueraded. It is cleared there. 0 means 0x4000.
	MasqueradeMark uint32
	// ConntrackLabel is the bit of the conntrack label, 1 to 127, that remembers which connections we balanced: they
	// alone are masqueraded when an endpoint reaches itself, and accepted in the forward chain. 0 means 120.
	ConntrackLabel uint8
	// RejectOtherPorts rejects new connections to internal addresses on ports and protocols that no service has there.
	// Inside Node.ServiceRanges that is done anyway.
	RejectOtherPorts bool
	// DropInvalid drops packets from endpoints that connection tracking calls invalid, which would otherwise reach the
	// client untranslated and make it reset the connection. Replies that take another way in are invalid too.
	DropInvalid bool
	// SetSysctls allows to set net.ipv4.conf.all.route_localnet when the node asks for node ports on loopback.
	SetSysctls bool
	// HashSeed is the seed of SourceHash and Maglev: nodes with the same seed choose alike. 0 means a fixed one.
	HashSeed uint32
	// RecentSize is for how many clients an endpoint's affinity should be remembered. The kernel has a limit for it when it
	// loads xt_recent (ip_list_tot, 100 by default), and Probe warns if that is less. 0 expects nothing.
	RecentSize int
	// LockWait is how long to wait for the lock that iptables programs share. Less than a second is a second; 0 means 5 s.
	LockWait time.Duration
	// Timeout is after how long a program is killed. 0 means 5 minutes.
	Timeout time.Duration
	// Logger is told what a Result says in warnings, and at debug level what is run. Nil means silence.
	Logger *slog.Logger
	// Trace, if set, is called with each standard input of iptables-restore before it is run.
	Trace func(f model.Family, stdin []byte)
}

const (
	defaultPrefix   = "HEADGATE"
	defaultMark     = 0x4000
	defaultLabel    = 120
	maxLabel        = 127
	defaultHashSeed = 0x68656164 // "head"
	defaultLockWait = 5 * time.Second
	defaultTimeout  = 5 * time.Minute
)

// settled returns the Config with the defaults filled in, or an error that wraps ErrInvalid.
func (c Config) settled() (Config, error) {
	orDefault(&c.Prefix, defaultPrefix)
	orDefault(&c.MasqueradeMark, defaultMark)
	orDefault(&c.ConntrackLabel, defaultLabel)
	orDefault(&c.HashSeed, defaultHashSeed)
	orDefault(&c.LockWait, defaultLockWait)
	orDefault(&c.Timeout, defaultTimeout)
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	if len(c.Families) == 0 {
		c.Families = model.Families[:]
	}
	if err := checkPrefix(c.Prefix); err != nil {
		return c, err
	}
	for _, f := range c.Families {
		if f != model.IPv4 && f != model.IPv6 {
			return c, fmt.Errorf("family %d: %w", f, model.ErrInvalid)
		}
	}
	switch {
	case c.Variant > NFT:
		return c, fmt.Errorf("%s: %w", c.Variant, model.ErrInvalid)
	case bits.OnesCount32(c.MasqueradeMark) != 1:
		return c, fmt.Errorf("masquerade mark %#x is not one bit: %w", c.MasqueradeMark, model.ErrInvalid)
	case c.ConntrackLabel > maxLabel:
		return c, fmt.Errorf("conntrack label %d is more than %d: %w", c.ConntrackLabel, maxLabel, model.ErrInvalid)
	case c.RecentSize < 0 || c.LockWait < 0 || c.Timeout < 0 || c.NetNS < 0:
		return c, fmt.Errorf("negative value: %w", model.ErrInvalid)
	}
	if c.Dir != "" {
		if info, err := os.Stat(c.Dir); err != nil || !info.IsDir() {
			return c, fmt.Errorf("%s is not a directory: %w", c.Dir, model.ErrInvalid)
		}
	}
	return c, nil
}

func orDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}

func (c Config) settings() settings {
	return settings{mark: bit(c.MasqueradeMark), label: c.ConntrackLabel, rejectOtherPorts: c.RejectOtherPorts, dropInvalid: c.DropInvalid, hashSeed: c.HashSeed}
}
