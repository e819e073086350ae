package iptables

import (
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// lacks names what the process lacks to use a variant; nothing where the kernel will have to say. In nf_tables all goes
// over netlink. Legacy opens a raw socket, and the files of its programs and of the kernel are root's. Auto stands for
// what both need.
func (v Variant) lacks() []string {
	caps, err := effectiveCaps()
	if err != nil {
		return nil
	}
	var names []string
	if caps&(1<<unix.CAP_NET_ADMIN) == 0 {
		names = append(names, "CAP_NET_ADMIN")
	}
	if v == Legacy && caps&(1<<unix.CAP_NET_RAW) == 0 {
		names = append(names, "CAP_NET_RAW")
	}
	if v == Legacy && !readsRootsFiles(caps) {
		names = append(names, root)
	}
	return names
}

// root is whoever may read and write files of root's.
const root = "root (or CAP_DAC_OVERRIDE)"

func readsRootsFiles(caps uint64) bool {
	return os.Geteuid() == 0 || caps&(1<<unix.CAP_DAC_OVERRIDE) != 0
}

// effectiveCaps returns the capabilities of the calling thread, as bits.
func effectiveCaps() (uint64, error) {
	status, err := os.ReadFile("/proc/thread-self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if hex, ok := strings.CutPrefix(line, "CapEff:"); ok {
			return strconv.ParseUint(strings.TrimSpace(hex), 16, 64)
		}
	}
	return 0, errors.New("the kernel does not say which capabilities a thread has")
}

// permitted returns an error that names what the process lacks to use a variant, nil if nothing is known to be lacking.
func (v Variant) permitted() error { return needs(v.lacks(), model.ErrPermission) }

// explain adds to an error that is for want of a permission what the process needs.
func (v Variant) explain(err error) error {
	if !errors.Is(err, model.ErrPermission) {
		return err
	}
	lacks := v.lacks()
	if caps, unknown := effectiveCaps(); unknown == nil && v != Legacy && !readsRootsFiles(caps) {
		lacks = append(lacks, root) // what the other variant holds is in such a file
	}
	if len(lacks) == 0 {
		return err
	}
	return needs(lacks, err)
}

// needs names in an error what the process lacks; nil if that is nothing.
func needs(lacks []string, err error) error {
	if len(lacks) == 0 {
		return nil
	}
	return fmt.Errorf("the process needs %s: %w", strings.Join(lacks, ", "), err)
}

// denied makes an ErrPermission of what the kernel says to those who lack a permission.
func denied(err error) error {
	if errors.Is(err, os.ErrPermission) {
		return fmt.Errorf("%w: %w", model.ErrPermission, err)
	}
	return err
}
