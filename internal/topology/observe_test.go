package topology

import (
	"bytes"
	"strings"
	"testing"
)

func TestObserve(t *testing.T) {
	c := labSet(t)
	o := open(t, c)
	set := eventually(t, o, "a source for each secondary", func(s *Set) bool { return s.Primary() != nil && len(s.Tree()) == 4 })
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

// A circle, which a set can have for a moment, is drawn and ends.
func TestLinesOfACircle(t *testing.T) {
	set := &Set{Members: []Member{{Host: "p", State: StatePrimary, Healthy: true}, {Host: "a"}, {Host: "b"}, {Host: "c"}, {Host: "d"}}}
	var got []string
	for _, l := range Lines(set, map[string]string{"a": "b", "b": "a", "c": "p", "d": "gone"}) {
		got = append(got, l.Prefix+l.Host)
	}
	if s := strings.Join(got, "|"); s != "p|└─ c|d|a|└─ b" {
		t.Error(s)
	}
}
