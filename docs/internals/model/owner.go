package main

import "math/bits"

// bit is event k in a set.
func bit(k uint8) uint8 { return 1 << (k - 1) }

// upTo is the set of the events up to k.
func upTo(k uint8) uint8 { return 1<<k - 1 }

// copied is the bit of a copied document in owner.acked.
func copied(doc uint8) uint8 { return 1 << (6 + doc) }

// applied is the position up to which all is acknowledged.
func (p *owner) applied() uint8 { return uint8(bits.TrailingZeros8(^(p.acked & upTo(5)))) }

// claimable is the position that may be saved.
func (w *world) claimable(p *owner) uint8 {
	c := p.applied()
	if w.rules.has(holdPosition) && p.skipped != 0 {
		c = min(c, uint8(bits.TrailingZeros8(p.skipped)))
	}
	return c
}

// owner visits the steps of owner i.
func (w *world) owner(s state, i int, v visit) {
	p := &s.own[i]
	if p.st != stDown && p.st != stStopped && p.st != stDone && w.crash && !p.frozen && w.mayBegin(&s) {
		w.end(s, i, stDown, move{int8(i), "is killed", 0}, v)
	}
	if p.ack == ackFailed {
		w.end(s, i, stIdle, move{int8(i), "learns that its write failed; goes back to the checkpoint", 0}, v)
		return
	}
	if p.frozen {
		w.thaw(s, i, v)
		return
	}
	switch p.st {
	case stDown, stStopped:
		w.start(s, i, v)
	case stIdle:
		w.again(s, i, v)
	case stRead:
		w.raise(s, i, v)
	case stLook:
		w.look(s, i, v)
	case stLookOK:
		w.proveLook(s, i, v)
	case stReset:
		w.reset(s, i, v)
	case stRun:
		w.run(s, i, v)
	}
}

func (w *world) mayBegin(s *state) bool { return int(s.runs) < w.runs }

// start starts a process.
func (w *world) start(s state, i int, v visit) {
	if !w.mayBegin(&s) || s.final || i == 1 && s.runs == 0 {
		return
	}
	t := s
	t.runs++
	t.own[i] = owner{st: stRead, fence: s.now.job.fence, run: t.runs}
	v(t, move{int8(i), "starts, and reads fence %d", int8(s.now.job.fence)}, "")
	if s.restarts == 0 {
		return
	}
	t.restarts--
	if w.rules.has(fenceNeverReused) {
		t.own[i].restart = true
		v(t, move{int8(i), "starts with --restart, and reads fence %d", int8(s.now.job.fence)}, "")
		return
	}
	for at := max(s.sent, 1); at <= s.source; at++ {
		u := t
		u.wipe(at, w.truth[at].name)
		u.now.job.fence = 1
		u.own[i] = owner{st: stLook, fence: 1, run: t.runs, term: s.term}
		u.majority(i)
		v(u, move{int8(i), "starts with --restart: makes the job anew with fence 1, to copy at %d", int8(at)}, "")
	}
}

// wipe is the job at its beginning and an empty target.
func (s *state) wipe(at, name uint8) {
	s.now.data = data{coll: collMade, name: name}
	s.final, s.finalPos, s.finalAsked = false, 0, 0
	s.now.job = jobDoc{fence: s.now.job.fence, start: at, applied: at, reach: at, copying: true}
}

// again begins the next attempt of a living process.
func (w *world) again(s state, i int, v visit) {
	if !w.mayBegin(&s) {
		return
	}
	s.runs++
	p := &s.own[i]
	p.run = s.runs
	if w.rules.has(fenceEachAttempt) {
		w.raise(s, i, v)
		return
	}
	p.st, p.term = stLook, s.term
	v(s, move{int8(i), "begins another attempt with fence %d", int8(p.fence)}, "")
}

// raise raises the fence, unless somebody else did meanwhile.
func (w *world) raise(s state, i int, v visit) {
	p := &s.own[i]
	if s.now.job.fence != p.fence {
		*p = owner{}
		v(s, move{int8(i), "finds the fence raised, and ends", 0}, "")
		return
	}
	s.now.job.fence++
	p.st, p.fence, p.term = stLook, s.now.job.fence, s.term
	s.majority(i)
	m := move{int8(i), "raises the fence to %d", int8(p.fence)}
	o := &s.own[1-i]
	if !w.rules.has(lease) || o.st == stDown || o.st == stStopped || o.st == stDone || o.frozen {
		v(s, m, "")
		return
	}
	// The old owner has sent nothing for longer than a lease. Where the fence
	// is in the filter it learns that first when it goes on.
	m.text += "; the lease of the other has passed"
	if w.rules.has(storeFenced) {
		w.end(s, 1-i, stDown, m, v)
		return
	}
	w.left(s, 1-i, m, v, func(t *state) { t.own[1-i].frozen = true })
}

// thaw is an owner that has been paused for longer than its lease.
func (w *world) thaw(s state, i int, v visit) {
	s.own[i].frozen = false
	v(s, move{int8(i), "wakes up; its beat succeeds", 0}, "")
}

// look waits until nothing of other runs can arrive at the primary.
func (w *world) look(s state, i int, v visit) {
	p := &s.own[i]
	if p.ack != ackNone {
		return
	}
	if !w.rules.has(endRuns) {
		w.load(s, i, "", v)
		return
	}
	t := s
	for k, m := range t.late {
		if m.onOwnConnection() && m.run != p.run && (m.member == s.member || w.rules.has(allMembers)) {
			t.late[k] = message{}
		}
	}
	t.sortLate()
	if w.rules.has(lookProof) {
		t.own[i].st = stLookOK
		v(t, move{int8(i), "waits until no connection of another run is left at the primary", 0}, "")
		return
	}
	w.load(t, i, "finds no connection of another run at the primary; ", v)
	if s.term > 1 && !w.rules.has(allMembers) {
		w.load(s, i, "finds no connection of another run, at the deposed primary; ", v)
	}
}

// onOwnConnection: writes of the store go over connections that all attempts of
// a process share.
func (m message) onOwnConnection() bool {
	return m.kind == msgData || m.kind == msgCopy || m.kind == msgChange
}

// proveLook is the majority write after it.
func (w *world) proveLook(s state, i int, v visit) {
	p := &s.own[i]
	if p.ack != ackNone {
		return
	}
	if w.fenced(s, i, v) {
		return
	}
	s.majority(i)
	v(s, move{int8(i), "sends a majority write after the look", 0}, "")
}

// fenced ends an owner whose write matches no document.
func (w *world) fenced(s state, i int, v visit) bool {
	if !w.rules.has(storeFenced) || s.now.job.fence == s.own[i].fence {
		return false
	}
	w.end(s, i, stDown, move{int8(i), "finds itself fenced, and ends", 0}, v)
	return true
}

// reset is what --restart does once it is the owner.
func (w *world) reset(s state, i int, v visit) {
	if s.own[i].ack != ackNone || w.fenced(s, i, v) {
		return
	}
	for at := max(s.sent, 1); at <= s.source; at++ {
		t := s
		t.wipe(at, w.truth[at].name)
		t.own[i].restart = false
		t.majority(i)
		v(t, move{int8(i), "resets the job, to copy at %d", int8(at)}, "")
	}
}

// load reads the checkpoint and begins to run. The read is linearizable.
func (w *world) load(s state, i int, before string, v visit) {
	if w.fenced(s, i, v) {
		return
	}
	p := &s.own[i]
	if p.restart {
		p.st = stReset
		v(s, move{int8(i), before + "owns the job", 0}, "")
		return
	}
	s.commit()
	j := &s.now.job
	if j.final != 0 {
		*p = owner{st: stDone}
		s.final, s.finalPos, s.finalAsked = true, j.final-1, 0
		v(s, move{int8(i), before + "finds the job finalized", 0}, w.broken(&s))
		return
	}
	*p = owner{st: stRun, run: p.run, fence: p.fence, term: p.term, saved: j.applied, acked: upTo(j.applied),
		reach: j.reach, intent: j.intent, refused: j.refused, copying: j.copying, start: j.start, began: s.sent}
	switch {
	case w.rules.has(boundWindow):
		p.window = j.reach
	case j.opened:
		p.window = s.source
	}
	j.opened = j.opened || !j.copying
	s.commit()
	wrong := w.claim(&s)
	v(s, move{int8(i), before + "loads position %d", int8(j.applied)}, wrong)
}

// left visits s once for each choice of what of owner i is still on its way,
// after change was done to it.
func (w *world) left(s state, i int, m move, v visit, change func(*state)) {
	cands := w.underWay(&s, i)
	free := w.late
	for _, l := range s.late {
		if l.kind != 0 {
			free--
		}
	}
	drained := s.own[i].ctl == ctIdle && w.drained(&s.own[i]) // then it may have sent that instead
	final := message{kind: msgFinal, arg: s.own[i].applied(), run: s.own[i].run, fence: s.own[i].fence, member: s.member}
	change(&s)
	w.choose(s, cands, free, m, v)
	if drained && free > 0 {
		w.choose(s, []message{final}, free, m, v)
	}
}

func (w *world) choose(s state, cands []message, free int, m move, v visit) {
	if len(cands) > free {
		for k := range cands { // leave one out
			rest := append(append([]message{}, cands[:k]...), cands[k+1:]...)
			w.choose(s, rest, free, m, v)
		}
		return
	}
	for _, c := range cands {
		s.late[2] = c // the empty ones are last
		s.sortLate()
	}
	if len(cands) > 0 {
		m.text += "; what it sent last is on its way"
	}
	v(s, m, "")
}

// end ends an attempt; to is what is left, a process or nothing.
func (w *world) end(s state, i int, to uint8, m move, v visit) {
	w.left(s, i, m, v, func(t *state) {
		o := owner{st: to}
		if to == stIdle {
			o.fence = t.own[i].fence
		}
		t.own[i] = o
	})
}

// underWay is what an attempt may have sent without an answer.
func (w *world) underWay(s *state, i int) (out []message) {
	p := &s.own[i]
	if p.st != stRun || p.frozen || p.judges() || p.ctl == ctFinal {
		return nil
	}
	send := func(m message) {
		m.run, m.member = p.run, s.member
		out = append(out, m)
		// Sent before the failover: it arrives if that member is primary again.
		if p.term < s.term && s.failovers > 0 {
			m.member ^= 1
			out = append(out, m)
		}
	}
	for d := range uint8(2) {
		if p.copying {
			if p.acked&copied(d) == 0 {
				send(message{kind: msgCopy, arg: d, fence: p.start})
			}
			continue
		}
		if k := w.sendable(s, p, d); k != 0 {
			send(message{kind: msgData, arg: k, put: w.inWindow(p, k) && s.now.data.docs[d].made != 0})
		}
	}
	switch {
	case p.ctl == ctChange && p.ack == ackNone:
		send(message{kind: msgChange, arg: p.arg})
	case p.ctl == ctPos && p.arg > p.saved:
		send(message{kind: msgPos, arg: p.arg, fence: p.fence})
	case p.ctl == ctIdle && !w.rules.has(proveFirst) && w.claimable(p) > p.saved:
		send(message{kind: msgPos, arg: w.claimable(p), fence: p.fence})
	}
	return out
}

// sendable is the next event of a lane, 0 if none may be sent.
func (w *world) sendable(s *state, p *owner, lane uint8) uint8 {
	for k := p.saved + 1; k <= s.source; k++ {
		if p.acked&bit(k) != 0 {
			continue
		}
		if w.event(k).schema() || w.rules.has(boundWindow) && k > p.reach {
			return 0
		}
		if w.event(k).doc == lane {
			return k
		}
	}
	return 0
}

// inWindow: the target may be ahead of event k.
func (w *world) inWindow(p *owner, k uint8) bool {
	for r := p.refused; r != 0; r &= r - 1 {
		n := uint8(bits.TrailingZeros8(r)) + 1
		if w.rules.has(noteRefusal) && k >= n && w.event(n).doc == w.event(k).doc {
			return false
		}
	}
	return k <= p.window
}
