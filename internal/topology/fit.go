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
)

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
	p, err := fit(cells, shapes)
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

// unknowns are the parameters that are fitted: write, serve, report and hop.
const unknowns = 4

// fit finds the parameters whose predictions deviate least from the cells. The
// time of one write, one over its rate, is linear in the parameters:
//
//	1/X = write + serve·d [+ report·d + hop·hops for majority]
//
// so that the least squares of its relative deviations have one solution.
func fit(cells []Cell, shapes []shape) (Params, error) {
	var normal [unknowns][unknowns + 1]float64
	for n, c := range cells {
		s := shapes[n]
		row := [unknowns]float64{1, s.direct, 0, 0}
		if c.Majority {
			row[2], row[3] = s.direct, s.hops
		}
		for i := range row {
			row[i] *= c.OpsPerSecond / 1e6 // microseconds, relative to what was measured
		}
		for i := range row {
			for j := range row {
				normal[i][j] += row[i] * row[j]
			}
			normal[i][unknowns] += row[i]
		}
	}
	x, err := solve(normal)
	if err != nil {
		return Params{}, err
	}
	full := publishedCores * publishedCeiling
	p := Params{Cores: publishedCores, Ceiling: publishedCeiling, Threads: assumedThreads,
		WriteCPU: x[0] * full, ServeCPU: x[1] * full, ReportCPU: x[2] * full, HopMillis: x[3] * assumedThreads / 1000}
	for _, v := range x {
		if v < 0 {
			return p, fmt.Errorf("the cells lead to a cost below nothing: %+v", p)
		}
	}
	return p, nil
}

// solve is Gaussian elimination with pivots.
func solve(a [unknowns][unknowns + 1]float64) (x [unknowns]float64, err error) {
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
