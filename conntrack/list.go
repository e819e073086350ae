package conntrack

import (
	"context"
	"errors"

	"github.com/headgate/headgate/model"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// listings returns the requests that list what the filters name: one for each or, where the kernel is not to filter,
// one for each family among them.
func (c *Cleaner) listings(looks []filter) ([]netlink.Message, error) {
	var requests []netlink.Message
	var asked [len(model.Families)]bool
	for _, f := range looks {
		build := f.list
		if !c.filters {
			if asked[f.family] {
				continue
			}
			asked[f.family] = true
			build = func() (netlink.Message, error) { return listFamily(f.family) }
		}
		m, err := build()
		if err != nil {
			return nil, err
		}
		requests = append(requests, m)
	}
	return requests, nil
}

// maxInterrupted is how often a listing is repeated that the kernel says was interrupted: something may be missing.
const maxInterrupted = 5

// list asks the kernel for a list and gives visit what it answers. Visit may see things twice.
func (c *conn) list(ctx context.Context, m netlink.Message, visit func(msgs [][]byte) error) error {
	for try := 1; ; try++ {
		err := c.ask(ctx, m, visit)
		if !errors.Is(err, unix.EINTR) || try == maxInterrupted {
			return err
		}
	}
}
