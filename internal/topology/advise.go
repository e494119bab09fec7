package topology

import (
	"errors"
	"fmt"
)

// The ways to arrange a set that advice chooses from.
const (
	WayOff     = "chaining off"
	WayOn      = "chaining on"
	WayEither  = "either" // chaining on or off
	WayPlanned = "planned"
)

// worthIt is what a way has to gain to be chosen: less is within the errors of
// the model, and a plan needs somebody who holds it.
const worthIt = 0.1

// The sizes that the publication calls few and many members.
const (
	publishedFew  = 3
	publishedMany = 7
)

// Advice says how to arrange a set for the write concern of most of its writes.
type Advice struct {
	Members      int    `json:"members"`
	Voters       int    `json:"voters"`
	Zones        int    `json:"zones"`
	Chaining     bool   `json:"chaining"`     // as the set has it now
	WriteConcern string `json:"writeConcern"` // "1" or "majority"
	// Choice is one of the ways, and Native the one without a plan.
	Choice string `json:"choice"`
	Native string `json:"native"`
	Why    string `json:"why"`
	// Published is what the publication says of such sets, which knows no plans.
	Published string    `json:"published"`
	Outcomes  []Outcome `json:"outcomes"` // off, on and planned
}

// Advise applies a rule to what the model predicts: of chaining off and on the
// faster is chosen, or either where they are nearly alike, and a plan where it
// is clearly faster than both. The concern is "1" or "majority".
func Advise(set *Set, concern string, p Params) (*Advice, error) {
	if concern != "1" && concern != Majority {
		return nil, fmt.Errorf("there is no advice for write concern %q; use 1 or %s", concern, Majority)
	}
	free := set.chained()
	plan, err := MakePlan(free, PlanOptions{WriteConcern: concern})
	if err != nil {
		return nil, err
	}
	off := Outcome{Name: WayOff, Prediction: Predict(set, DirectTree(set), p)}
	on := Outcome{Name: WayOn, Prediction: PredictAutomatic(free, p)}
	planned := Outcome{Name: WayPlanned, Prediction: Predict(free, plan.Tree(), p), Plan: plan}
	if rate, _ := off.Prediction.For(concern); rate == 0 {
		return nil, errors.New("too few voters are up for a majority, so there is nothing to compare")
	}
	a := &Advice{Members: len(set.Members), Voters: votersOf(set), Zones: zonesOf(set), Chaining: set.Chaining, WriteConcern: concern,
		Published: publishedAdvice(len(set.Members), concern), Outcomes: []Outcome{off, on, planned}}
	a.choose(off.Prediction, on.Prediction, planned.Prediction)
	return a, nil
}

// choose applies the rule.
func (a *Advice) choose(off, on, planned Prediction) {
	offRate, offCPU := off.For(a.WriteConcern)
	onRate, onCPU := on.For(a.WriteConcern)
	plannedRate, plannedCPU := planned.For(a.WriteConcern)
	gain := relative(offRate, onRate)
	best := max(offRate, onRate)
	switch {
	case offRate >= onRate*(1+worthIt):
		a.Native = WayOff
	case onRate >= offRate*(1+worthIt):
		a.Native = WayOn
	default:
		a.Native = WayEither
	}
	a.Choice = a.Native
	if plannedRate >= best*(1+worthIt) {
		a.Choice = WayPlanned
	}
	a.Why = fmt.Sprintf("off against on %+.0f %%, with the primary's CPU at %.0f and %.0f %%; planned against the better of both %+.0f %%, at %.0f %%; less than %.0f %% counts as equal",
		100*gain, 100*offCPU, 100*onCPU, 100*relative(plannedRate, best), 100*plannedCPU, 100*worthIt)
}

// publishedAdvice is what the publication advises, with what it has measured.
func publishedAdvice(members int, concern string) string {
	many := "chaining on"
	if concern == Majority {
		many = "weigh throughput (off) against the primary's load (on)"
	}
	switch {
	case members <= publishedFew:
		many = "few members: either"
	case members < publishedMany:
		many = fmt.Sprintf("few members (%d): either; many (%d and more): %s", publishedFew, publishedMany, many)
	default:
		many = "many members: " + many
	}
	if gain, ok := PublishedOff(members, concern == Majority); ok {
		many += fmt.Sprintf("; measured with %d members: off against on %+.1f %%", members, 100*gain)
	}
	return many
}

// chained is the set as if chaining were on.
func (s *Set) chained() *Set {
	c := *s
	c.Chaining = true
	return &c
}

// zonesOf is over how many zones the members are spread, as their tags say.
func zonesOf(set *Set) int {
	tag := findZoneTag(set)
	if tag == "" {
		return 1
	}
	zones := map[string]bool{}
	for _, m := range set.Members {
		zones[m.Tags[tag]] = true
	}
	return len(zones)
}
