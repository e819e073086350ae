package iptables

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/headgate/headgate/model"
	"github.com/headgate/headgate/model/modeltest"
)

func TestSuite(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v Variant) { modeltest.Run(t, suiteTarget(v)) })
}

func TestVectors(t *testing.T) {
	t.Parallel()
	eachVariant(t, func(t *testing.T, v Variant) { modeltest.RunVectors(t, suiteTarget(v)) })
}

// TestVectorsWithoutModules plays the vectors, sequences left out, as on a kernel that has neither xt_bpf nor
// xt_connlabel.
func TestVectorsWithoutModules(t *testing.T) {
	t.Parallel()
	target := suiteTarget(NFT)
	able := target.New
	target.New = func(tb testing.TB, w modeltest.World) model.Programmer {
		p := able(tb, w).(*Programmer)
		p.features = featureSet(features{}, p.cfg)
		p.resolver = model.NewResolver(p.features)
		for _, s := range p.sides {
			s.ability.program, s.ability.label = false, false
		}
		return p
	}
	modeltest.RunVectorsWhere(t, target, func(id string) bool { return !strings.HasPrefix(id, "seq-") })
}

func suiteTarget(v Variant) modeltest.Target {
	f := &refusing{names: map[model.ServiceName]error{}, learned: map[model.Family]ability{}}
	make := func(prefix string) func(testing.TB, modeltest.World) model.Programmer {
		return func(tb testing.TB, w modeltest.World) model.Programmer {
			tb.Helper()
			p, err := newProgrammer(context.Background(), Config{NetNS: w.NetNS(), Variant: v, Prefix: prefix, RejectOtherPorts: true}, f.learn)
			require.NoError(tb, err)
			for _, s := range p.sides {
				s.exec = f.wrap(s.exec)
			}
			return p
		}
	}
	return modeltest.Target{
		Name:   "iptables",
		New:    make("HEADGATE"),
		Second: make("SECOND"),
		Snapshot: func(tb testing.TB, w modeltest.World) string {
			return saved(tb, w.NetNS(), NFT) + saved(tb, w.NetNS(), Legacy)
		},
		Plant: func(tb testing.TB, w modeltest.World) {
			for _, name := range []string{"docker", "firewalld", "kube-proxy"} {
				require.NoError(tb, restore(w.NetNS(), model.IPv4, v, foreign(tb, name)))
				require.NoError(tb, restore(w.NetNS(), model.IPv6, v, foreignSix(tb, name)))
			}
		},
		Damage: damage(v),
		Refuse: func(_ testing.TB, _ modeltest.World, name model.ServiceName, err error) { f.set(name, err) },
		Seed:   *seed,
	}
}

// refusing makes iptables-restore refuse whatever is for certain services.
type refusing struct {
	mu    sync.Mutex // guards what follows
	names map[model.ServiceName]error
	// learned is what the first Programmer found out. The suite makes hundreds, and the kernel stays the same.
	learned map[model.Family]ability
}

func (r *refusing) learn(t *tools, ctx context.Context, cfg Config) (a ability, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	a, known := r.learned[t.family]
	if !known {
		if a, err = t.learn(ctx, cfg); err == nil {
			r.learned[t.family] = a
		}
	}
	return a, err
}

func (r *refusing) set(name model.ServiceName, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.names, name)
	if err != nil {
		r.names[name] = err
	}
}

type runner = func(context.Context, string, []string, []byte) ([]byte, error)

func (r *refusing) wrap(run runner) runner {
	return func(ctx context.Context, program string, args []string, stdin []byte) ([]byte, error) {
		if err := r.refuses(stdin); err != nil {
			return nil, &toolError{program: program, code: 1, refusal: true, cause: err}
		}
		return run(ctx, program, args, stdin)
	}
}

// refuses returns the error with which a script is refused, if it is.
func (r *refusing) refuses(script []byte) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	for name, err := range r.names {
		if concerns(script, name) {
			return err
		}
	}
	return nil
}

// concerns reports whether a script has rules for a service: by its comment, or in a chain of its own.
func concerns(script []byte, name model.ServiceName) bool {
	if bytes.Contains(script, []byte(comment(string(name)))) {
		return true
	}
	for _, f := range model.Families {
		for _, kind := range []byte{kindInternal, kindExternal, kindCluster, kindLocal} {
			if bytes.Contains(script, []byte("-A "+names{"HEADGATE"}.hashed(kind, f.String(), string(name)))) {
				return true
			}
		}
	}
	return false
}

// damage is what careless hands do to our rules.
func damage(v Variant) map[string]func(testing.TB, modeltest.World) error {
	n := names{"HEADGATE"}
	services, filterChain := n.fixed(chainServices), n.fixed(chainFilter)
	scripts := map[string]string{
		"flush-nat":           "*nat\n-F\nCOMMIT\n",
		"flush-filter":        "*filter\n-F\nCOMMIT\n",
		"flush-and-delete":    "*nat\n-F\n-X\nCOMMIT\n",
		"flush-everything":    "*nat\n-F\n-X\nCOMMIT\n*filter\n-F\n-X\nCOMMIT\n",
		"flush-prerouting":    "*nat\n-F PREROUTING\nCOMMIT\n",
		"flush-forward":       "*filter\n-F FORWARD\nCOMMIT\n",
		"flush-chain":         "*nat\n-F " + n.fixed(chainMasquerade) + "\nCOMMIT\n",
		"rule-in-front":       "*nat\n-I " + services + " 1 -j RETURN\nCOMMIT\n",
		"rule-behind":         "*filter\n-A " + filterChain + " -p tcp -m tcp --dport 80 -j DROP\nCOMMIT\n",
		"rule-replaced":       "*nat\n-R " + n.fixed(chainExternal) + " 1 -j RETURN\nCOMMIT\n",
		"jump-twice":          "*nat\n-A OUTPUT -m comment --comment \"headgate: services\" -j " + services + "\nCOMMIT\n",
		"chain-of-our-prefix": "*nat\n:HEADGATE-S-ABCDEFGHIJKLMNOP - [0:0]\n-A HEADGATE-S-ABCDEFGHIJKLMNOP -j RETURN\nCOMMIT\n",
		"canary":              "*filter\n-X " + n.fixed(chainCanary) + "\nCOMMIT\n",
	}
	out := map[string]func(testing.TB, modeltest.World) error{}
	for name, script := range scripts {
		for _, f := range model.Families {
			out[name+"-"+strings.ToLower(f.String())] = func(_ testing.TB, w modeltest.World) error {
				return restore(w.NetNS(), f, v, script)
			}
		}
	}
	out["reload"] = func(_ testing.TB, w modeltest.World) error { // what firewalld does: all of its own, and nothing else
		var errs []error
		for _, f := range model.Families {
			for _, table := range []string{"nat", "filter"} {
				for _, arg := range []string{"-F", "-X"} {
					_, err := command(w.NetNS(), "", program(f, v, ""), "-w", "5", "-t", table, arg)
					errs = append(errs, err)
				}
			}
		}
		return errors.Join(errs...)
	}
	if v == NFT {
		out["delete-table"] = func(_ testing.TB, w modeltest.World) error {
			_, err := command(w.NetNS(), "", "nft", "delete", "table", "ip", "nat")
			return err
		}
	}
	return out
}
