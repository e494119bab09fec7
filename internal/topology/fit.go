package topology

import "slices"

// What was published of the machines, the load and the network.
const (
	publishedCores   = 4
	publishedClients = 8
	publishedRTT     = 0.103 // milliseconds between the clients and the primary
	publishedVoters  = 7     // at most; the last of them is hidden
)

// applyShare is what applying a write costs a secondary, of what writing it
// costs the primary. It is not published: millrace-bench bench topology has measured
// 57 to 71 µs for secondaries that nobody fetches from, where the primary took
// about 190 (mongod 6.0.5).
const applyShare = 0.3

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
	// CPU is the published share of the primary's processors, ModelCPU the
	// predicted one, CPUError relative.
	CPU      float64 `json:"cpu"`
	ModelCPU float64 `json:"modelCpu"`
	CPUError float64 `json:"cpuError"`
	// LeftOutError and LeftOutCPUError are those of a fit to all other cells.
	LeftOutError    float64 `json:"leftOutError"`
	LeftOutCPUError float64 `json:"leftOutCpuError"`
}

func (c Cell) concern() string {
	if c.Majority {
		return Majority
	}
	return "1"
}

// Published is the table that the model is fitted to: writes per second of
// YCSB with eight threads on sets of 3, 7 and 15 members (at most 7 of which
// vote, one of them hidden), and the primary's share of its four cores.
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
		cell(3, majority, on, 5277, 0.65), cell(3, majority, off, 5241, 0.65), cell(3, w1, on, 15075, 0.93), cell(3, w1, off, 14785, 0.93),
		cell(7, majority, on, 3005, 0.56), cell(7, majority, off, 4312, 0.85), cell(7, w1, on, 14414, 0.91), cell(7, w1, off, 11492, 0.93),
		cell(15, majority, on, 2932, 0.58), cell(15, majority, off, 3123, 0.91), cell(15, w1, on, 14093, 0.90), cell(15, w1, off, 7500, 0.94),
	}
}

// PublishedPair returns the two cells of a set with a write concern: chaining off
// and on. ok is false for a set without published figures.
func PublishedPair(members int, majority bool) (off, on Cell, ok bool) {
	for _, c := range Published() {
		switch {
		case c.Members != members || c.Majority != majority:
		case c.Chaining:
			on = c
		default:
			off = c
		}
	}
	return off, on, on.OpsPerSecond > 0
}

// PublishedOff is how much faster chaining off was than on, 0.1 being ten per
// cent; ok is false for a set that nothing was published of.
func PublishedOff(members int, majority bool) (gain float64, ok bool) {
	off, on, ok := PublishedPair(members, majority)
	return relative(off.OpsPerSecond, on.OpsPerSecond), ok
}

// FitPublished fits the parameters to the published table. It is computed
// rather than written down: nothing but the table and the model decide.
func FitPublished() Params {
	return fit(Published(), publishedTrees())
}

// PublishedFit is the published table with what the model makes of each cell,
// also when fitted without it.
func PublishedFit() []Cell {
	cells, all := Published(), publishedTrees()
	fitted := fit(cells, all)
	for i := range cells {
		c := &cells[i]
		c.Model, c.ModelCPU = all.of(fitted).cell(fitted, *c)
		c.Error, c.CPUError = relative(c.Model, c.OpsPerSecond), relative(c.ModelCPU, c.CPU)
		others := fit(slices.Concat(cells[:i:i], cells[i+1:]), all)
		rate, cpu := all.of(others).cell(others, *c)
		c.LeftOutError, c.LeftOutCPUError = relative(rate, c.OpsPerSecond), relative(cpu, c.CPU)
	}
	return cells
}

// grown are the shapes of the published sets, by members, as they are with
// chaining off, and as members choose with one weight of the primary.
type grown struct {
	weight  float64
	off, on map[int]shape
}

// forests are the shapes for each weight that is tried.
type forests []grown

// publishedTrees tries few weights: the trees of the published runs are not
// known, and the figures tell no more than about how often the primary is
// chosen. A weight below a quarter fits hardly better.
func publishedTrees() (all forests) {
	for _, weight := range []float64{1, 0.5, 0.25} {
		g := grown{weight, map[int]shape{}, map[int]shape{}}
		for _, members := range []int{3, 7, 15} {
			set := Hypothetical(Hypothesis{Members: members, Zones: 1})
			set.Members[min(members, publishedVoters)-1].Hidden = true
			g.off[members] = shapeOf(set, DirectTree(set), 1)
			g.on[members] = automatic(set, Params{HopMillis: 1, PrimaryWeight: weight})
		}
		all = append(all, g)
	}
	return all
}

// of are the shapes for the weight that some parameters have.
func (f forests) of(p Params) grown {
	return f[slices.IndexFunc(f, func(g grown) bool { return g.weight == p.PrimaryWeight })]
}

// cell predicts the rate of one cell and the share of the primary's processors.
func (g grown) cell(p Params, c Cell) (rate, cpu float64) {
	s := g.off[c.Members]
	if c.Chaining {
		s = g.on[c.Members]
	}
	return p.predict(s).For(c.concern())
}

// deviation is the sum of the squares of all relative errors.
func (g grown) deviation(p Params, cells []Cell) (sum float64) {
	for _, c := range cells {
		rate, cpu := g.cell(p, c)
		r, u := relative(rate, c.OpsPerSecond), relative(cpu, c.CPU)
		sum += r*r + u*u
	}
	return sum
}

// fit finds the parameters whose predictions deviate least from the cells.
func fit(cells []Cell, all forests) (best Params) {
	for i, g := range all {
		p := g.fit(cells)
		if i == 0 || g.deviation(p, cells) < all.of(best).deviation(best, cells) {
			best = p
		}
	}
	return best
}

// fit changes one cost at a time as long as that brings something, by steps
// that grow where they do and shrink where they do not.
func (g grown) fit(cells []Cell) Params {
	p := Params{Cores: publishedCores, Threads: publishedClients, ClientMillis: publishedRTT, PrimaryWeight: g.weight,
		WriteCPU: 200, ServeCPU: 20, FollowCPU: 50, HopMillis: 1}
	costs := []*float64{&p.WriteCPU, &p.ServeCPU, &p.FollowCPU, &p.HopMillis}
	const (
		first = 0.3
		last  = 1e-5
		gain  = 1e-9 // what counts as less
	)
	steps := slices.Repeat([]float64{first}, len(costs))
	least := g.deviation(p, cells)
	for slices.Max(steps) > last {
		for i, cost := range costs {
			was, by := *cost, 0.5
			for _, now := range []float64{was * (1 + steps[i]), was / (1 + steps[i])} {
				*cost = now
				if d := g.deviation(p, cells); d < least*(1-gain) {
					least, by = d, 1.5
					break
				}
				*cost = was
			}
			steps[i] *= by
		}
	}
	p.ApplyCPU = applyShare * p.WriteCPU
	return p
}
