package nlink

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// Meaning adds to an error of the kernel what it means in the model's terms.
func Meaning(err error) error {
	var errno unix.Errno
	if !errors.As(err, &errno) {
		return err
	}
	var sentinel error
	switch errno {
	case unix.EPERM, unix.EACCES:
		sentinel = model.ErrPermission
	case unix.EBUSY, unix.ENOBUFS, unix.ERESTART:
		sentinel = model.ErrBusy
	case unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT:
		sentinel = model.ErrNotSupported
	default:
		return err
	}
	return fmt.Errorf("%w: %w", sentinel, err)
}
