package conntrack

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/headgate/headgate/model"
)

// A Tuning says how a table shall be. The zero Tuning leaves everything as it is; [DefaultTuning] is a good start.
//
// The limit and the hash table are the host's: one for all network namespaces, and the kernel takes changes from the
// initial network namespace alone. Elsewhere Tune fails on them with [model.ErrPermission] where they would have to
// change. Timeouts and TCPLiberal are the namespace's own.
type Tuning struct {
	// Max is the limit on entries, be it higher or lower than now. 0: PerCore decides.
	Max int
	// PerCore raises the limit to so many entries for each CPU that is online, though not below Floor nor, if that is
	// not 0, above Ceiling. It never lowers it. 0 leaves the limit.
	PerCore, Floor, Ceiling int
	// TCPEstablished and TCPCloseWait are how long idle TCP connections stay in these states, UDP and UDPStream how
	// long a UDP flow stays that has had no reply, or that has gone back and forth for a while. Whole seconds; 0 leaves
	// them.
	TCPEstablished, TCPCloseWait, UDP, UDPStream time.Duration
	// TCPLiberal takes TCP packets that are out of the window for valid. Nil leaves it.
	TCPLiberal *bool
}

// DefaultTuning returns what serves most nodes: 32,768 entries per core, at least 131,072 and at most 1,048,576; idle
// TCP connections are kept for a day, those that only one side closed for an hour.
func DefaultTuning() Tuning {
	return Tuning{PerCore: 32768, Floor: 131072, Ceiling: 1048576, TCPEstablished: 24 * time.Hour, TCPCloseWait: time.Hour}
}

// A Setting is one variable that Tune changed.
type Setting struct {
	// Name is the sysctl's.
	Name          string
	Before, After int
}

func (s Setting) String() string { return fmt.Sprintf("%s: %d -> %d", s.Name, s.Before, s.After) }

// Tune makes the table of the Cleaner's namespace as t says and returns what it changed, in the order of the changes.
// Variables that are right already are not written. If the limit grows, the hash table grows with it, to a quarter as
// many buckets, should it have fewer.
//
// A Tuning that makes no sense is refused whole with [model.ErrInvalid], and so is a limit below the entries in use in
// this namespace (those of others cannot be seen from here). After that, a variable that cannot be written does not
// keep the others from it; the error tells of all of them. See [Tuning] for those of the whole host.
func (c *Cleaner) Tune(ctx context.Context, t Tuning) ([]Setting, error) {
	done, err := c.tune(ctx, t)
	return done, c.failed("tune", err)
}

func (c *Cleaner) tune(ctx context.Context, t Tuning) (done []Setting, err error) {
	if err := t.check(); err != nil {
		return nil, err
	}
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	defer c.release()
	if t.Max > 0 {
		u, err := c.usage(ctx)
		if err != nil {
			return nil, err
		}
		if t.Max < u.Entries {
			return nil, fmt.Errorf("%s = %d: %d entries are in use: %w", sysctlMax, t.Max, u.Entries, model.ErrInvalid)
		}
	}
	err = inNetNS(c.ns, func() error {
		tuner := tuner{sysctls: sysctls{c.cfg.path("proc/sys")}}
		tuner.tune(t, t.limit(c.cfg))
		done = tuner.done
		return errors.Join(tuner.errs...)
	})
	return done, err
}

func (t Tuning) check() error {
	bad := func(what string) error { return fmt.Errorf("%s: %w", what, model.ErrInvalid) }
	for name, n := range map[string]int{"Max": t.Max, "PerCore": t.PerCore, "Floor": t.Floor, "Ceiling": t.Ceiling} {
		if n < 0 || n > math.MaxInt32 {
			return bad(fmt.Sprintf("%s of %d", name, n))
		}
	}
	if t.Ceiling > 0 && t.Floor > t.Ceiling {
		return bad("Floor is above Ceiling")
	}
	for _, s := range t.timeouts() {
		if s.wait != 0 && (s.wait < time.Second || s.wait%time.Second != 0 || s.wait/time.Second > math.MaxInt32) {
			return bad(fmt.Sprintf("%s of %v", s.name, s.wait))
		}
	}
	return nil
}

type timeout struct {
	name string
	wait time.Duration
}

func (t Tuning) timeouts() []timeout {
	return []timeout{
		{sysctlTCPEstablished, t.TCPEstablished}, {sysctlTCPCloseWait, t.TCPCloseWait},
		{sysctlUDP, t.UDP}, {sysctlUDPStream, t.UDPStream},
	}
}

// A tuner writes what differs, and gathers what it did and what failed.
type tuner struct {
	sysctls
	done []Setting
	errs []error
}

func (u *tuner) tune(t Tuning, limit int) {
	if grew := u.setLimit(t, limit); grew > 0 {
		u.set(sysctlBuckets, func(now int) int { return max(now, grew/4) })
	}
	for _, tm := range t.timeouts() {
		if tm.wait > 0 {
			u.set(tm.name, func(int) int { return int(tm.wait / time.Second) })
		}
	}
	if t.TCPLiberal != nil {
		u.set(sysctlTCPLiberal, func(int) int {
			if *t.TCPLiberal {
				return 1
			}
			return 0
		})
	}
}

// setLimit sets the limit unless it is 0, and returns it if it grew.
func (u *tuner) setLimit(t Tuning, limit int) (grew int) {
	if limit == 0 {
		return 0
	}
	changed := u.set(sysctlMax, func(now int) int {
		if t.Max == 0 {
			return max(now, limit)
		}
		return limit
	})
	if changed == nil || changed.After < changed.Before {
		return 0
	}
	return changed.After
}

// set writes what want makes of a variable, and returns the change; nil if there was none.
func (u *tuner) set(name string, want func(now int) int) *Setting {
	now, err := u.read(name)
	if err != nil {
		u.errs = append(u.errs, err)
		return nil
	}
	v := want(now)
	if v == now {
		return nil
	}
	if err := u.write(name, v); err != nil {
		u.errs = append(u.errs, err)
		return nil
	}
	u.done = append(u.done, Setting{name, now, v})
	return &u.done[len(u.done)-1]
}

// limit returns the limit that t asks for, 0 if it asks for none.
func (t Tuning) limit(cfg Config) int {
	switch {
	case t.Max > 0:
		return t.Max
	case t.PerCore == 0:
		return 0
	}
	n := max(t.PerCore*cores(cfg), t.Floor)
	if t.Ceiling > 0 {
		n = min(n, t.Ceiling)
	}
	return n
}

// cores returns how many CPUs are online, whichever of them this process may use.
func cores(cfg Config) int {
	b, err := os.ReadFile(cfg.path("sys/devices/system/cpu/online"))
	if err != nil {
		return runtime.NumCPU()
	}
	n, err := countCPUs(strings.TrimSpace(string(b)))
	if err != nil || n == 0 {
		return runtime.NumCPU()
	}
	return n
}

// countCPUs counts a list such as "0-3,6,8-9".
func countCPUs(list string) (n int, err error) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(part, "-")
		from, err := strconv.Atoi(first)
		if err != nil {
			return 0, err
		}
		to := from
		if isRange {
			if to, err = strconv.Atoi(last); err != nil {
				return 0, err
			}
		}
		n += max(0, to-from+1)
	}
	return n, nil
}
