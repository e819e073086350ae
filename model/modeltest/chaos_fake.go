package modeltest

import (
	"math/rand/v2"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// FakeChaos is the [Chaos] for a [FakeTarget]: every fault that a [Kernel] can be told.
func FakeChaos() Chaos {
	kernel := func(w World) *Kernel { return w.(*FakeWorld).Kernel }
	return Chaos{
		Timeout: 50 * time.Millisecond,
		Disturb: map[string]func(testing.TB, World) func(){
			"others write all the time": func(_ testing.TB, w World) func() {
				i := 0
				return Always(func() {
					time.Sleep(time.Duration(rand.IntN(200)) * time.Microsecond)
					kernel(w).Put("theirs", "counter", strconv.Itoa(i))
					i++
				})
			},
			"the kernel hangs": func(_ testing.TB, w World) func() { kernel(w).Hang(1); return func() {} },
		},
		Fail: map[string]func(testing.TB, World){
			"refuse one":         func(_ testing.TB, w World) { kernel(w).FailNext(1, syscall.ENOBUFS) },
			"refuse several":     func(_ testing.TB, w World) { kernel(w).FailNext(5, syscall.EBUSY) },
			"lose the answer":    func(_ testing.TB, w World) { kernel(w).FailAfter(1, syscall.ENOBUFS) },
			"lose several":       func(_ testing.TB, w World) { kernel(w).FailAfter(3, syscall.ENOBUFS) },
			"take the privilege": func(_ testing.TB, w World) { kernel(w).FailNext(2, syscall.EPERM) },
		},
	}
}
