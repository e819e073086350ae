package nftables

import (
	"context"
	"errors"

	"github.com/headgate/headgate/internal/nft"
	"github.com/headgate/headgate/model"
)

// features is what this backend can do. It has no differences: its answers are the ones that the others are held to.
var features = model.FeatureSet{
	Backend:  "nftables",
	Balances: []model.Balance{model.Random, model.RoundRobin, model.SourceHash, model.Maglev},
	HashPort: true,
}

// Probe says what the kernel lacks, and what stands in the way of traffic. It asks by transactions that end without
// being committed, so it writes nothing; the kernel may load modules of its own for them.
func (p *Programmer) Probe(ctx context.Context) (model.Report, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return model.Report{}, model.ErrClosed
	}
	report := model.Report{Backend: features.Backend}
	missing, err := p.table.Probe(ctx, func(fam model.Family) *nft.Rules { return &p.cfg.rules(model.Node{}, fam).Rules })
	report.Missing = missing
	if err != nil || errors.Is(report.Err(), model.ErrPermission) {
		return report, err
	}
	report.Warnings, err = p.obstacles(ctx)
	return report, err
}
