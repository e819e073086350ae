package nftables

import (
	"fmt"
	"time"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// Config configures New. The zero Config is ready to use.
type Config struct {
	// Table is the one table that the Programmer owns in each family; whatever else is found in it is deleted.
	// Programmers with different tables can work in one namespace. Empty means "headgate".
	Table string
	// NetNS is a descriptor of the network namespace to program; it may be closed after New. 0 means the namespace
	// of the thread that calls New.
	NetNS int
	// BalancedLabel and MasqueradeLabel are the two bits of the connection label that the rules use, 1 to 127; nobody
	// else may use them. 0 means 126 and 127.
	BalancedLabel, MasqueradeLabel int
	// HashSeed is what SourceHash and Maglev hash with. Nodes that shall choose alike need the same. 0 means a fixed one.
	HashSeed uint32
	// AffinitySize is how many clients each service with affinity remembers at most; further ones are balanced
	// without. 0 means 65536.
	AffinitySize int
	// AllowOtherPorts leaves packets to other ports and protocols of an internal frontend's address alone, instead of
	// rejecting them.
	AllowOtherPorts bool
	// DropInvalid drops packets that conntrack calls invalid if they come from an endpoint, so that a client never
	// sees an endpoint's own address. Leave it off where replies may take another way than requests.
	DropInvalid bool
	// SetSysctls lets Sync and Apply set net.ipv4.conf.all.route_localnet to 1 when node ports shall answer on loopback.
	// Otherwise it must be set already.
	SetSysctls bool
	// Timeout bounds each exchange with the kernel, should the context allow more. 0 means a minute.
	Timeout time.Duration
	// VerifyInterval is how often at most Check reads back all set elements, after somebody else has changed any
	// nftables rules; in between it compares the structure alone. 0 means a minute, a negative one never.
	VerifyInterval time.Duration
	// Trace, if not nil, is called with each batch of netlink messages before it is sent. It must not keep it.
	Trace func(batch []byte)
}

// withDefaults returns the Config with its zero values replaced, or why it makes no sense.
func (c Config) withDefaults() (Config, error) {
	s, err := c.settings().WithDefaults("headgate")
	c.Table, c.BalancedLabel, c.MasqueradeLabel = s.Table, s.BalancedLabel, s.MasqueradeLabel
	c.HashSeed, c.AffinitySize = s.HashSeed, s.AffinitySize
	if c.Timeout == 0 {
		c.Timeout = time.Minute
	}
	if c.VerifyInterval == 0 {
		c.VerifyInterval = time.Minute
	}
	switch {
	case err != nil:
		return c, fmt.Errorf("nftables: %w", err)
	case c.Timeout < 0:
		return c, fmt.Errorf("nftables: timeout %v: %w", c.Timeout, model.ErrInvalid)
	}
	return c, nil
}

// settings returns what the Config says about the table.
func (c *Config) settings() nft.Settings {
	return nft.Settings{Table: c.Table, BalancedLabel: c.BalancedLabel, MasqueradeLabel: c.MasqueradeLabel, HashSeed: c.HashSeed, AffinitySize: c.AffinitySize}
}
