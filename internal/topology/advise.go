package topology

import (
	"cmp"
	"errors"
	"fmt"
	"strconv"
)

// The arrangements of a set that advice chooses from.
const (
	WayOff     = "chaining off"
	WayOn      = "chaining on"
	WayEither  = "either" // chaining on or off
	WayPlanned = "planned"
)

// worthIt is the gain for which an arrangement is chosen: less is within the errors of the model.
const worthIt = 0.1

// Advice is how to arrange a set for the write concern of most of its writes.
type Advice struct {
	Members      int       `json:"members"`
	Voters       int       `json:"voters"`
	Zones        int       `json:"zones"`
	Chaining     bool      `json:"chaining"`     // as the set has it now
	WriteConcern string    `json:"writeConcern"` // "1" or "majority"
	Choice       string    `json:"choice"`       // one of the arrangements
	Native       string    `json:"native"`       // the best one without a plan
	Why          string    `json:"why"`
	Published    string    `json:"published"` // the publication's own advice, which knows no plans
	Outcomes     []Outcome `json:"outcomes"`  // off, on and planned
}

// Advise chooses by the model for write concern "1" or "majority": the faster of chaining off and on, or either. It
// chooses a plan that is clearly faster than both.
func Advise(set *Set, concern string, p Params) (*Advice, error) {
	if concern != "1" && concern != Majority {
		return nil, fmt.Errorf("cannot advise on write concern %q; use 1 or %s", concern, Majority)
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
		return nil, errors.New("cannot advise: too few voters are up for a majority")
	}
	a := &Advice{Members: len(set.Members), Voters: votersOf(set), Zones: zonesOf(set), Chaining: set.Chaining,
		WriteConcern: concern, Published: publishedAdvice(len(set.Members), concern), Outcomes: []Outcome{off, on, planned}}
	a.choose(off.Prediction, on.Prediction, planned.Prediction)
	return a, nil
}

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
	a.Why = fmt.Sprintf("off against on %+.0f %%, with the primary's CPU at %.0f and %.0f %%; planned against the better "+
		"of both %+.0f %%, at %.0f %%; less than %.0f %% counts as equal", 100*gain, 100*offCPU, 100*onCPU,
		100*relative(plannedRate, best), 100*plannedCPU, 100*worthIt)
}

func publishedAdvice(members int, concern string) string {
	const publishedFew, publishedMany = 3, 7 // members, as the publication calls them
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
	if off, on, ok := PublishedPair(members, concern == Majority); ok {
		many += fmt.Sprintf("; measured with %d members: off against on %+.1f %%", members,
			100*relative(off.OpsPerSecond, on.OpsPerSecond))
	}
	return many
}

func (s *Set) chained() *Set {
	c := *s
	c.Chaining = true
	return &c
}

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

// maxVoters and maxMembers are limits of the server.
const (
	maxVoters  = 7
	maxMembers = 50
)

// Hypothesis describes a set that need not exist.
type Hypothesis struct {
	Members    int
	Voters     int     // at most 7; 0 is as many as may vote
	Zones      int     // at least 1; the primary is in the first
	ZoneMillis float64 // round trip between neighbouring zones
	// SpreadVoters puts voters into all zones in turn; otherwise the first zone has a majority of them.
	SpreadVoters bool
}

// Check returns an error if there can be no such set.
func (h Hypothesis) Check() error {
	switch {
	case h.Members < 3 || h.Members > maxMembers:
		return fmt.Errorf("%d members are not possible; use 3 to %d", h.Members, maxMembers)
	case h.Voters < 0 || h.Voters > min(maxVoters, h.Members):
		return fmt.Errorf("%d voters are not possible; use 1 to %d", h.Voters, min(maxVoters, h.Members))
	case h.Zones < 1 || h.Zones > 3:
		return fmt.Errorf("%d zones are not possible; use 1 to 3", h.Zones)
	case h.ZoneMillis < 0:
		return errors.New("a round trip cannot be negative")
	}
	return nil
}

// Hypothetical makes a healthy set.
func Hypothetical(h Hypothesis) *Set {
	voters := cmp.Or(h.Voters, min(maxVoters, h.Members))
	set := &Set{Name: "hypothetical", Chaining: true}
	zones := make([]int, h.Members)
	home := voters/2 + 1
	for i := range h.Members {
		zones[i] = i % h.Zones
		if i < home && !h.SpreadVoters {
			zones[i] = 0
		}
		m := Member{ID: i, Host: "m" + strconv.Itoa(i), State: StateSecondary, Healthy: true, CPU: -1,
			Tags: map[string]string{"zone": strconv.Itoa(zones[i] + 1)}, Ping: map[string]float64{}}
		if i < voters {
			m.Votes, m.Priority = 1, 1
		}
		set.Members = append(set.Members, m)
	}
	set.Members[0].State = StatePrimary
	for i := range set.Members {
		for j := range i {
			set.Members[i].Ping[set.Members[j].Host] = h.ZoneMillis * float64(max(zones[i]-zones[j], zones[j]-zones[i]))
		}
	}
	return set
}

// Outcome is an arrangement of a set with its prediction.
type Outcome struct {
	Name       string     `json:"name"`
	Prediction Prediction `json:"prediction"`
	Plan       *Plan      `json:"plan,omitempty"` // absent for what needs no plan
}

// Compare predicts chaining off, chaining on, and the plan of each policy. If o names no write concern, it adds
// the balanced plan for w:1.
func Compare(set *Set, o PlanOptions, p Params) ([]Outcome, error) {
	out := []Outcome{
		{Name: "chaining off", Prediction: Predict(set, DirectTree(set), p)},
		{Name: "chaining on", Prediction: PredictAutomatic(set, p)},
	}
	const w1 = "balanced for w:1"
	for _, name := range []string{string(PolicyBalanced), string(PolicyLatency), string(PolicyFanOut), w1} {
		if o.Policy = Policy(name); name == w1 {
			if o.WriteConcern != "" {
				break
			}
			o.Policy, o.WriteConcern = PolicyBalanced, "1"
		}
		plan, err := MakePlan(set, o)
		if err != nil {
			return nil, err
		}
		out = append(out, Outcome{name, Predict(set, plan.Tree(), p), plan})
	}
	return out, nil
}
