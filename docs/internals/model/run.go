package main

import "math/bits"

// replied notes the term in a reply; false ends the attempt.
func (w *world) replied(s *state, p *owner) bool {
	if w.rules.has(oneTerm) {
		return s.term == p.term
	}
	switch p.seen {
	case 0, s.term:
		p.seen = s.term
	default:
		p.seen = mixed
	}
	return true
}

const otherTerm = "; the reply's term is another, it goes back to the checkpoint"

// run visits the steps of an attempt that copies or follows.
func (w *world) run(s state, i int, v visit) {
	p := &s.own[i]
	if w.retry && w.mayBegin(&s) {
		w.end(s, i, stIdle, move{int8(i), "is interrupted and goes back to the checkpoint", 0}, v)
	}
	if !p.judges() && p.ctl != ctFinal {
		for lane := range uint8(2) {
			w.send(s, i, lane, v)
		}
	}
	if p.ack == ackNone {
		w.control(s, i, v)
	}
}

// send executes the next command of a lane, and gives its answer.
func (w *world) send(s state, i int, lane uint8, v visit) {
	p := &s.own[i]
	if p.copying {
		if p.acked&copied(lane) != 0 {
			return
		}
		w.copyDoc(&s, lane, p.start)
		p.acked |= copied(lane)
		w.answer(s, i, move{int8(i), "copies document %d", int8(lane)}, 0, v)
		return
	}
	k := w.sendable(&s, p, lane)
	if k == 0 {
		return
	}
	if w.rules.has(oneTerm) && p.term < s.term {
		t := s
		t.own[i].acked |= bit(k)
		w.explain(&t.own[i], k)
		t.sent = max(t.sent, k)
		v(t, move{int8(i), "sends event %d to the deposed primary, which acknowledges it", int8(k)}, "")
	}
	in, refused := w.inWindow(p, k), uint8(0)
	m := move{int8(i), "applies event %d", int8(k)}
	there := s.now.data.docs[lane].made != 0
	switch op := w.event(k).op; {
	case op == opInsert && there && !in:
		refused = k
		m.text = "meets a document where event %d inserts it"
	case (op == opSetA || op == opSetB) && !there && !in:
		refused = k
		m.text = "misses the document that event %d updates"
		w.misread(s, i, k, v)
	case (op == opSetA || op == opSetB) && !there:
		m.text = "skips event %d: no document, inside of the window"
		if w.rules.has(rememberSkips) {
			p.skipped |= bit(k)
		}
	}
	if w.event(k).op == opInsert && in && k > p.began+2 && s.now.data.docs[lane].made == foreign {
		v(s, m, "it overwrites a document that this job cannot have written")
		return
	}
	if refused == 0 {
		w.execute(&s.now.data, k, in)
		p.acked |= bit(k)
		w.explain(p, k)
	}
	s.sent = max(s.sent, k)
	w.answer(s, i, m, refused, v)
}

// explain forgets the updates that event k explains.
func (w *world) explain(p *owner, k uint8) {
	if op := w.event(k).op; op != opInsert && op != opDelete {
		return
	}
	for e := p.skipped; e != 0; e &= e - 1 {
		if n := uint8(bits.TrailingZeros8(e)) + 1; w.event(n).doc == w.event(k).doc {
			p.skipped &^= bit(n)
		}
	}
}

// answer gives the owner the answer to a command for data.
func (w *world) answer(s state, i int, m move, refused uint8, v visit) {
	p := &s.own[i]
	if !w.replied(&s, p) {
		m.text += otherTerm
		w.end(s, i, stIdle, m, v)
		return
	}
	if refused != 0 {
		w.refuse(p, refused)
	}
	v(s, m, w.broken(&s))
}

// misread: a command's answer came from the attempt's own term, and made it look
// which documents are missing; the look is answered by another primary. The
// reply of a read holds no term.
func (w *world) misread(s state, i int, k uint8, v visit) {
	if p := &s.own[i]; w.rules.has(oneTerm) && p.term < s.term {
		w.refuse(p, k)
		v(s, move{int8(i), "reads, from another primary, that the document of event %d is missing", int8(k)}, "")
	}
}

// refuse ends all but the judging of event k.
func (w *world) refuse(p *owner, k uint8) {
	p.ctl, p.arg, p.ack = ctRefuse, k, ackNone
	if w.rules.has(proveRefusal) {
		p.ctl = ctVerdict
	}
}

// judges: a refusal is about to end the attempt.
func (p *owner) judges() bool { return p.ctl == ctRefuse || p.ctl == ctVerdict }

// control visits the next steps of the control connection.
func (w *world) control(s state, i int, v visit) {
	p := &s.own[i]
	switch p.ctl {
	case ctIdle:
		w.idle(s, i, v)
	case ctPos:
		w.position(s, i, v)
	case ctChange:
		w.sendChange(s, i, v)
	case ctVerdict:
		w.proveRefused(s, i, v)
	case ctRefuse:
		w.noteRefused(s, i, v)
	}
}

// ahead is the reach to be noted next.
func (w *world) ahead(p *owner) uint8 { return min(w.last(), max(p.reach, p.applied()+2)) }

func (w *world) idle(s state, i int, v visit) {
	p := &s.own[i]
	if w.fenced(s, i, v) { // the beat tells
		return
	}
	pos := w.claimable(p)
	copiedAll := p.copying && p.acked&(copied(0)|copied(1)) == copied(0)|copied(1)
	w.noteReach(s, i, v)
	further := w.rules.has(reachMajority) && w.rules.has(boundWindow) && w.ahead(p) > p.reach
	if pos > p.saved || copiedAll || further && !p.copying {
		w.save(s, i, pos, v)
	}
	if p.copying {
		return
	}
	if p.skipped != 0 && (p.applied() >= p.window || p.finalAt != 0 && p.applied() >= p.finalAt) {
		t := s
		k := uint8(bits.TrailingZeros8(p.skipped)) + 1
		w.refuse(&t.own[i], k)
		v(t, move{int8(i), "finds nothing that explains why event %d met no document", int8(k)}, "")
	}
	if next := p.applied() + 1; next <= s.source && w.event(next).schema() {
		w.barrier(s, i, next, v)
	}
	w.finalize(s, i, v)
}

// noteReach notes it by a write of its own.
func (w *world) noteReach(s state, i int, v visit) {
	p := &s.own[i]
	to := w.ahead(p)
	if !w.rules.has(boundWindow) || w.rules.has(reachMajority) || to == p.reach || p.copying {
		return
	}
	m := move{int8(i), "notes that it may send up to %d", int8(to)}
	if w.rules.has(oneTerm) && p.term < s.term {
		t := s
		t.own[i].reach = to
		v(t, move{m.who, m.text + ", at the deposed primary", m.arg}, "")
	}
	s.now.job.reach, p.reach = to, to
	w.answer(s, i, m, 0, v)
}

// save begins to save a position.
func (w *world) save(s state, i int, pos uint8, v visit) {
	p := &s.own[i]
	p.ctl, p.arg = ctProof, pos
	text := "sends a majority write, to prove position %d"
	if w.rules.has(reachMajority) && w.rules.has(boundWindow) {
		p.carried = w.ahead(p)
		s.now.job.reach = p.carried
	}
	if !w.rules.has(proveFirst) {
		p.ctl = ctSave
		p.store(&s.now.job)
		text = "saves position %d by a majority write"
	}
	p.taken, p.seen = p.seen, 0
	s.majority(i)
	v(s, move{int8(i), text, int8(pos)}, w.broken(&s))
}

// position writes what is proven.
func (w *world) position(s state, i int, v visit) {
	p := &s.own[i]
	if w.fenced(s, i, v) {
		return
	}
	p.store(&s.now.job)
	m := move{int8(i), "writes position %d", int8(p.arg)}
	wrong := w.written(&s, p)
	w.answer(s, i, m, 0, func(t state, m move, also string) { v(t, m, wrong+also) })
}

// barrier begins a schema change: all before it is acknowledged.
func (w *world) barrier(s state, i int, k uint8, v visit) {
	p := &s.own[i]
	if w.rules.has(boundWindow) && k > p.reach {
		return
	}
	if w.rules.has(proveFirst) && p.saved != w.claimable(p) {
		return // that is saved first
	}
	p.ctl, p.arg = ctIntent, k
	if !w.rules.has(noteIntent) {
		p.ctl = ctChange
		v(s, move{int8(i), "is about to send schema change %d", int8(k)}, "")
		return
	}
	if w.rules.has(noteBefore) && w.event(k).op == opRename && p.intent != k {
		s.now.job.before = s.now.data.under(w.truth[k-1].name)
	}
	m := move{int8(i), "notes that it is about to send schema change %d", int8(k)}
	if w.rules.has(intentMajority) {
		s.now.job.intent = k
		s.majority(i)
		v(s, m, "")
		return
	}
	p.ctl = ctChange
	if w.rules.has(oneTerm) && p.term < s.term {
		v(s, move{m.who, m.text + ", at the deposed primary", m.arg}, "")
	}
	s.now.job.intent = k
	if !w.rules.has(proveFirst) {
		s.now.job.applied = w.claimable(p)
	}
	if !w.replied(&s, p) || p.seen == mixed {
		w.end(s, i, stIdle, move{m.who, m.text + otherTerm, m.arg}, v)
		return
	}
	v(s, m, "")
}

// sendChange sends a schema change. Its reply holds no term.
func (w *world) sendChange(s state, i int, v visit) {
	p := &s.own[i]
	k := p.arg
	if s.term > 1 && !w.rules.has(changeMajority) {
		t := s
		t.own[i].changed(k)
		v(t, move{int8(i), "sends schema change %d to a deposed primary, which acknowledges it", int8(k)}, "")
	}
	m := move{int8(i), "applies schema change %d", int8(k)}
	maybe, rename := p.intent == k, w.event(k).op == opRename
	if maybe && w.renamed(&s, k) {
		p.changed(k)
		v(s, move{int8(i), "takes schema change %d for one that was applied", int8(k)}, "")
		return
	}
	if w.change(&s.now.data, k) && (!maybe || rename) {
		w.refuse(p, k)
		text := "cannot apply schema change %d: the collection is there already"
		if rename {
			text = "cannot apply schema change %d: there is nothing to be renamed, or the name is taken"
		}
		v(s, move{int8(i), text, int8(k)}, "")
		return
	}
	s.sent = max(s.sent, k)
	if w.rules.has(changeMajority) {
		s.majority(i)
	} else {
		p.changed(k)
	}
	v(s, m, w.broken(&s))
}

// changed: schema change k is acknowledged.
func (p *owner) changed(k uint8) {
	p.acked |= bit(k)
	p.ctl, p.arg, p.intent, p.skipped = ctIdle, 0, 0, 0
}

// proveRefused is a majority write after what was judged by.
func (w *world) proveRefused(s state, i int, v visit) {
	if w.fenced(s, i, v) {
		return
	}
	s.majority(i)
	v(s, move{int8(i), "sends a majority write before it notes a refusal", 0}, "")
}

// noteRefused notes a refusal, then stops.
func (w *world) noteRefused(s state, i int, v visit) {
	p := &s.own[i]
	if !w.rules.has(noteRefusal) {
		w.stop(s, i, p.arg, v)
		return
	}
	if w.fenced(s, i, v) {
		return
	}
	k := p.arg
	if !w.event(k).schema() {
		s.now.job.refused |= bit(k)
	}
	if w.rules.has(refusalMajority) {
		s.majority(i)
		v(s, move{int8(i), "notes that event %d is refused, by a majority write", int8(k)}, "")
		return
	}
	if !w.replied(&s, p) {
		w.end(s, i, stIdle, move{int8(i), "notes that event %d is refused" + otherTerm, int8(k)}, v)
		return
	}
	w.stop(s, i, k, v)
}

// stop reports a conflict and ends the process.
func (w *world) stop(s state, i int, k uint8, v visit) {
	s.own[i] = owner{st: stStopped}
	s.reported = true
	wrong := ""
	if s.hand != handColl && (s.hand == 0 || w.event(k).op == opRename || w.event(k).doc+1 != s.hand) {
		wrong = "it stops over a conflict that is none"
	}
	v(s, move{int8(i), "stops, and reports the conflict of event %d", int8(k)}, wrong)
}

// finalize asks for the end, and ends the job when it is reached.
func (w *world) finalize(s state, i int, v visit) {
	p := &s.own[i]
	if p.finalAt == 0 && s.source > 0 {
		t := s
		t.own[i].finalAt, t.own[i].asked = s.source, s.source
		v(t, move{int8(i), "is asked to finalize; the source's newest position is %d", int8(s.source)}, "")
		if s.old != 0 && !w.rules.has(linearizable) {
			t.own[i].finalAt = max(s.old-1, 1)
			v(t, move{int8(i), "is asked to finalize; the isolated primary of the source says %d", int8(s.old - 1)}, "")
		}
		return
	}
	if !w.drained(p) {
		return
	}
	at := p.applied()
	s.now.job.final = 1 + at
	p.ctl, p.arg = ctFinal, at
	p.taken, p.seen = p.seen, 0
	s.majority(i)
	v(s, move{int8(i), "writes that the job is finalized at %d", int8(at)}, "")
}

// drained: nothing is left to be done before the job is finalized.
func (w *world) drained(p *owner) bool {
	at := p.applied()
	return p.finalAt != 0 && at >= p.finalAt && p.skipped == 0 && p.saved == at && p.acked == upTo(at)
}

// acknowledged gives owner i the answer to its majority write.
func (w *world) acknowledged(s state, i int, v visit) {
	p := &s.own[i]
	p.ack = ackNone
	same := !w.rules.has(oneTerm) || p.got == p.term
	switch p.st {
	case stLookOK:
		same = p.got == p.term
	case stRun:
		if !w.rules.has(oneTerm) && !p.judges() && p.ctl != ctChange {
			same = p.taken == 0 || p.taken == p.got
		}
		if p.ctl == ctChange {
			same = true // nobody can tell
		}
	}
	if !same {
		w.end(s, i, stIdle, move{int8(i), "is answered" + otherTerm, 0}, v)
		return
	}
	m := move{int8(i), "is answered", 0}
	switch p.st {
	case stLook:
		v(s, m, "")
	case stLookOK, stReset:
		w.load(s, i, "is answered; ", v)
	case stRun:
		w.goOn(s, i, m, v)
	}
}

// goOn is what follows on a majority write of an attempt that runs.
func (w *world) goOn(s state, i int, m move, v visit) {
	p := &s.own[i]
	if w.rules.has(reachMajority) && (p.ctl == ctProof || p.ctl == ctSave) {
		p.reach = p.carried
	}
	switch p.ctl {
	case ctProof:
		if p.arg > p.saved || p.copying {
			p.ctl = ctPos
		} else {
			p.ctl, p.arg = ctIdle, 0
		}
	case ctSave:
		wrong := w.written(&s, p)
		v(s, m, wrong+w.broken(&s))
		return
	case ctIntent:
		p.ctl = ctChange
	case ctChange:
		p.changed(p.arg)
	case ctVerdict:
		p.ctl = ctRefuse
	case ctRefuse:
		w.stop(s, i, p.arg, v)
		return
	case ctFinal:
		s.final, s.finalPos, s.finalAsked = true, p.arg, p.asked
		*p = owner{st: stDone}
	}
	v(s, m, w.broken(&s))
}

// store writes the position, or that the copy has ended.
func (p *owner) store(j *jobDoc) {
	if p.copying {
		j.copying = false
		return
	}
	j.applied = p.arg
}

// written: what store wrote is acknowledged. Where the copy ends the next phase
// begins from what the job's document says.
func (w *world) written(s *state, p *owner) (wrong string) {
	p.saved, p.ctl = p.arg, ctIdle
	if p.copying {
		j := &s.now.job
		p.copying, p.saved, p.acked, p.window, j.opened = false, j.applied, upTo(j.applied), max(p.window, j.start), true
		wrong = w.claim(s)
	}
	p.arg = 0
	return wrong
}
