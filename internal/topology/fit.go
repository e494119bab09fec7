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
	// costs the primary. It is not published: of secondaries that nobody fetches
	// from, millrace bench topology has measured 57 to 71 µs where the primary
	// took about 190 (mongod 6.0.5).
	applyShare = 0.3
)

// Load is a published share of the primary's processors under write concern
// majority.
type Load struct {
	Members  int     `json:"members"`
	Chaining bool    `json:"chaining"`
	Share    float64 `json:"share"`
	Model    float64 `json:"model"`
}

// PublishedLoad are the ends of the published ranges. With chaining off, 65 to
// 94 %, they are taken for the smallest and the largest set; with chaining on,
// 56 to 65 %, all sizes are taken for the middle.
func PublishedLoad() []Load {
	return []Load{
		{Members: 3, Share: 0.65}, {Members: 15, Share: 0.94},
		{Members: 3, Chaining: true, Share: 0.605}, {Members: 7, Chaining: true, Share: 0.605}, {Members: 15, Chaining: true, Share: 0.605},
	}
}

// Cell is one published throughput.
type Cell struct {
	Members  int  `json:"members"`
	Majority bool `json:"majority"` // or w:1
	Chaining bool `json:"chaining"`
	// OpsPerSecond was measured, Model is predicted, Error relative: 0.1 is a
	// prediction ten per cent too high.
	OpsPerSecond float64 `json:"opsPerSecond"`
	Model        float64 `json:"model"`
	Error        float64 `json:"error"`
}

// Published is the table that the model is fitted to: writes per second of
// YCSB on sets of 3, 7 and 15 members (7 of which vote), chaining on and off.
func Published() []Cell {
	return []Cell{
		{Members: 3, Majority: true, Chaining: true, OpsPerSecond: 5277},
		{Members: 3, Majority: true, Chaining: false, OpsPerSecond: 5241},
		{Members: 3, Majority: false, Chaining: true, OpsPerSecond: 15075},
		{Members: 3, Majority: false, Chaining: false, OpsPerSecond: 14785},
		{Members: 7, Majority: true, Chaining: true, OpsPerSecond: 3005},
		{Members: 7, Majority: true, Chaining: false, OpsPerSecond: 4312},
		{Members: 7, Majority: false, Chaining: true, OpsPerSecond: 14414},
		{Members: 7, Majority: false, Chaining: false, OpsPerSecond: 11492},
		{Members: 15, Majority: true, Chaining: true, OpsPerSecond: 2932},
		{Members: 15, Majority: true, Chaining: false, OpsPerSecond: 3123},
		{Members: 15, Majority: false, Chaining: true, OpsPerSecond: 14093},
		{Members: 15, Majority: false, Chaining: false, OpsPerSecond: 7500},
	}
}

// FitPublished fits the parameters to the published table. It is computed
// rather than written down: nothing but the table and the model decide.
func FitPublished() (Params, []Cell, error) {
	cells := Published()
	shapes := cellShapes(cells)
	p, err := fit(cells, shapes, PublishedLoad())
	if err != nil {
		return p, nil, err
	}
	for i := range cells {
		c := &cells[i]
		c.Model = p.cell(*c, shapes[i])
		c.Error = relative(c.Model, c.OpsPerSecond)
	}
	return p, cells, nil
}

// cell predicts one cell.
func (p Params) cell(c Cell, s shape) float64 {
	out := p.predict(s)
	if c.Majority {
		return out.Majority
	}
	return out.W1
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

// unknowns are the parameters that are fitted: write, serve, wake, report and hop.
const unknowns = 5

// costs are what a write takes of the primary's processors, as factors of the
// unknowns.
func costs(s shape, majority bool) [unknowns]float64 {
	if majority {
		return [unknowns]float64{1, s.direct, 1, s.members, 0}
	}
	return [unknowns]float64{1, s.direct, 0, 0, 0}
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
// from what these cells are known to have loaded the primary with. The time of
// one write, one over its rate X, and the processor time that it takes are
// linear in the parameters:
//
//	1/X             = (write + serve·direct [+ wake + report·members]) / cores [+ hop·hops]
//	cores · share/X =  write + serve·direct  + wake + report·members
//
// so that the least squares of the relative deviations have one solution.
func fit(cells []Cell, shapes []shape, loads []Load) (Params, error) {
	const full = publishedCores * publishedCeiling
	var n normal
	for i, c := range cells {
		row := costs(shapes[i], c.Majority)
		for j := range row {
			row[j] *= c.OpsPerSecond / 1e6 / full // relative to what was measured
		}
		if c.Majority {
			row[unknowns-1] = shapes[i].hops * c.OpsPerSecond / 1e6
		}
		n.add(row, 1)
		for _, l := range loads {
			if !c.Majority || l.Members != c.Members || l.Chaining != c.Chaining {
				continue
			}
			row := costs(shapes[i], true)
			for j := range row {
				row[j] *= c.OpsPerSecond / 1e6 / publishedCores / l.Share
			}
			n.add(row, loadWeight)
		}
	}
	x, err := solve(n)
	if err != nil {
		return Params{}, err
	}
	p := Params{Cores: publishedCores, Ceiling: publishedCeiling, Threads: assumedThreads,
		WriteCPU: x[0], ServeCPU: x[1], WakeCPU: x[2], ReportCPU: x[3], HopMillis: x[4] * assumedThreads / 1000, ApplyCPU: applyShare * x[0]}
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
