package nft

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// A structure is what a table consists of, its elements left out.
type structure struct {
	table uint64 // handle; 0 if there is none
	ours  bool   // it has our comment
	// dormant says that its chains see no packets.
	dormant bool
	chains  map[string]chainInfo
	sets    map[string]setInfo
	rules   map[string][]ruleInfo             // by chain, in order
	ranges  map[string]map[string]elementInfo // elements of sets of ranges, by set and key, where asked for
}

// A chainInfo is what a chain is attached to: nothing, for one that others jump to.
type chainInfo struct {
	kind     string
	hook     uint32
	priority int32
	base     bool
	drops    bool // by its policy
}

// A ruleInfo is a rule as far as it is read: its handle, its mark and its verdicts, where chains have the names that they
// have now.
type ruleInfo struct {
	handle, mark uint64
	verdicts     string
}

// A setInfo is a set's shape as the kernel tells it.
type setInfo struct {
	handle            uint64
	flags             uint32
	keyType, keyLen   uint32
	dataType, dataLen uint32
	timeout           uint64
	size              uint32
	userData          string
}

// A socket talks to nf_tables in one network namespace.
type socket struct{ *nlink.Socket }

// dump sends a request for a listing and calls each with the body of every answer.
func (s *socket) dump(typ uint16, fam byte, attrs func(w *Wire), each func(body []byte) error) error {
	return s.request(typ, unix.NLM_F_DUMP, fam, attrs, each)
}

// request sends a request and calls each with the body of every answer.
func (s *socket) request(typ, flags uint16, fam byte, attrs func(w *Wire), each func(body []byte) error) error {
	return s.Request(flags, func(lw *nlink.Writer, flags uint16) {
		w := Wire{*lw}
		m := w.message(typ, flags, fam)
		if attrs != nil {
			attrs(&w)
		}
		w.End(m)
		*lw = w.Writer
	}, func(m nlink.Message) error {
		if len(m.Body) < nfgenLen {
			return io.ErrUnexpectedEOF
		}
		return each(m.Body)
	})
}

// readStructure reads what our table of a family consists of. A disturbed listing is read again a few times.
// What is read of each rule is up to rule: ruleOf or wholeRuleOf.
func (s *socket) readStructure(table string, fam model.Family, rule ruleReader) (st structure, err error) {
	err = nlink.Steady(func() (err error) {
		st, err = s.structureOnce(table, fam, rule)
		return err
	})
	return st, err
}

func (s *socket) structureOnce(table string, fam model.Family, rule ruleReader) (structure, error) {
	st := structure{chains: map[string]chainInfo{}, sets: map[string]setInfo{}, rules: map[string][]ruleInfo{}}
	proto := NFProto(fam)
	var err error
	if err = s.readTable(table, fam, &st); err != nil || st.table == 0 {
		return st, err
	}
	err = s.dump(unix.NFT_MSG_GETCHAIN, proto, func(w *Wire) { w.Text(unix.NFTA_CHAIN_TABLE, table) }, st.readChain(table))
	if err == nil {
		err = s.dump(unix.NFT_MSG_GETSET, proto, func(w *Wire) { w.Text(unix.NFTA_SET_TABLE, table) }, st.readSet(table))
	}
	if err == nil {
		err = s.dump(unix.NFT_MSG_GETRULE, proto, func(w *Wire) { w.Text(unix.NFTA_RULE_TABLE, table) }, st.readRule(table, rule))
	}
	return st, err
}

// readTable reads what a table is, what it consists of left out.
func (s *socket) readTable(table string, fam model.Family, st *structure) error {
	err := s.request(unix.NFT_MSG_GETTABLE, 0, NFProto(fam), func(w *Wire) { w.Text(unix.NFTA_TABLE_NAME, table) }, func(body []byte) error {
		return attributes(body, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case tableHandle:
				st.table = ad.Uint64()
			case unix.NFTA_TABLE_FLAGS:
				st.dormant = ad.Uint32()&tableDormant != 0
			case tableUserData:
				st.ours = strings.Contains(string(ad.Bytes()), tableNote)
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// attributes calls each for every attribute of a message's body.
func attributes(body []byte, each func(ad *netlink.AttributeDecoder)) error {
	return nested(body[nfgenLen:], each)
}

func nested(b []byte, each func(ad *netlink.AttributeDecoder)) error {
	ad, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return err
	}
	ad.ByteOrder = binary.BigEndian
	for ad.Next() {
		each(ad)
	}
	return ad.Err()
}

func (st *structure) readChain(table string) func(body []byte) error {
	return func(body []byte) error {
		var of, name string
		var c chainInfo
		err := attributes(body, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_CHAIN_TABLE:
				of = ad.String()
			case unix.NFTA_CHAIN_NAME:
				name = ad.String()
			case unix.NFTA_CHAIN_TYPE:
				c.kind = ad.String()
			case unix.NFTA_CHAIN_POLICY:
				c.drops = ad.Uint32() == verdictDrop
			case unix.NFTA_CHAIN_HOOK:
				c.base = true
				ad.Do(func(b []byte) error {
					return nested(b, func(ad *netlink.AttributeDecoder) {
						switch ad.Type() {
						case unix.NFTA_HOOK_HOOKNUM:
							c.hook = ad.Uint32()
						case unix.NFTA_HOOK_PRIORITY:
							c.priority = int32(ad.Uint32())
						}
					})
				})
			}
		})
		if of == table {
			st.chains[name] = c
		}
		return err
	}
}

func (st *structure) readSet(table string) func(body []byte) error {
	return func(body []byte) error {
		var of, name string
		var i setInfo
		err := attributes(body, func(ad *netlink.AttributeDecoder) {
			switch ad.Type() {
			case unix.NFTA_SET_TABLE:
				of = ad.String()
			case unix.NFTA_SET_NAME:
				name = ad.String()
			case setHandle:
				i.handle = ad.Uint64()
			case unix.NFTA_SET_FLAGS:
				i.flags = ad.Uint32()
			case unix.NFTA_SET_KEY_TYPE:
				i.keyType = ad.Uint32()
			case unix.NFTA_SET_KEY_LEN:
				i.keyLen = ad.Uint32()
			case unix.NFTA_SET_DATA_TYPE:
				i.dataType = ad.Uint32()
			case unix.NFTA_SET_DATA_LEN:
				i.dataLen = ad.Uint32()
			case unix.NFTA_SET_TIMEOUT:
				i.timeout = ad.Uint64()
			case unix.NFTA_SET_USERDATA:
				i.userData = string(ad.Bytes())
			case unix.NFTA_SET_DESC:
				ad.Do(func(b []byte) error {
					return nested(b, func(ad *netlink.AttributeDecoder) {
						if ad.Type() == unix.NFTA_SET_DESC_SIZE {
							i.size = ad.Uint32()
						}
					})
				})
			}
		})
		if of == table {
			st.sets[name] = i
		}
		return err
	}
}

const (
	setHandle   = 16 // NFTA_SET_HANDLE
	tableHandle = 4  // NFTA_TABLE_HANDLE

	tableDormant = 1 // NFT_TABLE_F_DORMANT
)

// A ruleReader returns where a rule stands and what there is to know of it.
type ruleReader func(body []byte) (table, chain string, rule ruleInfo, err error)

func (st *structure) readRule(table string, read ruleReader) func(body []byte) error {
	return func(body []byte) error {
		of, chain, rule, err := read(body)
		if of == table {
			st.rules[chain] = append(st.rules[chain], rule)
		}
		return err
	}
}

// wholeRuleOf is ruleOf with the verdicts.
func wholeRuleOf(body []byte) (table, chain string, rule ruleInfo, err error) {
	if table, chain, rule, err = ruleOf(body); err == nil {
		rule.verdicts, err = verdictsOf(body)
	}
	return table, chain, rule, err
}

// ruleOf reads a rule's handle and mark.
func ruleOf(body []byte) (table, chain string, rule ruleInfo, err error) {
	err = attributes(body, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_RULE_TABLE:
			table = ad.String()
		case unix.NFTA_RULE_CHAIN:
			chain = ad.String()
		case unix.NFTA_RULE_HANDLE:
			rule.handle = ad.Uint64()
		case unix.NFTA_RULE_USERDATA:
			rule.mark = readMark(ad.Bytes())
		}
	})
	return table, chain, rule, err
}

// verdictsOf returns what a rule decides: the verdicts, and the chains that it jumps or goes to.
func verdictsOf(body []byte) (verdicts string, err error) {
	err = attributes(body, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_RULE_EXPRESSIONS {
			ad.Do(func(b []byte) error {
				return nested(b, func(ad *netlink.AttributeDecoder) {
					ad.Do(func(b []byte) error { return readVerdict(b, &verdicts) })
				})
			})
		}
	})
	return verdicts, err
}

// readVerdict appends what an expression decides, if it does.
func readVerdict(expression []byte, verdicts *string) error {
	var name string
	var data []byte
	err := nested(expression, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_EXPR_NAME:
			name = ad.String()
		case unix.NFTA_EXPR_DATA:
			data = ad.Bytes()
		}
	})
	if err != nil || name != "immediate" {
		return err
	}
	return nested(data, func(ad *netlink.AttributeDecoder) {
		if ad.Type() == unix.NFTA_IMMEDIATE_DATA {
			ad.Do(func(b []byte) error { return readData(b, verdicts) })
		}
	})
}

// info returns the shape that the kernel tells of a set once it is made.
func (s Set) info(fam model.Family) setInfo {
	i := setInfo{flags: s.flags(), timeout: uint64(s.Timeout.Milliseconds()), size: s.Size, userData: string(s.userData(fam))}
	i.keyType, i.keyLen = typeOf(s.Key, fam)
	if s.Map {
		i.dataType, i.dataLen = s.dataType(fam)
	}
	return i
}

// same reports whether two sets have the same shape.
func (i setInfo) same(o setInfo) bool {
	i.handle, o.handle = 0, 0
	return i == o
}

// readElements reads all elements of a set and calls each with the attributes of every one.
func (s *socket) readElements(table string, fam model.Family, set string, each func(elem []byte) error) error {
	return s.dump(unix.NFT_MSG_GETSETELEM, NFProto(fam), func(w *Wire) {
		w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
		w.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	}, func(body []byte) error {
		var err error
		aerr := attributes(body, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == unix.NFTA_SET_ELEM_LIST_ELEMENTS {
				ad.Do(func(b []byte) error {
					return nested(b, func(ad *netlink.AttributeDecoder) { err = errors.Join(err, each(ad.Bytes())) })
				})
			}
		})
		return errors.Join(aerr, err)
	})
}

// An elementInfo is an element as the kernel tells it: key, end of the key and data as bytes, a verdict as its code
// and chain.
type elementInfo struct {
	key, data, comment string
	// left is how long it has to live, 0 for as long as nobody deletes it.
	left time.Duration
}

func readElement(elem []byte) (elementInfo, error) {
	var i elementInfo
	err := nested(elem, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_SET_ELEM_KEY, setElemKeyEnd:
			ad.Do(func(b []byte) error {
				return nested(b, func(ad *netlink.AttributeDecoder) { i.key += string(ad.Bytes()) })
			})
		case unix.NFTA_SET_ELEM_DATA:
			ad.Do(func(b []byte) error { return readData(b, &i.data) })
		case unix.NFTA_SET_ELEM_EXPIRATION:
			i.left = time.Duration(ad.Uint64()) * time.Millisecond
		case unix.NFTA_SET_ELEM_USERDATA:
			i.comment = string(ad.Bytes())
		}
	})
	return i, err
}

// readData appends data to a string: a value, or a verdict's code and chain.
func readData(b []byte, data *string) error {
	return nested(b, func(ad *netlink.AttributeDecoder) {
		switch ad.Type() {
		case unix.NFTA_DATA_VALUE:
			*data += string(ad.Bytes())
		case unix.NFTA_DATA_VERDICT:
			ad.Do(func(b []byte) error {
				return nested(b, func(ad *netlink.AttributeDecoder) {
					*data += strings.TrimRight(string(ad.Bytes()), "\x00") + ";"
				})
			})
		}
	})
}

// readClients returns the clients in a map that lead to none of the given endpoint addresses.
func (s *socket) readClients(table string, fam model.Family, set string, live []netip.Addr) ([]Element, error) {
	var out []Element
	err := s.readElements(table, fam, set, func(elem []byte) error {
		i, err := readElement(elem)
		if err != nil {
			return err
		}
		client, ok1 := netip.AddrFromSlice([]byte(i.key))
		to, ok2 := netip.AddrFromSlice([]byte(i.data))
		if ok1 && ok2 && !slices.Contains(live, to) {
			out = append(out, Element{ElementKey: ElementKey{Addr: client}})
		}
		return nil
	})
	return out, err
}

// readGeneration returns the number of the last transaction that anybody committed in the namespace.
func (s *socket) readGeneration() (id uint32, err error) {
	const genID = 1 // NFTA_GEN_ID
	err = s.request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, func(body []byte) error {
		return attributes(body, func(ad *netlink.AttributeDecoder) {
			if ad.Type() == genID {
				id = ad.Uint32()
			}
		})
	})
	return id, err
}
