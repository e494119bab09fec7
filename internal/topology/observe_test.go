package topology

import (
	"bytes"
	"strings"
	"testing"
	"time"
)

func TestObserve(t *testing.T) {
	c := labSet(t)
	o := open(t, c)
	set := eventually(t, o, "a source for each secondary",
		func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 4 })
	for _, m := range set.Members {
		if !m.Asked || !m.Healthy || m.Votes != 1 || m.Version == "" || m.Applied.IsZero() || m.Since.IsZero() {
			t.Errorf("member %+v", m)
		}
		if len(m.Ping) != 4 {
			t.Errorf("%s has pings %v", m.Host, m.Ping)
		}
		if m.State == StateSecondary && (m.LagApplied < 0 || m.LagDurable < m.LagApplied || m.LagApplied > 15) {
			t.Errorf("%s is behind %v and %v", m.Host, m.LagApplied, m.LagDurable)
		}
	}
	if lines := Lines(set, set.Tree()); len(lines) != 5 || lines[0].Host != set.Primary().Host || lines[1].Depth != 1 {
		t.Errorf("tree %+v", lines)
	}
	var dot bytes.Buffer
	if err := WriteDOT(&dot, set, set.Tree()); err != nil || strings.Count(dot.String(), "->") != 4 {
		t.Errorf("%v\n%s", err, dot.String())
	}
}

// A lean observer asks for the processor time once at most, and forgets nothing.
func TestObserveLean(t *testing.T) {
	o := open(t, labSet(t))
	o.Lean()
	for range 2 {
		if _, err := o.Observe(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	set, err := o.Observe(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range set.Members {
		if !m.Asked || m.CPU >= 0 || m.Version == "" || m.Override == nil {
			t.Errorf("member %+v", m)
		}
	}
}

// What is known of a server holds until it is started again.
func TestFacts(t *testing.T) {
	began := time.Unix(1000, 0)
	f := facts{uptime: 60, started: began}
	for _, c := range []struct {
		uptime  int64
		started time.Time
		same    bool
	}{
		{60, began, true}, {61, began.Add(time.Second), true}, {61, began.Add(-time.Second), true},
		{59, began, false}, {61, began.Add(time.Minute), false}, {3600, began.Add(3 * time.Second), false},
	} {
		if f.of(c.uptime, c.started) != c.same {
			t.Errorf("%+v", c)
		}
	}
	if (facts{}).of(0, time.Time{}) {
		t.Error("nothing is known of it")
	}
}

// A circle, which a set can have for a moment, is drawn and ends.
func TestLinesOfACircle(t *testing.T) {
	set := &Set{Members: []Member{{Host: "p", State: StatePrimary, Healthy: true}, {Host: "a"}, {Host: "b"}, {Host: "c"},
		{Host: "d"}}}
	var got []string
	for _, l := range Lines(set, map[string]string{"a": "b", "b": "a", "c": "p", "d": "gone"}) {
		got = append(got, l.Prefix+l.Host)
	}
	if s := strings.Join(got, "|"); s != "p|└─ c|d|a|└─ b" {
		t.Error(s)
	}
}
