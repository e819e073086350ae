package modeltest_test

import (
	"testing"

	"github.com/headgate/headgate/model/modeltest"
)

func TestFakePassesTheSuite(t *testing.T) {
	modeltest.Run(t, modeltest.FakeTarget())
}
