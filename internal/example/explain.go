// Package example is what the programs below examples have in common: what they say when they cannot work.
package example

import (
	"errors"
	"fmt"
	"io/fs"
	"path"

	"github.com/headgate/headgate/model"
)

// Explain adds to an error what to do about it, where that is known. Dir is the program's folder as one gives it to go
// run: "./examples/quickstart".
func Explain(err error, dir string) error {
	if !errors.Is(err, fs.ErrPermission) && !errors.Is(err, model.ErrPermission) {
		return err
	}
	return fmt.Errorf(`%w

This program makes network namespaces and programs their packet filter, for which it needs to be root (to be exact, the
capabilities CAP_SYS_ADMIN and CAP_NET_ADMIN). Nothing outside of its namespaces is touched. Start it with

	sudo go run %[2]s

or, where sudo does not find go,

	go build -o /tmp/%[3]s %[2]s && sudo /tmp/%[3]s`, err, dir, path.Base(dir))
}
