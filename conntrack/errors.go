package conntrack

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"

	"github.com/headgate/headgate/model"
	"golang.org/x/sys/unix"
)

// errMoved ends a pass because a Sync began: what is in the kernel is about to be another.
var errMoved = errors.New("programming has begun")

// meaning turns what a system call or the kernel's answer says into the errors of package model.
func meaning(err error) error {
	var kind error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES), errors.Is(err, unix.EROFS):
		kind = model.ErrPermission
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EAFNOSUPPORT), errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.ENOENT):
		kind = model.ErrNotSupported
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EINTR), errors.Is(err, unix.EAGAIN), errors.Is(err, unix.ENOBUFS),
		errors.Is(err, os.ErrDeadlineExceeded):
		kind = model.ErrBusy
	case errors.Is(err, net.ErrClosed), errors.Is(err, os.ErrClosed), errors.Is(err, unix.EBADF):
		kind = model.ErrClosed
	default:
		return err
	}
	return fmt.Errorf("%w (%w)", kind, err)
}

// because returns why a socket operation ended early: the context if it is over, else what err means.
func because(ctx context.Context, err error) error {
	if err != nil && ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return meaning(err)
}

// samples is how many different errors a Clean describes.
const samples = 3

// A sample is one kind of error that deletions met, and the first flow that met it.
type sample struct {
	errno unix.Errno
	flow  string
}

// failures counts deletions that failed, and keeps a few.
type failures struct {
	count   int
	samples []sample
}

func (f *failures) add(errno unix.Errno, describe func() string) {
	f.count++
	for _, s := range f.samples {
		if s.errno == errno {
			return
		}
	}
	if len(f.samples) < samples {
		f.samples = append(f.samples, sample{errno, describe()})
	}
}

// err returns nil if nothing failed, else one error for all.
func (f *failures) err() error {
	if f.count == 0 {
		return nil
	}
	errs := make([]error, len(f.samples))
	for i, s := range f.samples {
		errs[i] = fmt.Errorf("%s: %w", s.flow, meaning(s.errno))
	}
	return fmt.Errorf("%d stale flows could not be deleted, among them %w", f.count, errors.Join(errs...))
}
