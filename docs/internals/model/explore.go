package main

import (
	"fmt"
	"hash/maphash"
	"strings"
)

// found is the result of a search.
type found struct {
	states int
	ends   int    // states in which the job is finalized
	wrong  string // what is wrong at the end of trace
	trace  []string
	whole  bool // nothing is left to be visited
}

// explorer visits all states, those with the fewest steps first.
type explorer struct {
	w      *world
	states []state
	from   []int32
	table  []int32 // 1+index into states, by hash
	seed   maphash.Seed
}

// search looks for something wrong, and stops at the first: no shorter way
// leads to it. It gives up after limit states.
func search(w *world, limit int) found {
	x := &explorer{w: w, table: make([]int32, 1<<16), seed: maphash.MakeSeed()}
	x.add(w.begin(), -1)
	var f found
	for at := 0; at < len(x.states) && len(x.states) < limit; at++ {
		if x.states[at].final {
			f.ends++
		}
		var last move
		w.next(x.states[at], func(t state, m move, wrong string) {
			if wrong == "" {
				x.add(t, int32(at))
				return
			}
			if f.wrong == "" && strings.Contains(wrong, w.seek) {
				f.wrong, last = wrong, m
			}
		})
		if f.wrong != "" {
			f.trace = append(x.trace(int32(at)), last.String())
			f.states = len(x.states)
			return f
		}
	}
	f.states, f.whole = len(x.states), len(x.states) < limit
	return f
}

// add puts a state in the queue, unless it was there.
func (x *explorer) add(s state, from int32) {
	if s.failovers == 0 {
		s.safe = store{} // as now, from here on
	}
	i := x.slot(&s)
	if x.table[i] != 0 {
		return
	}
	x.states, x.from = append(x.states, s), append(x.from, from)
	x.table[i] = int32(len(x.states))
	if 2*len(x.states) > len(x.table) {
		x.grow()
	}
}

// slot is where s is in the table, or would be.
func (x *explorer) slot(s *state) uint64 {
	mask := uint64(len(x.table) - 1)
	for i := maphash.Comparable(x.seed, *s) & mask; ; i = (i + 1) & mask {
		if n := x.table[i]; n == 0 || x.states[n-1] == *s {
			return i
		}
	}
}

func (x *explorer) grow() {
	x.table = make([]int32, 2*len(x.table))
	for n := range x.states {
		x.table[x.slot(&x.states[n])] = int32(n + 1)
	}
}

// trace are the steps to a state.
func (x *explorer) trace(at int32) []string {
	if x.from[at] < 0 {
		return nil
	}
	before := x.trace(x.from[at])
	step := ""
	x.w.next(x.states[x.from[at]], func(t state, m move, wrong string) {
		if t.failovers == 0 {
			t.safe = store{}
		}
		if step == "" && wrong == "" && t == x.states[at] {
			step = m.String()
		}
	})
	return append(before, step)
}

// String is the step in words.
func (m move) String() string {
	text := m.text
	if strings.Contains(text, "%d") {
		text = fmt.Sprintf(text, m.arg)
	}
	switch {
	case m.who < 0:
		return text
	case m.who < 2 && !strings.HasPrefix(text, "arrives late"):
		return string(rune('A'+m.who)) + " " + text
	}
	return fmt.Sprintf("from attempt %d ", m.who) + text
}
