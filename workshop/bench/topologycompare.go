package bench

import (
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/topology"
)

// Contenders: the ways that MongoDB itself offers, and the plan for all concerns.
const (
	chainingOff = "chaining off"
	chainingOn  = "chaining on"
	treePlanned = "planned"
)

// OffOn compares chaining off with chaining on in one case. Gains are relative:
// 0.1 says that off was ten per cent faster.
type OffOn struct {
	Members       int     `json:"members"`
	WriteConcern  string  `json:"writeConcern"`
	LinkRTTMillis float64 `json:"linkRttMillis"`
	// ClientsPerCore is how many clients there were for each of the primary's
	// processors, or its share of one.
	ClientsPerCore float64 `json:"clientsPerCore"`
	// Gain is measured, round by round, Model predicted for as many clients and
	// processors and the round trip that there were here.
	Gain  Stat    `json:"gain"`
	Model float64 `json:"model"`
	// Published is absent where nothing was published of such a set, and so are
	// the shares of the primary's processors.
	Published *PublishedOffOn `json:"published,omitempty"`
}

// PublishedOffOn is what was published of a set.
type PublishedOffOn struct {
	Gain   float64 `json:"gain"`
	OffCPU float64 `json:"offCpu"`
	OnCPU  float64 `json:"onCpu"`
}

// compared is the comparison of a case whose rounds are complete.
func (f *forest) compared(c *Case, concern string) *OffOn {
	set := topology.Hypothetical(topology.Hypothesis{Members: f.n, Zones: 1})
	off, _ := topology.Predict(set, topology.DirectTree(set), f.params).For(concern)
	on, _ := topology.PredictAutomatic(set, f.params).For(concern)
	out := &OffOn{Members: f.n, WriteConcern: concern, LinkRTTMillis: millis(f.rtt), ClientsPerCore: f.params.Threads / f.params.Cores,
		Model: off/on - 1, Published: publishedOffOn(f.n, concern)}
	var gains []float64
	a, b := c.contender(chainingOff), c.contender(chainingOn)
	for i := range min(len(a.Rounds), len(b.Rounds)) {
		gains = append(gains, per(a.Rounds[i].rate(c.Count), b.Rounds[i].rate(c.Count))-1)
	}
	out.Gain = StatOf(gains)
	return out
}

func publishedOffOn(members int, concern string) *PublishedOffOn {
	off, on, ok := topology.PublishedPair(members, concern == topology.Majority)
	if !ok {
		return nil
	}
	return &PublishedOffOn{Gain: off.OpsPerSecond/on.OpsPerSecond - 1, OffCPU: off.CPU, OnCPU: on.CPU}
}

// chainingCases are the cases that compare chaining off with on.
type chainingCases []*Case

func (r *Report) chaining() (all chainingCases) {
	for i := range r.Cases {
		if r.Cases[i].OffOn != nil {
			all = append(all, &r.Cases[i])
		}
	}
	return all
}

// table is a line for each set, write concern and round trip, with what was
// published beside it.
func (all chainingCases) table() (header []string, rows [][]string) {
	header = []string{"", "link RTT", "clients per core", "off against on", "rounds", "published", "model, for here",
		"primary CPU off / on", "published", "planned, of the better", "the other plan"}
	for _, c := range all {
		x := c.OffOn
		row := []string{fmt.Sprintf("%d members, w:%s", x.Members, x.WriteConcern), fmt.Sprintf("%g ms", x.LinkRTTMillis), figure(x.ClientsPerCore),
			gainText(x.Gain.Median), gainText(x.Gain.Min) + " to " + gainText(x.Gain.Max), "–", gainText(x.Model),
			fmt.Sprintf("%.0f / %.0f %%", c.contender(chainingOff).Values[primaryCPU].Median, c.contender(chainingOn).Values[primaryCPU].Median), "–", c.contender(treePlanned).ofBetter(), c.otherPlan()}
		if p := x.Published; p != nil {
			row[5], row[8] = gainText(p.Gain), fmt.Sprintf("%.0f / %.0f %%", 100*p.OffCPU, 100*p.OnCPU)
		}
		rows = append(rows, row)
	}
	return header, rows
}

// ofBetter is how a tree compares with the better of off and on.
func (x *Contender) ofBetter() string {
	if len(x.Rounds) == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f (%.2f-%.2f)", x.OfCeiling.Median, x.OfCeiling.Min, x.OfCeiling.Max)
}

// otherPlan is the same of the plan that suits the case's write concern, where
// there is one besides that for all.
func (c *Case) otherPlan() string {
	for i := range c.Contenders {
		if x := &c.Contenders[i]; x.Kind == KindMillrace && x.Name != treePlanned {
			return x.ofBetter()
		}
	}
	return "–"
}

func gainText(gain float64) string { return fmt.Sprintf("%+.1f %%", 100*gain) }

func millis(d time.Duration) float64 { return float64(d) / float64(time.Millisecond) }
