package topology

import (
	"errors"
	"fmt"
	"strconv"
)

// maxVoters and maxMembers are limits of the server.
const (
	maxVoters  = 7
	maxMembers = 50
)

// Hypothesis describes a set that need not exist.
type Hypothesis struct {
	Members int
	// Voters is how many vote, at most 7; 0 is as many as may.
	Voters int
	// Zones, at least 1, over which the members are spread; the primary is in
	// the first. ZoneMillis is the round trip between neighbouring zones.
	Zones      int
	ZoneMillis float64
	// SpreadVoters puts voters into all zones in turn; otherwise the first zone
	// has a majority of them.
	SpreadVoters bool
}

// Check says why there cannot be such a set.
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
	voters := h.Voters
	if voters == 0 {
		voters = min(maxVoters, h.Members)
	}
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

// Outcome is one way to arrange a set, with what is expected of it.
type Outcome struct {
	Name       string     `json:"name"`
	Prediction Prediction `json:"prediction"`
	Plan       *Plan      `json:"plan,omitempty"` // absent for what needs no plan
}

// Compare predicts chaining off, chaining on, and the plan of each policy.
// What o says besides its policy holds for all plans. If it names no write
// concern, there is also the balanced plan for writes that wait for nobody.
func Compare(set *Set, o PlanOptions, p Params) ([]Outcome, error) {
	out := []Outcome{
		{Name: "chaining off", Prediction: Predict(set, DirectTree(set), p)},
		{Name: "chaining on", Prediction: PredictAutomatic(set, p)},
	}
	for _, policy := range []Policy{PolicyBalanced, PolicyLatency, PolicyFanOut} {
		o.Policy = policy
		plan, err := MakePlan(set, o)
		if err != nil {
			return nil, err
		}
		out = append(out, Outcome{string(policy), Predict(set, plan.Tree(), p), plan})
	}
	if o.WriteConcern == "" {
		o.Policy, o.WriteConcern = PolicyBalanced, "1"
		plan, err := MakePlan(set, o)
		if err != nil {
			return nil, err
		}
		out = append(out, Outcome{"balanced for w:1", Predict(set, plan.Tree(), p), plan})
	}
	return out, nil
}
