package nft

import (
	"fmt"

	"github.com/headgate/headgate/model"
)

// Settings are what the Config of every backend with a table says about it.
type Settings struct {
	Table string
	// BalancedLabel and MasqueradeLabel are the two bits.
	BalancedLabel, MasqueradeLabel int
	// HashSeed is what SourceHash and Maglev hash with. It must not be 0 in [Rules].
	HashSeed uint32
	// AffinitySize is how many clients each service with affinity remembers at most.
	AffinitySize int
}

// WithDefaults returns the Settings with zero values replaced, and why they make no sense, if so. Nodes that shall choose
// alike must hash alike, whichever backend each has, so the seed is the same for all.
func (s Settings) WithDefaults(table string) (Settings, error) {
	set := func(field *int, value int) {
		if *field == 0 {
			*field = value
		}
	}
	set(&s.BalancedLabel, 126)
	set(&s.MasqueradeLabel, 127)
	set(&s.AffinitySize, 65536)
	if s.Table == "" {
		s.Table = table
	}
	if s.HashSeed == 0 {
		s.HashSeed = 0x68676174
	}
	valid := func(bit int) bool { return bit > 0 && bit < LabelBits }
	switch {
	case !valid(s.BalancedLabel), !valid(s.MasqueradeLabel), s.BalancedLabel == s.MasqueradeLabel:
		return s, fmt.Errorf("label bits %d and %d: %w", s.BalancedLabel, s.MasqueradeLabel, model.ErrInvalid)
	case s.AffinitySize < 0 || s.AffinitySize > 1<<31:
		return s, fmt.Errorf("affinity size %d: %w", s.AffinitySize, model.ErrInvalid)
	case !ValidName(s.Table):
		return s, fmt.Errorf("table name %q: %w", s.Table, model.ErrInvalid)
	}
	return s, nil
}
