package nft

import (
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/model"
)

// A kept set is a set of ranges that a Sync leaves in place and changes where it differs. Flushing one and filling it
// again would not do: the kernel takes seconds to remove thousands of ranges, and shows what is added to such a set a
// moment later than everything else that a transaction adds; in between, nobody would be let in.
type kept struct {
	there map[string]elementInfo // by key
	want  []owned
}

// An owned element is one that a service needs.
type owned struct {
	Element
	owner model.ServiceName
}

// readRanges reads the elements of the sets of ranges that have their right shape, but not of one with an element that
// is no range: the catch-all, which has no key, or one without an end.
func (s *socket) readRanges(table string, fam model.Family, sets []Set, st *structure) error {
	for _, spec := range sets {
		if there, ok := st.sets[spec.Name]; !ok || !spec.Interval || !there.same(spec.info(fam)) {
			continue
		}
		elements, ranges := map[string]elementInfo{}, true
		_, size := typeOf(spec.Key, fam)
		err := s.readElements(table, fam, spec.Name, func(elem []byte) error {
			i, err := readElement(elem)
			elements[i.key] = i
			ranges = ranges && len(i.key) == 2*int(size)
			return err
		})
		if err != nil {
			return fmt.Errorf("set %s: %w", spec.Name, err)
		}
		if ranges {
			put(&st.ranges, spec.Name, elements)
		}
	}
	return nil
}

// keep says that a set stays, with these elements in it, until settle.
func (b *batch) keep(fam model.Family, id SetID, there map[string]elementInfo) {
	b.kept[fam][id] = &kept{there: there}
}

// settle plans the way from what the kept sets have to what was added to them meanwhile. It calls renew before it deletes
// a set.
func (b *batch) settle(renew func(model.Family)) {
	for _, fam := range model.Families {
		for id, k := range b.kept[fam] {
			if k != nil {
				b.kept[fam][id] = nil
				b.settleSet(fam, id, k, renew)
			}
		}
	}
}

func (b *batch) settleSet(fam model.Family, id int, k *kept, renew func(model.Family)) {
	set, total := &b.shapes[id], len(k.there)
	lacking := slices.Clone(k.want)
	lacking = slices.DeleteFunc(lacking, func(e owned) bool {
		i := e.info(set)
		same := k.there[i.key] == i
		if same {
			delete(k.there, i.key)
		}
		return same
	})
	if len(k.there)*total > longRemoval {
		renew(fam)
		b.deleteSet(fam, set.Name)
		b.makeSet(fam, *set)
		k.there, lacking = nil, k.want
	}
	b.forgetKeys(fam, set, k.there)
	for i := range lacking {
		b.add(fam, &lacking[i].Element, lacking[i].owner)
	}
}

// longRemoval is from when on it takes too long to remove ranges from a set: removed times there. The kernel then needs
// a quarter of a second, and the set is better made anew, though that turns away who comes at that moment.
const longRemoval = 2_000_000

// forgetKeys deletes elements of a set of ranges by the bytes of their keys.
func (b *batch) forgetKeys(fam model.Family, set *Set, there map[string]elementInfo) {
	for key := range there {
		b.write(sectionDels, func(w *Wire) {
			m := w.message(unix.NFT_MSG_DELSETELEM, 0, NFProto(fam))
			w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
			w.Text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
			l, e := w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS), w.Nest(unix.NFTA_LIST_ELEM)
			for i, typ := range [...]uint16{unix.NFTA_SET_ELEM_KEY, setElemKeyEnd} {
				n, half := w.Nest(typ), len(key)/2
				w.Bytes(unix.NFTA_DATA_VALUE, []byte(key[i*half:(i+1)*half]))
				w.Close(n)
			}
			w.Close(e)
			w.Close(l)
			w.End(m)
		})
		put(&b.volatile, b.seq, true) // somebody else may have deleted it since it was read
		b.deleted++
	}
}
