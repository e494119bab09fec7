package statetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
)

// TestLettersInMemory: a keeper that keeps its promises passes.
func TestLettersInMemory(t *testing.T) { RunLetters(t, newShelves("")) }

// TestSuiteFindsOfLetters: a keeper that breaks a promise fails the property about it.
func TestSuiteFindsOfLetters(t *testing.T) {
	for fault, property := range map[string]string{
		"settled stays open":             "an undecided letter waits, then is open, settled or about nothing",
		"nothing is removed":             "an undecided letter waits, then is open, settled or about nothing",
		"until is forgotten":             "an open letter is tried again",
		"of all jobs":                    "an undecided letter waits, then is open, settled or about nothing",
		"each write is another letter":   "a letter is replaced whole",
		"the first document stays":       "a letter is replaced whole",
		"half documents":                 "documents and _ids of every form are kept",
		"a reset removes all":            "what was removed is kept for ever",
		"a reset is of all jobs":         "what was removed is kept for ever",
		"a rename moves all":             "letters follow a rename",
		"a rename settles what it moved": "letters follow a rename",
		"a rename settles nothing":       "letters follow a rename",
		"a drop takes the removed":       "letters end with their collection",
		"a drop takes all":               "letters end with their collection",
		"a drop leaves the unmapped":     "what cannot be mapped is known until it is mended, renamed and dropped",
	} {
		t.Run(fault, func(t *testing.T) {
			t.Parallel()
			all := LettersProperties()
			at := slices.IndexFunc(all, func(p LettersProperty) bool { return p.Name == property })
			if at < 0 {
				t.Fatalf("no property %q", property)
			}
			check := Property{Check: func(t T, _ Setup) { all[at].Check(t, newShelves(fault)) }}
			if got := failures(t.Context(), check, Setup{}); len(got) == 0 {
				t.Errorf("%q does not find it", property)
			}
		})
	}
}

// newShelves keeps letters in memory.
func newShelves(fault string) OpenLetters {
	var mu sync.Mutex
	jobs := map[string]*shelf{}
	return func(job string) *deadletter.Store {
		mu.Lock()
		defer mu.Unlock()
		if fault == "of all jobs" {
			jobs[job] = jobs[""]
			job = ""
		}
		if jobs[job] == nil {
			jobs[job] = &shelf{fault: fault, jobs: jobs, letters: map[string]kept1{}}
		}
		return deadletter.Over(jobs[job], job)
	}
}

// shelf is a Keeper; fault names what is wrong with it.
type shelf struct {
	fault   string
	jobs    map[string]*shelf
	mu      sync.Mutex
	letters map[string]kept1
}

type kept1 struct {
	deadletter.Letter
	moved mongo.OpTime
}

func (s *shelf) Prepare(context.Context) error { return nil }

func (s *shelf) Cases(context.Context) (cases []deadletter.Case, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.letters {
		c := deadletter.Case{ID: id, NS: l.NS, Key: deadletter.KeyOf(l.DocID), State: l.State, Until: l.Until}
		if s.fault == "until is forgotten" {
			c.Until = mongo.OpTime{}
		}
		cases = append(cases, c)
	}
	return cases, nil
}

func (s *shelf) Get(_ context.Context, id string) (deadletter.Letter, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	l, ok := s.letters[id]
	if !ok {
		return l.Letter, errors.New("no letter " + id)
	}
	return l.Letter, nil
}

func (s *shelf) Put(_ context.Context, l deadletter.Letter) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	old := s.letters[l.ID]
	switch s.fault {
	case "each write is another letter":
		s.letters[l.ID+"+"] = kept1{Letter: l}
	case "the first document stays":
		if old.Doc != nil {
			l.Doc = old.Doc
		}
	case "half documents":
		l.Doc = l.Doc[:len(l.Doc)/2]
	}
	s.letters[l.ID] = kept1{l, old.moved}
	return nil
}

func (s *shelf) Settle(_ context.Context, id, _ string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if l := s.letters[id]; s.fault != "settled stays open" {
		l.State = deadletter.Settled
		s.letters[id] = l
	}
	return nil
}

func (s *shelf) Remove(_ context.Context, id string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.fault != "nothing is removed" {
		delete(s.letters, id)
	}
	return nil
}

// each changes the letters in dispute of a namespace.
func (s *shelf) each(ns string, change func(*kept1)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for id, l := range s.letters {
		inDispute := l.State == deadletter.Undecided || l.State == deadletter.Open || s.fault == "a drop takes the removed" ||
			l.State == deadletter.Unmapped && s.fault != "a drop leaves the unmapped"
		if inDispute && (l.NS == ns || s.fault == "a drop takes all") {
			change(&l)
			s.letters[id] = l
		}
	}
}

func (s *shelf) Move(_ context.Context, from, to string, at mongo.OpTime) error {
	if s.fault == "a rename moves all" {
		s.each("d.else", func(l *kept1) { l.NS, l.moved = to, at })
	}
	s.each(from, func(l *kept1) { l.NS, l.moved = to, at })
	return nil
}

func (s *shelf) SettleAll(_ context.Context, ns, _ string, but mongo.OpTime) error {
	s.each(ns, func(l *kept1) {
		if but.IsZero() || s.fault == "a rename settles what it moved" || l.moved != but &&
			s.fault != "a rename settles nothing" {
			l.State = deadletter.Settled
		}
	})
	return nil
}

func (s *shelf) Reset(context.Context) error {
	for _, one := range s.jobs {
		if one == s || s.fault == "a reset is of all jobs" {
			maps.DeleteFunc(one.letters, func(_ string, l kept1) bool {
				return l.State != deadletter.Removed ||
					s.fault == "a reset removes all"
			})
		}
	}
	return nil
}
