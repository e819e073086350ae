package modeltest_test

import (
	"testing"

	"github.com/headgate/headgate/model/modeltest"
)

func TestFakePassesTheSuite(t *testing.T) {
	modeltest.Run(t, targetUnderTest(t))
}

func TestFakePassesTheVectors(t *testing.T) {
	modeltest.RunVectors(t, modeltest.FakeTarget())
}
