package main

// world is one configuration: what the source does, and what may happen.
type world struct {
	rules  rules
	script []event
	truth  []data // the source after each event; the first is before all

	runs, late                                  int // attempts; messages on their way at once
	failovers, sourceFailovers, hands, restarts uint8
	sourceStart                                 uint8 // events that the source has at the beginning
	handDoc                                     uint8
	// by hand: handDoc is put there, not removed; the collection is dropped instead
	handPut, handDrop bool
	crash, retry      bool // a process may end; an attempt may
	// in what is wrong; what else is wrong ends a history, and is not reported
	seek string
}

func (w *world) begin() state {
	d := data{coll: collMade}
	w.truth = []data{d}
	for i := range w.script {
		w.exact(&d, uint8(i+1))
		w.truth = append(w.truth, d)
	}
	s := state{term: 1, source: w.sourceStart, failovers: w.failovers, sourceFailovers: w.sourceFailovers, hands: w.hands,
		restarts: w.restarts}
	s.now.data.coll = collMade
	s.safe = s.now
	return s
}

func (w *world) last() uint8 { return uint8(len(w.script)) }

func (w *world) event(k uint8) event { return w.script[k-1] }

// move is one step, for the trace.
type move struct {
	who  int8 // owner, -1: nobody
	text string
	arg  int8
}

// visit is told each successor; wrong is what is wrong with it, "" if nothing.
type visit func(t state, m move, wrong string)

// next visits all successors of s.
func (w *world) next(s state, v visit) {
	for i := range s.own {
		if s.own[i].ack == ackYes { // nothing else can make it come out otherwise
			w.acknowledged(s, i, v)
			return
		}
	}
	w.world(s, v)
	for i := range s.own {
		w.owner(s, i, v)
	}
}

// world visits what happens without the owners.
func (w *world) world(s state, v visit) {
	if s.failovers > 0 && (s.safe != s.now || s.own[0].ack == ackWait || s.own[1].ack == ackWait) {
		t := s
		t.commit()
		v(t, move{-1, "a majority of the target's members has all", 0}, w.broken(&t))
	}
	if s.failovers > 0 {
		t := s
		t.failover()
		v(t, move{-1, "the target elects another primary; what no majority had is rolled back", 0}, w.broken(&t))
	}
	if s.source < w.last() {
		t := s
		t.source++
		v(t, move{-1, "the source acknowledges to a majority event %d", int8(t.source)}, "")
	}
	if s.sourceFailovers > 0 {
		t := s
		t.sourceFailovers--
		t.old = s.source + 1
		v(t, move{-1, "the source elects another primary; the old one, isolated, stands at %d", int8(s.source)}, "")
	}
	w.byHand(s, v)
	for i, m := range s.late {
		if m.kind == 0 || m.member != s.member {
			continue
		}
		t := s
		t.late[i] = message{}
		t.sortLate()
		w.deliver(&t, m)
		v(t, move{int8(m.run), "arrives late: " + m.text(), int8(m.arg)}, w.broken(&t))
	}
}

// byHand visits what somebody else may do to the target.
func (w *world) byHand(s state, v visit) {
	if s.hands == 0 || s.now.data.coll == collGone {
		return
	}
	s.hands--
	s.handAt, s.put = s.sent, w.handPut
	if w.handDrop {
		w.dropByHand(s, v)
		return
	}
	x := &s.now.data.docs[w.handDoc]
	if (x.made == 0) != w.handPut {
		return
	}
	s.hand = w.handDoc + 1
	text := "somebody removes document %d on the target"
	*x = doc{}
	if w.handPut {
		text = "somebody puts a document %d of his own on the target"
		*x = doc{foreign, foreign, foreign}
	}
	s.commit()
	v(s, move{-1, text, int8(w.handDoc)}, "")
}

// dropByHand drops the collection. What is then made under the new name of a rename
// looks like its result.
func (w *world) dropByHand(s state, v visit) {
	was := s.now.data.name
	s.hand, s.now.data = handColl, data{}
	s.commit()
	v(s, move{-1, "somebody drops the collection on the target", 0}, "")
	if was == 0 {
		s.now.data = data{coll: collForeign, name: 1}
		s.commit()
		v(s, move{-1, "somebody drops the collection on the target, and makes one under the other name", 0}, "")
	}
}

// copyDoc writes a document as the source had it at a position.
func (w *world) copyDoc(s *state, doc, at uint8) {
	if x := w.truth[at].docs[doc]; x.made != 0 {
		s.now.data.docs[doc] = x
		if s.now.data.coll == collGone {
			s.now.data.coll, s.now.data.name = collImplicit, w.truth[at].name
		}
	}
}

// exact applies event k under the name that the collection had on the source then.
func (w *world) exact(d *data, k uint8) {
	e, name, gone := w.event(k), w.truth[k-1].name, d.coll == collGone
	if !gone && (d.name != name || d.coll == collBoth) {
		if e.op == opInsert || e.op == opCreate {
			d.coll = collBoth
		}
		return
	}
	d.exact(k, e)
	if gone && d.coll != collGone {
		d.name = name
	}
}

// commit brings all to a majority of the target's members.
func (s *state) commit() {
	s.safe = s.now
	for i := range s.own {
		if s.own[i].ack == ackWait {
			s.own[i].ack = ackYes
		}
	}
}

func (s *state) failover() {
	s.failovers--
	s.term++
	s.member ^= 1
	s.now = s.safe
	for i := range s.own {
		if s.own[i].ack == ackWait {
			s.own[i].ack = ackFailed
		}
	}
}

// majority says that the control write of owner i was executed.
func (s *state) majority(i int) {
	s.own[i].ack, s.own[i].got = ackWait, s.term
	if s.failovers == 0 { // nothing rolls back any more
		s.commit()
	}
}

// deliver executes a message whose attempt is no more.
func (w *world) deliver(s *state, m message) {
	switch m.kind {
	case msgCopy:
		w.copyDoc(s, m.arg, m.fence)
	case msgData:
		w.execute(&s.now.data, m.arg, m.put)
		s.sent = max(s.sent, m.arg)
	case msgChange:
		w.change(&s.now.data, m.arg)
		s.sent = max(s.sent, m.arg)
	case msgPos:
		if m.fence == s.now.job.fence || !w.rules.has(storeFenced) {
			s.now.job.applied = m.arg
		}
	case msgFinal:
		if m.fence == s.now.job.fence || !w.rules.has(storeFenced) {
			s.now.job.final = 1 + m.arg
		}
	}
}

// execute runs the command for event k: put says that it replaces what is there.
func (w *world) execute(d *data, k uint8, put bool) {
	e := w.event(k)
	if e.op == opInsert && d.docs[e.doc].made != 0 && !put {
		return
	}
	w.exact(d, k)
}

// change runs a schema change. A create of what is there is refused, and a rename of
// what is not, or to a name that is taken.
func (w *world) change(d *data, k uint8) (refused bool) {
	have := d.under(w.truth[k-1].name)
	switch w.event(k).op {
	case opCreate:
		refused = have != collGone
	case opRename:
		refused = have == collGone || have == collBoth
	}
	if !refused {
		w.exact(d, k)
	}
	return refused
}

// renamed says whether an attempt takes a rename that was noted before for applied.
func (w *world) renamed(s *state, k uint8) bool {
	d := &s.now.data
	if w.event(k).op != opRename {
		return false
	}
	if !w.rules.has(noteBefore) {
		return d.under(w.truth[k-1].name) == collGone
	}
	have := d.under(w.event(k).doc)
	return have != collGone && have != collBoth && have == s.now.job.before
}

func (m message) text() string {
	switch m.kind {
	case msgCopy:
		return "the copied document %d"
	case msgData:
		return "event %d"
	case msgChange:
		return "schema change %d"
	case msgFinal:
		return "that the job is finalized at %d"
	}
	return "position %d"
}

func less(a, b message) bool {
	x := [6]uint8{a.kind, a.arg, a.run, a.fence, a.member, one(a.put)}
	y := [6]uint8{b.kind, b.arg, b.run, b.fence, b.member, one(b.put)}
	for i := range x {
		if x[i] != y[i] {
			return x[i] > y[i] // the empty ones last
		}
	}
	return false
}

func one(b bool) uint8 {
	if b {
		return 1
	}
	return 0
}

// sortLate makes states equal that differ in nothing but the order.
func (s *state) sortLate() {
	l := &s.late
	for _, p := range [][2]int{{0, 1}, {1, 2}, {0, 1}} {
		if less(l[p[1]], l[p[0]]) {
			l[p[0]], l[p[1]] = l[p[1]], l[p[0]]
		}
	}
}

// broken says what is wrong for good once the job is finalized.
func (w *world) broken(s *state) string {
	if !s.final {
		return ""
	}
	if s.reported && s.put {
		return "a conflict was reported, and the job overwrote the document by itself"
	}
	if s.finalPos < s.finalAsked {
		return "finalized before the newest majority write of the source was there"
	}
	return w.differs(s, s.now.data, w.truth[s.finalPos], "finalized, but ")
}

// differs compares the target with the source, but for what was changed by hand
// and has been touched by no event since.
func (w *world) differs(s *state, have, want data, prefix string) string {
	if s.hand == handColl && !s.reported && !w.touched(s) {
		return ""
	}
	again := s.hand == handColl && have.under(want.name) == collImplicit // an insert made it again
	if have.name != want.name || have.coll != want.coll && !again {
		return prefix + "the collection is not the source's"
	}
	for i := range have.docs {
		if have.docs[i] == want.docs[i] || s.hand == uint8(i)+1 && !s.reported && !w.touched(s) {
			continue
		}
		switch {
		case s.hand == uint8(i)+1 && s.final:
			return prefix + "a conflict is hidden"
		case have.docs[i].made == 0:
			return prefix + "a document is missing"
		case want.docs[i].made == 0:
			return prefix + "a deleted document is there"
		}
		return prefix + "a document is not the source's"
	}
	return ""
}

// touched: an event that came after the change by hand had to meet it.
func (w *world) touched(s *state) bool {
	for k := s.handAt + 1; k <= s.finalPos; k++ {
		if s.hand == handColl && w.event(k).op == opRename {
			return true
		}
		if e := w.event(k); !e.schema() && e.doc+1 == s.hand && e.op != opDelete {
			return true
		}
	}
	return false
}

// claim checks what an attempt believes that loads the position: nothing else
// written, the events after it make the target equal.
func (w *world) claim(s *state) string {
	if s.now.job.copying || s.hand == handColl {
		return ""
	}
	d := s.now.data
	for k := s.now.job.applied + 1; k <= w.last(); k++ {
		w.exact(&d, k)
	}
	want := w.truth[w.last()]
	if s.hand != 0 {
		d.docs[s.hand-1] = want.docs[s.hand-1]
	}
	return w.differs(s, d, want, "the loaded position is not true: after all later events ")
}
