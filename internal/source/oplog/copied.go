package oplog

// identity is a collection's UUID; zero means none.
type identity [16]byte

func identityOf(ui []byte) (id identity) {
	copy(id[:], ui)
	return id
}

// copied is a copy made by a rename between databases, with what the oplog proves about its origin. The
// origin exists before the copy, and the server locks it against writes until the last document is
// copied (seen on 4.2 to 6.0).
type copied struct {
	term int64
	docs int64 // of the copy, below 0 where that is not known
	// not lists collections that cannot be the origin: they were created or changed during the copy.
	not map[identity]bool
	// since maps collections with entries after the copy's newest document to their growth in documents.
	since map[identity]int64
}

const (
	// maxCopies bounds the copies that are watched. A server makes one for each client.
	maxCopies = 16
	// maxWitnesses bounds the collections per copy.
	maxWitnesses = 10_000
)

func (m *moves) beginCopy(e *entry) {
	if m.copies == nil {
		m.copies = map[identity]*copied{}
	}
	if id := identityOf(e.ui); id != (identity{}) && len(m.copies) < maxCopies {
		m.copies[id] = &copied{term: e.at.Term, not: map[identity]bool{}, since: map[identity]int64{}}
	}
}

func (m *moves) endCopy(e *entry) *copied {
	id := identityOf(e.ui)
	c := m.copies[id]
	delete(m.copies, id)
	if c == nil { // its beginning was not read
		c = &copied{docs: -1}
	}
	return c
}

// witness sees each entry. Without a rename under way it costs three length checks.
func (m *moves) witness(e *entry) {
	if m.idle() || !isWrite(e.op) && string(e.op) != "c" {
		return
	}
	for id, c := range m.copies {
		if c.term != e.at.Term { // the command was interrupted
			delete(m.copies, id)
		}
	}
	if string(e.op) != "c" {
		m.changed(e, false)
		return
	}
	first, err := e.o.IndexErr(0)
	if err != nil {
		return // the usual handling of the entry reports it
	}
	if first.Key() != "applyOps" {
		m.changed(e, first.Key() == "create")
		return
	}
	if prepared, _ := e.o.Lookup("prepare").BooleanOK(); prepared {
		return // it may be aborted
	}
	ops, _ := first.Value().ArrayOK()
	values, _ := ops.Values()
	for _, v := range values {
		var inner entry
		if doc, ok := v.DocumentOK(); ok && inner.parse(doc) == nil {
			m.changed(&inner, false)
		}
	}
}

func (m *moves) changed(e *entry, created bool) {
	id := identityOf(e.ui)
	if id == (identity{}) {
		return
	}
	for own, c := range m.copies {
		switch {
		case own != id:
			c.note(id, string(e.op), created)
		case string(e.op) == "i":
			c.grow()
		}
	}
	for _, list := range [][]moved{m.open, m.ended} {
		for _, one := range list {
			one.note(id, string(e.op), created)
		}
	}
}

// grow counts a document of the copy. Collections that changed before it were not locked.
func (c *copied) grow() {
	if c.docs >= 0 {
		c.docs++
	}
	for id := range c.since {
		c.not[id] = true
	}
	clear(c.since)
}

// note records an operation on another collection.
func (c *copied) note(id identity, op string, created bool) {
	if c.docs < 0 {
		return
	}
	if len(c.not)+len(c.since) >= maxWitnesses {
		*c = copied{term: c.term, docs: -1}
		return
	}
	if created {
		c.not[id] = true
	}
	switch op {
	case "i":
		c.since[id]++
	case "d":
		c.since[id]--
	default:
		c.since[id] += 0
	}
}

// mayBeOf reports whether the dropped collection may be the origin of the copy.
func (c *copied) mayBeOf(drop *entry) bool {
	id := identityOf(drop.ui)
	docs, known := drop.o2.Lookup("numRecords").AsInt64OK()
	return !c.not[id] && !(known && c.docs >= 0 && docs != c.docs+c.since[id])
}
