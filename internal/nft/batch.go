package nft

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/headgate/headgate/internal/nlink"
	"github.com/headgate/headgate/model"
)

// A batch is one transaction for both families. What is put into it may come in any order; bytes brings it into the
// one that the kernel needs: what goes before what comes, and what is referred to before what refers to it.
type batch struct {
	table  string
	shapes []Set
	seq    uint32
	// full and sections hold whole messages: full chunks, and those written one by one.
	sections [sectionCount]Wire
	full     [sectionCount][][]byte
	// dels and adds hold, for each family and set, the message of elements that was written to last; open, those that
	// are not finished.
	dels, adds [2][]*chunk
	open       []*chunk
	// kept holds back what is to be added to sets that a Sync keeps.
	kept [2][]*kept
	// owners says which services a message is about, by sequence number. Messages of the frame are about none.
	owners map[uint32][]model.ServiceName
	// elements has the sequence numbers of messages of elements, volatile of those that delete what may expire first.
	elements, volatile map[uint32]bool
	// flushed has the chains whose rules go, sets the sets that come (true) or go.
	flushed [2][]string
	sets    [2]map[string]bool
	// seen, if not nil, is given the elements to be added, which are then not written.
	seen func(model.Family, *Element)
	// exact keeps the elements of different services in different messages, so that an error names one service.
	exact bool
	// grown says that there are many elements to come, so that room is made for whole messages.
	grown bool
	// dry leaves the end of the transaction out: the kernel checks it and forgets it.
	dry bool

	added, changed, deleted int

	// What is used again by the next batch: the beginning and the end, the list of pieces, and buffers.
	ends   Wire
	pieces [][]byte
	spare  [][]byte
}

type section uint8

const (
	sectionTables section = iota
	sectionFlush          // rules that go
	sectionGone           // sets and chains that go
	sectionSets
	sectionChains
	sectionRules
	sectionDels
	sectionAdds
	sectionCount
)

// A chunk is a message of set elements that is being written.
type chunk struct {
	w           Wire
	start, list int
	elements    int
	section     section
}

func newBatch(table string, shapes []Set) *batch {
	b := &batch{table: table, shapes: shapes}
	for _, fam := range model.Families {
		b.dels[fam], b.adds[fam], b.kept[fam] = make([]*chunk, len(shapes)), make([]*chunk, len(shapes)), make([]*kept, len(shapes))
	}
	return b
}

// reset makes the batch empty, and keeps what memory a small one needs.
func (b *batch) reset() {
	const enough = 16 << 10 // bytes of a section, and of all spare buffers
	n := batch{table: b.table, shapes: b.shapes, seq: b.seq, dels: b.dels, adds: b.adds, open: b.open[:0], kept: b.kept, ends: b.ends, spare: b.spare, pieces: b.pieces}
	if cap(n.pieces) > 100 {
		n.pieces = nil
	}
	clear(n.pieces)
	for i := range b.sections {
		if buf := b.sections[i].Buf; cap(buf) <= enough {
			n.sections[i].Buf = buf[:0]
		}
		for _, buf := range b.full[i] {
			if cap(buf) <= enough/8 && len(n.spare) < 8 {
				n.spare = append(n.spare, buf[:0])
			}
		}
		if cap(b.full[i]) <= 8 {
			n.full[i] = b.full[i][:0]
		}
	}
	for _, c := range b.open {
		*c = chunk{}
	}
	for _, fam := range model.Families {
		clear(n.kept[fam])
	}
	*b = n
}

// write writes one message about some services into a section.
func (b *batch) write(s section, message func(w *Wire), owners ...model.ServiceName) {
	w := &b.sections[s]
	if len(w.Buf) > chunkSize {
		// A buffer that grew with all of them would be copied again and again.
		b.full[s] = append(b.full[s], w.Buf)
		w.Buf = make([]byte, 0, chunkSize+chunkSize/8)
	}
	w.Seq = b.seq
	message(w)
	b.seq = w.Seq
	if len(owners) > 0 {
		put(&b.owners, b.seq, owners)
	}
}

// flush deletes the rules of a chain, or with no chain those of the whole table.
func (b *batch) flush(fam model.Family, chain string, owners ...model.ServiceName) {
	b.flushed[fam] = append(b.flushed[fam], chain)
	b.write(sectionFlush, func(w *Wire) { w.flushRules(b.table, fam, chain) }, owners...)
}

// deleteChain deletes a chain, with its rules.
func (b *batch) deleteChain(fam model.Family, chain string) {
	b.deleted++
	b.flushed[fam] = append(b.flushed[fam], chain)
	b.write(sectionGone, func(w *Wire) { w.deleteChain(b.table, fam, chain) })
}

// makeSet creates a set or map.
func (b *batch) makeSet(fam model.Family, s Set, owners ...model.ServiceName) {
	b.added++
	put(&b.sets[fam], s.Name, true)
	b.write(sectionSets, func(w *Wire) { w.writeSet(b.table, fam, s, w.Seq+1) }, owners...)
}

// deleteSet deletes a set or map that no rule uses any more.
func (b *batch) deleteSet(fam model.Family, set string, owners ...model.ServiceName) {
	b.deleted++
	put(&b.sets[fam], set, false)
	b.write(sectionGone, func(w *Wire) { w.deleteSet(b.table, fam, set) }, owners...)
}

// forget deletes elements from a set or map, unless they expire first.
func (b *batch) forget(fam model.Family, set Set, clients []Element, owners ...model.ServiceName) {
	for len(clients) > 0 {
		n := min(len(clients), maxElements)
		b.write(sectionDels, func(w *Wire) { w.forget(b.table, fam, set, clients[:n]) }, owners...)
		put(&b.volatile, b.seq, true)
		b.deleted += n
		clients = clients[n:]
	}
}

// add adds an element for a service.
func (b *batch) add(fam model.Family, e *Element, owner model.ServiceName) {
	if b.seen != nil {
		b.seen(fam, e)
		return
	}
	if k := b.kept[fam][e.Set]; k != nil {
		k.want = append(k.want, owned{*e, owner})
		return
	}
	b.added++
	b.element(&b.adds[fam][e.Set], sectionAdds, fam, e, owner)
}

// del deletes an element for a service.
func (b *batch) del(fam model.Family, e *Element, owner model.ServiceName) {
	b.deleted++
	b.element(&b.dels[fam][e.Set], sectionDels, fam, e, owner)
}

// replace deletes an element and adds another with its key: the kernel has no update of an element's data.
func (b *batch) replace(fam model.Family, old, e *Element, owner model.ServiceName) {
	b.del(fam, old, owner)
	b.add(fam, e, owner)
	b.added--
	b.deleted--
	b.changed++
}

func (b *batch) element(at **chunk, s section, fam model.Family, e *Element, owner model.ServiceName) {
	if *at == nil {
		*at = &chunk{}
	}
	c := *at
	full := c.elements == maxElements || len(c.w.Buf)-c.list > maxNested-longestElement
	if c.elements > 0 && (full || b.exact && b.lastOwner(c) != owner) {
		b.finish(c)
	} else if c.elements == 0 {
		c.section = s
		b.open = append(b.open, c)
	}
	if c.elements == 0 {
		c.w.Seq = b.seq
		b.seq++
		put(&b.elements, b.seq, true)
		typ, flags := uint16(unix.NFT_MSG_NEWSETELEM), uint16(unix.NLM_F_CREATE|unix.NLM_F_EXCL)
		if s == sectionDels {
			typ, flags = unix.NFT_MSG_DELSETELEM, 0
		}
		c.w.Buf = b.buffer()
		c.start = c.w.message(typ, flags, NFProto(fam))
		c.w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, b.table)
		c.w.Text(unix.NFTA_SET_ELEM_LIST_SET, b.shapes[e.Set].Name)
		c.list = c.w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	}
	c.w.writeElement(&b.shapes[e.Set], e, s == sectionDels)
	c.elements++
	if owner != nobody && b.lastOwner(c) != owner {
		put(&b.owners, c.w.Seq, append(b.owners[c.w.Seq], owner))
	}
}

// buffer returns an empty buffer for a message of elements.
func (b *batch) buffer() []byte {
	if n := len(b.spare); n > 0 && !b.grown {
		buf := b.spare[n-1]
		b.spare = b.spare[:n-1]
		return buf
	}
	if b.grown {
		return make([]byte, 0, chunkSize)
	}
	return make([]byte, 0, 512)
}

const chunkSize = maxElements * 48 // of IPv4 slots, by far the most

const longestElement = 400 // a chain's name of 100, a comment of 127, two keys, and some room

// nobody is the owner of elements that no single service owns. The empty name is one that a service may have.
const nobody model.ServiceName = "\x00nobody"

// lastOwner returns the service that the last element of a chunk is about.
func (b *batch) lastOwner(c *chunk) model.ServiceName {
	owners := b.owners[c.w.Seq]
	if len(owners) == 0 {
		return nobody
	}
	return owners[len(owners)-1]
}

// finish closes a chunk's message and moves it into its section.
func (b *batch) finish(c *chunk) {
	c.w.Close(c.list)
	c.w.End(c.start)
	b.full[c.section] = append(b.full[c.section], c.w.Buf)
	c.w.Buf, c.elements = nil, 0
}

// empty reports whether the batch would change nothing.
func (b *batch) empty() bool {
	for i := range b.sections {
		if len(b.sections[i].Buf)+len(b.full[i]) > 0 {
			return false
		}
	}
	return len(b.open) == 0
}

// A transaction is a batch as it is sent.
type transaction struct {
	pieces [][]byte // of one message to the socket
	size   int
	// first is the number of the message that begins it, last that of the one that the kernel acknowledges.
	first, last uint32
}

// transaction returns the whole batch. With a generation other than 0, the kernel takes it only if nobody has committed
// anything since then.
func (b *batch) transaction(generation uint32) transaction {
	w := &b.ends
	w.Buf, w.Seq = w.Buf[:0], b.seq
	begin := w.begin(unix.NFNL_MSG_BATCH_BEGIN, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)
	if generation != 0 {
		w.Net32(batchGenID, generation)
	}
	w.End(begin)
	end := len(w.Buf)
	if !b.dry {
		w.End(w.begin(unix.NFNL_MSG_BATCH_END, 0, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES))
	}
	t := transaction{pieces: append(b.pieces[:0], w.Buf[:end]), first: nlink.MessageSeq(w.Buf)}
	for _, c := range b.open {
		b.finish(c)
	}
	b.open = b.open[:0]
	for i := range b.sections {
		t.pieces = append(append(t.pieces, b.full[i]...), b.sections[i].Buf)
	}
	t.pieces = slices.DeleteFunc(t.pieces, func(p []byte) bool { return len(p) == 0 })
	tail := t.pieces[len(t.pieces)-1]
	for len(tail) > nlink.MessageLen(tail) {
		tail = tail[nlink.MessageLen(tail):]
	}
	nlink.Acknowledge(tail)
	t.last = nlink.MessageSeq(tail)
	t.pieces = append(t.pieces, w.Buf[end:])
	for _, p := range t.pieces {
		t.size += len(p)
	}
	b.pieces = t.pieces
	return t
}

const batchGenID = 1 // NFNL_BATCH_GENID

// writeTable writes the message that creates a table, or finds it.
func (w *Wire) writeTable(table string, fam model.Family) {
	m := w.message(unix.NFT_MSG_NEWTABLE, unix.NLM_F_CREATE, NFProto(fam))
	w.Text(unix.NFTA_TABLE_NAME, table)
	w.comment(tableUserData, tableNote)
	w.End(m)
}

const (
	tableUserData = 6 // NFTA_TABLE_USERDATA, Linux 5.10
	tableNote     = "service traffic, programmed by headgate: do not edit"
)

// deleteTable writes the message that deletes a table with all that is in it.
func (w *Wire) deleteTable(table string, fam model.Family) {
	m := w.message(unix.NFT_MSG_DELTABLE, 0, NFProto(fam))
	w.Text(unix.NFTA_TABLE_NAME, table)
	w.End(m)
}

// flushRules writes the message that deletes all rules of a chain, or with no chain of the whole table.
func (w *Wire) flushRules(table string, fam model.Family, chain string) {
	m := w.message(unix.NFT_MSG_DELRULE, 0, NFProto(fam))
	w.Text(unix.NFTA_RULE_TABLE, table)
	if chain != "" {
		w.Text(unix.NFTA_RULE_CHAIN, chain)
	}
	w.End(m)
}

// deleteChain writes the message that deletes a chain without rules.
func (w *Wire) deleteChain(table string, fam model.Family, chain string) {
	m := w.message(unix.NFT_MSG_DELCHAIN, 0, NFProto(fam))
	w.Text(unix.NFTA_CHAIN_TABLE, table)
	w.Text(unix.NFTA_CHAIN_NAME, chain)
	w.End(m)
}

// deleteSet writes the message that deletes a set that no rule uses.
func (w *Wire) deleteSet(table string, fam model.Family, set string) {
	m := w.message(unix.NFT_MSG_DELSET, 0, NFProto(fam))
	w.Text(unix.NFTA_SET_TABLE, table)
	w.Text(unix.NFTA_SET_NAME, set)
	w.End(m)
}

// flushSet writes the message that deletes all elements of a set.
func (w *Wire) flushSet(table string, fam model.Family, set string) {
	m := w.message(unix.NFT_MSG_DELSETELEM, 0, NFProto(fam))
	w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	w.Text(unix.NFTA_SET_ELEM_LIST_SET, set)
	w.End(m)
}

// forget writes the message that deletes elements from a set or map.
func (w *Wire) forget(table string, fam model.Family, set Set, clients []Element) {
	m := w.message(unix.NFT_MSG_DELSETELEM, 0, NFProto(fam))
	w.Text(unix.NFTA_SET_ELEM_LIST_TABLE, table)
	w.Text(unix.NFTA_SET_ELEM_LIST_SET, set.Name)
	l := w.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS)
	for i := range clients {
		w.writeElement(&set, &clients[i], true)
	}
	w.Close(l)
	w.End(m)
}
