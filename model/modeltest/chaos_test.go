package modeltest_test

import (
	"flag"
	"testing"
	"time"

	"github.com/headgate/headgate/model/modeltest"
)

var chaosDuration = flag.Duration("chaos.duration", 3*time.Second, "how long TestChaos goes on")

func TestChaos(t *testing.T) {
	c := modeltest.FakeChaos()
	c.Duration = *chaosDuration
	modeltest.RunChaos(t, modeltest.FakeTarget(), c)
}
