package ipvs

import (
	"context"
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

func (n *namespace) burst(ctx context.Context, ops []op) (failed map[int]error, did traffic, err error) {
	if len(ops) == 0 {
		return nil, did, nil
	}
	failed = map[int]error{}
	deliver := func(s *nlink.Socket, family int, write func(w *nlink.Writer, o *op)) error {
		var b nlink.Burst
		for i := range ops {
			b.Add(func(w *nlink.Writer) { write(w, &ops[i]) })
		}
		pieces := b.Pieces()
		for _, p := range pieces {
			did.pieces++
			did.bytes += len(p)
			if n.trace != nil {
				n.trace(family, p)
			}
		}
		return s.Deliver(pieces, func(i int, err error) { failed[i] = err })
	}
	if ops[0].kind >= addRoute {
		err = n.exchange(ctx, unix.NETLINK_ROUTE, func(s *nlink.Socket) error {
			return deliver(s, unix.NETLINK_ROUTE, func(w *nlink.Writer, o *op) { writeRoute(w, n.protocol, o) })
		})
		return failed, did, wrap("local routes", err)
	}
	err = n.generic(ctx, func(s *nlink.Socket, family uint16) error {
		return deliver(s, unix.NETLINK_GENERIC, func(w *nlink.Writer, o *op) { writeOp(w, family, o) })
	})
	return failed, did, wrap("virtual services", err)
}

// A failure says what a refused request means.
type failure uint8

const (
	blame   failure = iota // it is the service's: it cannot be programmed
	drifted                // the kernel does not hold what it did
	alien                  // somebody else has such a virtual service
	nothing                // what was to go is gone
	fatal                  // nothing can be programmed
)

// judge says what it means that the kernel refused a request, and why in the model's terms.
func judge(o *op, cause error) (failure, error) {
	switch {
	case errors.Is(cause, unix.EPERM) && o.kind < addRoute:
		return fatal, nlink.Meaning(cause)
	case o.kind.deletes() && (errors.Is(cause, unix.ENOENT) || errors.Is(cause, unix.ESRCH)):
		return nothing, nil
	case o.kind == addVirtual && errors.Is(cause, unix.EEXIST):
		return alien, nil
	case (o.kind == addVirtual || o.kind == editVirtual) && errors.Is(cause, unix.ENOENT):
		return blame, fmt.Errorf("scheduler %s: the kernel has no module ip_vs_%[1]s: %w: %w", o.spec.scheduler, model.ErrNotSupported, cause)
	case o.kind == addRoute && errors.Is(cause, unix.EEXIST):
		return blame, fmt.Errorf("%s: %w by a route that is not ours", o, model.ErrConflict)
	case errors.Is(cause, unix.EEXIST), errors.Is(cause, unix.ESRCH), errors.Is(cause, unix.ENOENT):
		return drifted, fmt.Errorf("%s: %w: %w", o, model.ErrDrift, cause)
	case o.kind >= addRoute:
		return blame, fmt.Errorf("%s: %w", o, cause) // EACCES: the family is disabled; EINVAL, ENETDOWN: lo is down
	}
	return blame, fmt.Errorf("%s: %w", o, nlink.Meaning(cause))
}
