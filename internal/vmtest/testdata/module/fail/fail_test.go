// Package fail has a test that fails beside one that does not.
package fail

import "testing"

func TestFine(t *testing.T) { t.Log("nobody needs to see this") }

func TestFails(t *testing.T) { t.Error("failed on purpose") }
