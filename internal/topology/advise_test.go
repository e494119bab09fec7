package topology

import (
	"math"
	"strings"
	"testing"
)

// The rule gives what the publication gives in its sizes, but for a plan where
// that is clearly better.
func TestAdvise(t *testing.T) {
	p := FitPublished()
	for _, c := range []struct {
		members                int
		concern                string
		native, choice, leaves string
	}{
		{3, "1", WayEither, WayEither, "either"},
		{3, Majority, WayEither, WayEither, "either"},
		{5, Majority, WayOff, WayOff, "few members (3)"},
		{7, "1", WayOn, WayOn, "chaining on; measured with 7 members: off against on -20.3 %"},
		{7, Majority, WayOff, WayOff, "weigh throughput (off)"},
		{15, "1", WayOn, WayPlanned, "-46.8 %"},
		{15, Majority, WayOff, WayPlanned, "+6.5 %"},
	} {
		set := Hypothetical(Hypothesis{Members: c.members, Zones: 1})
		a, err := Advise(set, c.concern, p)
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%d members, %s: %s: %s", a.Members, a.WriteConcern, a.Choice, a.Why)
		if a.Native != c.native || a.Choice != c.choice || !strings.Contains(a.Published, c.leaves) || a.Zones != 1 ||
			a.Voters != min(c.members, maxVoters) {
			t.Errorf("%+v, want %+v", a, c)
		}
		// Whether chaining is on at the moment does not matter.
		set.Chaining = false
		if b, err := Advise(set, c.concern, p); err != nil || b.Choice != a.Choice || b.Why != a.Why {
			t.Errorf("with chaining off: %+v, %v", b, err)
		}
	}
	zones := Hypothetical(Hypothesis{Members: 9, Zones: 3, ZoneMillis: 20, SpreadVoters: true})
	if a, err := Advise(zones, Majority, p); err != nil || a.Zones != 3 {
		t.Errorf("%+v, %v", a, err)
	}
	if _, err := Advise(zones, "2", p); err == nil {
		t.Error("there is advice for w:2")
	}
	zones.Members[0].State = StateSecondary
	if _, err := Advise(zones, "1", p); err == nil {
		t.Error("there is advice for a set without a primary")
	}
	broken := Hypothetical(Hypothesis{Members: 3, Zones: 1})
	broken.Members[1].Healthy, broken.Members[2].Healthy = false, false
	if _, err := Advise(broken, Majority, p); err == nil {
		t.Error("there is advice for a set that has no majority")
	}
}

// Whoever switches chaining on is told what the members will choose then.
func TestCheckChainingOn(t *testing.T) {
	p := FitPublished()
	set := Hypothetical(Hypothesis{Members: 15, Zones: 1})
	set.Chaining = false
	for host, source := range DirectTree(set) {
		set.Member(host).Source = source
	}
	var said string
	for _, f := range CheckChaining(set, true, p) {
		said += f.What + "\n"
	}
	off, on := Predict(set, DirectTree(set), p), PredictAutomatic(set.chained(), p)
	if gain := relative(on.W1, off.W1); math.Abs(gain) < 0.2 || strings.Contains(said, "w:1 +0 %") {
		t.Error(said)
	}
}
