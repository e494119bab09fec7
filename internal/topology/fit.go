package topology

import (
	"errors"
	"fmt"
	"math"
)

const (
	// The published measurements were made on machines of four cores, whose
	// primary used 90 to 94 % of them when it was the bottleneck.
	publishedCores   = 4
	publishedCeiling = 0.93
	// assumedThreads is not published. The table fixes only how the hop relates
	// to it, so that a network's round trip weighs less with more clients.
	assumedThreads = 32
	// loadWeight is what a published share of the processors counts for against
	// a throughput. Only ranges were published: which of their ends belongs to
	// which size is a guess, so that they settle what throughput leaves open.
	loadWeight = 0.3
	// applyShare is what applying a write costs a secondary, of what writing it
	// costs the primary, and wakeShare what a write costs the primary that waits
	// for a majority alone. They are not published: millrace bench topology has
	// measured 57 to 71 µs for secondaries that nobody fetches from, and 600 to
	// 900 µs more for writes of majority concern where there were 250 to 500 a
	// second, where the primary took about 190 (mongod 6.0.5).
	applyShare = 0.3
	wakeShare  = 3.7
)

// Cell is what was published of one set.
type Cell struct {
	Members  int  `json:"members"`
	Majority bool `json:"majority"` // or w:1
	Chaining bool `json:"chaining"`
	// OpsPerSecond was measured, Model is predicted, Error relative: 0.1 is a
	// prediction ten per cent too high.
	OpsPerSecond float64 `json:"opsPerSecond"`
	Model        float64 `json:"model"`
	Error        float64 `json:"error"`
	// CPU is the published share of the primary's processors, 0 where nothing
	// tells it, ModelCPU the predicted one.
	CPU      float64 `json:"cpu,omitempty"`
	ModelCPU float64 `json:"modelCpu"`
}

// Published is the table that the model is fitted to: writes per second of
// YCSB on sets of 3, 7 and 15 members (7 of which vote), chaining on and off.
// Of the processors only ranges were published. Under majority they are 56 to
// 65 % with chaining on and 65 to 94 % with it off: a set of three is nearly
// the same in both, so the one end that they share is taken for its share, and
// the others for the sets of 15. At w:1, 90 to 94 %, the primary was full.
func Published() []Cell {
	const (
		w1       = false
		majority = true
		on       = true
		off      = false
	)
	cell := func(members int, concern, chaining bool, rate, cpu float64) Cell {
		return Cell{Members: members, Majority: concern, Chaining: chaining, OpsPerSecond: rate, CPU: cpu}
	}
	return []Cell{
		cell(3, majority, on, 5277, 0.65), cell(3, majority, off, 5241, 0.65), cell(3, w1, on, 15075, 0), cell(3, w1, off, 14785, 0),
		cell(7, majority, on, 3005, 0), cell(7, majority, off, 4312, 0), cell(7, w1, on, 14414, 0), cell(7, w1, off, 11492, 0),
		cell(15, majority, on, 2932, 0.56), cell(15, majority, off, 3123, 0.94), cell(15, w1, on, 14093, 0), cell(15, w1, off, 7500, 0),
	}
}

// FitPublished fits the parameters to the published table. It is computed
// rather than written down: nothing but the table and the model decide.
func FitPublished() (Params, []Cell, error) {
	cells := Published()
	shapes := cellShapes(cells)
	p, err := fit(cells, shapes)
	if err != nil {
		return p, nil, err
	}
	for i := range cells {
		c := &cells[i]
		c.Model, c.ModelCPU = p.cell(*c, shapes[i])
		c.Error = relative(c.Model, c.OpsPerSecond)
	}
	return p, cells, nil
}

// cell predicts the rate of one cell and the share of the primary's processors.
func (p Params) cell(c Cell, s shape) (rate, cpu float64) {
	out := p.predict(s)
	if c.Majority {
		return out.Majority, out.CPUMajority
	}
	return out.W1, out.CPUW1
}

// cellShapes are the trees of cells: everyone under the primary, or as members
// choose. The published network is one data centre.
func cellShapes(cells []Cell) []shape {
	type key struct {
		members  int
		chaining bool
	}
	known := map[key]shape{}
	var out []shape
	for _, c := range cells {
		k := key{c.Members, c.Chaining}
		s, ok := known[k]
		if !ok {
			set := Hypothetical(Hypothesis{Members: c.Members, Zones: 1})
			if c.Chaining {
				s = automatic(set, 1)
			} else {
				s = shapeOf(set, DirectTree(set), 1)
			}
			known[k] = s
		}
		out = append(out, s)
	}
	return out
}

// unknowns are the parameters that are fitted: write, serve, majority and hop.
const unknowns = 4

// busy is what a cell takes of the primary's processors, in how many of them
// are busy, as factors of the unknowns.
func (c Cell) busy(s shape) [unknowns]float64 {
	each := c.OpsPerSecond / 1e6
	if c.Majority {
		return [unknowns]float64{each, each * s.direct, publishedCores, 0}
	}
	return [unknowns]float64{each, each * s.direct, 0, 0}
}

// normal are the normal equations of a least-squares fit.
type normal [unknowns][unknowns + 1]float64

// add adds an equation whose right side is 1.
func (n *normal) add(row [unknowns]float64, weight float64) {
	for i := range row {
		for j := range row {
			n[i][j] += weight * weight * row[i] * row[j]
		}
		n[i][unknowns] += weight * weight * row[i]
	}
}

// fit finds the parameters whose predictions deviate least from the cells, and
// from what these are known to have loaded the primary with. Of the time that
// clients have, they spend a part at the primary and the rest on hops, and both
// parts are linear in the parameters; so is the load of the primary. At a rate X
//
//	1           = (X·(write + serve·direct) [+ cores·majority]) / full [+ X·hop·hops / clients]
//	cores·share =  X·(write + serve·direct)  + cores·majority
//
// so that the least squares of the deviations have one solution.
func fit(cells []Cell, shapes []shape) (Params, error) {
	const full = publishedCores * publishedCeiling
	var n normal
	for i, c := range cells {
		busy := c.busy(shapes[i])
		row := busy
		for j := range row {
			row[j] /= full
		}
		if c.Majority {
			row[unknowns-1] = shapes[i].hops * c.OpsPerSecond / 1e6
		}
		n.add(row, 1)
		if c.CPU == 0 {
			continue
		}
		for j := range busy {
			busy[j] /= publishedCores * c.CPU
		}
		n.add(busy, loadWeight)
	}
	x, err := solve(n)
	if err != nil {
		return Params{}, err
	}
	p := Params{Cores: publishedCores, Ceiling: publishedCeiling, Threads: assumedThreads, WriteCPU: x[0], ServeCPU: x[1], MajorityShare: x[2],
		HopMillis: x[3] * assumedThreads / 1000, ApplyCPU: applyShare * x[0], WakeCPU: wakeShare * x[0]}
	for _, v := range x {
		if v < 0 {
			return p, fmt.Errorf("the cells lead to a cost below nothing: %+v", p)
		}
	}
	return p, nil
}

// solve is Gaussian elimination with pivots.
func solve(a normal) (x [unknowns]float64, err error) {
	for i := range unknowns {
		pivot := i
		for r := i + 1; r < unknowns; r++ {
			if math.Abs(a[r][i]) > math.Abs(a[pivot][i]) {
				pivot = r
			}
		}
		a[i], a[pivot] = a[pivot], a[i]
		if math.Abs(a[i][i]) < 1e-12 {
			return x, errors.New("the cells do not determine the parameters")
		}
		for r := range unknowns {
			if r == i {
				continue
			}
			f := a[r][i] / a[i][i]
			for c := i; c <= unknowns; c++ {
				a[r][c] -= f * a[i][c]
			}
		}
	}
	for i := range unknowns {
		x[i] = a[i][unknowns] / a[i][i]
	}
	return x, nil
}
