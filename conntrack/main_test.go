package conntrack

import (
	"flag"
	"fmt"
	"os"
	"testing"

	"github.com/headgate/headgate/model"
	"golang.org/x/sys/unix"
)

// A Cleaner is what the Syncer takes.
var _ model.Cleaner = (*Cleaner)(nil)

// TestMain leaves out the examples without root: like most tests they make network namespaces.
func TestMain(m *testing.M) {
	flag.Parse()
	if unix.Geteuid() != 0 && flag.Lookup("test.skip").Value.String() == "" {
		fmt.Fprintln(os.Stderr, "examples are skipped: they need root, to make network namespaces")
		if err := flag.Set("test.skip", "^Example"); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
