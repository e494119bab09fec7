package topology

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Params are the costs behind a prediction. Those in microseconds are processor
// time of the primary for one write; see [FitPublished] for where they come from.
type Params struct {
	// Cores of the primary's machine.
	Cores float64 `json:"cores"`
	// Threads is how many clients write at once, each waiting for its write.
	Threads float64 `json:"threads"`
	// ClientMillis is the round trip between a client and the primary.
	ClientMillis float64 `json:"clientMillis"`
	// WriteCPU is the write itself.
	WriteCPU float64 `json:"writeMicros"`
	// ServeCPU is the oplog entry served to one member that fetches it.
	ServeCPU float64 `json:"serveMicros"`
	// FollowCPU is what one voting member costs where clients wait for a
	// majority: its progress is followed, and the clients are woken.
	FollowCPU float64 `json:"followMicros"`
	// ApplyCPU is a secondary's own time to fetch and apply a write at w:1.
	ApplyCPU float64 `json:"applyMicros"`
	// HopMillis is the time, not the processor's, that a write takes to be
	// fetched, applied and reported on by one member on its way, the network of
	// one data centre included.
	HopMillis float64 `json:"hopMillis"`
	// PrimaryWeight is how often members that choose by themselves take the
	// primary, for each time that they take one certain other member as near.
	PrimaryWeight float64 `json:"primaryWeight"`
}

// Prediction is what a tree is expected to do. Rates are writes per second.
type Prediction struct {
	W1       float64 `json:"w1"`
	Majority float64 `json:"majority"`
	// CPUW1 and CPUMajority are the shares of the primary's machine that writes
	// and members take at these rates.
	CPUW1       float64 `json:"cpuW1"`
	CPUMajority float64 `json:"cpuMajority"`
	// CPUInner is the same at w:1 of the secondary with the most members under
	// it, on a machine like the primary's. Near 1 it lags, and they with it.
	CPUInner float64 `json:"cpuInnerW1"`
	// Direct is how many members fetch from the primary: a mean for the tree
	// that members choose themselves.
	Direct float64 `json:"direct"`
	// Depth is the longest way, FanOut the most members under one secondary.
	Depth  float64 `json:"depth"`
	FanOut float64 `json:"fanOut"`
	// WaitMillis is how long the voter that completes the majority takes.
	WaitMillis float64 `json:"waitMillis"`
}

// For is the rate for a write concern, "majority" or another, and the share of
// the primary's machine that it takes.
func (p Prediction) For(concern string) (rate, cpu float64) {
	if concern == Majority {
		return p.Majority, p.CPUMajority
	}
	return p.W1, p.CPUW1
}

// shape is what the model needs to know of a tree.
type shape struct {
	direct, depth, fanOut float64
	voters                float64 // whose progress makes a majority
	hops                  float64 // to the voter that completes the majority
	rtt                   float64 // milliseconds of network on its way
	impossible            bool    // no majority is reachable
}

// Predict says what a tree of a set is expected to do.
func Predict(set *Set, tree map[string]string, p Params) Prediction {
	return p.predict(shapeOf(set, tree, p.HopMillis))
}

func (p Params) predict(s shape) Prediction {
	write := p.WriteCPU + p.ServeCPU*s.direct
	wait := s.hops*p.HopMillis + s.rtt
	out := Prediction{Direct: s.direct, Depth: s.depth, FanOut: s.fanOut, WaitMillis: wait}
	out.W1, out.CPUW1 = p.closed(write, 0)
	out.CPUInner = out.W1 * (p.ApplyCPU + p.ServeCPU*s.fanOut) / 1e6 / p.Cores
	if !s.impossible {
		out.Majority, out.CPUMajority = p.closed(write+p.FollowCPU*s.voters, wait)
	}
	return out
}

// closed is a closed queueing network: each client sends a write, which takes
// one of the primary's cores for so many microseconds or queues for it, and
// after a wait of so many milliseconds it sends the next. It returns writes per
// second and the share of the cores that they take. How long a write takes a
// core and a wait are taken to vary as if at random (exponentially), for which
// the answer is exact: the weight of each number of clients at the primary
// follows from that of one less.
func (p Params) closed(micros, wait float64) (rate, cpu float64) {
	away := 1000 * (p.ClientMillis + wait)
	clients := max(math.Round(p.Threads), 1)
	const huge = 1e100 // only the proportions count
	weight, all, busy := 1.0, 1.0, 0.0
	for at := 1.0; at <= clients; at++ {
		cores := min(at, p.Cores)
		weight *= (clients - at + 1) * micros / (away * cores)
		all += weight
		busy += weight * cores
		if all > huge {
			weight, all, busy = weight/huge, all/huge, busy/huge
		}
	}
	busy /= all
	return 1e6 * busy / micros, busy / p.Cores
}

// shapeOf measures a tree. hop weighs a hop against the network, milliseconds.
func shapeOf(set *Set, tree map[string]string, hop float64) shape {
	var s shape
	primary := set.Primary()
	if primary == nil {
		return shape{impossible: true}
	}
	for host, n := range fanOuts(tree) {
		if host == primary.Host {
			s.direct = float64(n)
		} else {
			s.fanOut = max(s.fanOut, float64(n))
		}
	}
	type way struct{ hops, rtt float64 }
	var voters []way
	for _, m := range set.Members {
		if m.Votes > 0 && !m.Arbiter {
			s.voters++
		}
		if m.Host == primary.Host || m.Arbiter {
			continue
		}
		hops, rtt, ok := pathOf(set, tree, primary, m.Host)
		if !ok {
			continue
		}
		s.depth = max(s.depth, hops)
		if m.Votes > 0 {
			voters = append(voters, way{hops, rtt + float64(m.DelaySeconds)*1000})
		}
	}
	need := majority(set) - primary.Votes
	if need <= 0 {
		return s
	}
	if len(voters) < need {
		s.impossible = true
		return s
	}
	slices.SortFunc(voters, func(a, b way) int { return cmp.Compare(a.hops*hop+a.rtt-b.hops*hop-b.rtt, 0) })
	s.hops, s.rtt = voters[need-1].hops, voters[need-1].rtt
	return s
}

func fanOuts(tree map[string]string) map[string]int {
	n := map[string]int{}
	for _, src := range tree {
		n[src]++
	}
	return n
}

// pathOf follows a member's sources up to the primary.
func pathOf(set *Set, tree map[string]string, primary *Member, host string) (hops, rtt float64, ok bool) {
	for host != primary.Host {
		m, src := set.Member(host), set.Member(tree[host])
		if src == nil || hops > float64(len(set.Members)) {
			return 0, 0, false
		}
		hops, rtt, host = hops+1, rtt+set.network(m, src), src.Host
	}
	return hops, rtt, true
}

// oneSite is the round trip up to which members count as in one data centre:
// servers measure whole milliseconds, and the fitted hop has that much in it.
const oneSite = 2

// network is the round trip between two members in milliseconds, as far as it
// is more than a data centre's own.
func (s *Set) network(a, b *Member) float64 {
	if ms, ok := s.pingBetween(a, b); ok && ms > oneSite {
		return ms
	}
	return 0
}

// relative is how far a figure is from what it should be, 0.1 being ten per
// cent too much.
func relative(got, want float64) float64 {
	if want == 0 {
		return math.Inf(1)
	}
	return got/want - 1
}

const (
	// autoSamples is how many trees stand for the ones that members choose.
	autoSamples = 1001
	// automaticSeed draws them, so that the answer is always the same.
	automaticSeed = 6
)

// DirectTree puts every member that replicates under the primary: the tree of
// a set with chaining off.
func DirectTree(set *Set) map[string]string {
	tree := map[string]string{}
	p := set.Primary()
	for _, m := range set.Members {
		if p != nil && m.Host != p.Host && !m.Arbiter && m.Healthy {
			tree[m.Host] = p.Host
		}
	}
	return tree
}

// PredictAutomatic says what is to be expected of a set whose members choose
// their sources themselves. Each takes one of the nearest of those that were
// there before it, at random; from this follow, as means, the number of members
// under the primary and the way to the majority. The trees are drawn with a
// fixed seed, so that the answer is always the same.
func PredictAutomatic(set *Set, p Params) Prediction { return p.predict(automatic(set, p)) }

// AutomaticTree is one of the trees that members choose themselves: of those
// drawn, the one at a share from 0 to 1 in their order, the slowest first, as
// the model predicts them for a write concern, "1" or "majority"; 0.5 is the
// median one. Shares that are spread evenly stand for all of them better than
// as many draws.
func AutomaticTree(set *Set, concern string, share float64, p Params) map[string]string {
	type drawn struct {
		tree map[string]string
		rate float64
	}
	r := rand.New(rand.NewPCG(automaticSeed, automaticSeed))
	var all []drawn
	for range autoSamples {
		tree := randomTree(set, p.PrimaryWeight, r)
		rate, _ := Predict(set, tree, p).For(concern)
		all = append(all, drawn{tree, rate})
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.rate-b.rate, 0) })
	return all[min(max(int(share*autoSamples), 0), autoSamples-1)].tree
}

// automatic is the mean of the shapes of the trees that members choose. Who can
// be reached does not depend on the tree.
func automatic(set *Set, p Params) (mean shape) {
	r := rand.New(rand.NewPCG(automaticSeed, automaticSeed))
	for range autoSamples {
		s := shapeOf(set, randomTree(set, p.PrimaryWeight, r), p.HopMillis)
		mean.direct += s.direct / autoSamples
		mean.depth += s.depth / autoSamples
		mean.fanOut += s.fanOut / autoSamples
		mean.hops += s.hops / autoSamples
		mean.rtt += s.rtt / autoSamples
		mean.voters, mean.impossible = s.voters, s.impossible
	}
	return mean
}

// randomTree lets the members join in any order.
func randomTree(set *Set, weight float64, r *rand.Rand) map[string]string {
	tree := map[string]string{}
	primary := set.Primary()
	if primary == nil {
		return tree
	}
	joined := []*Member{primary}
	for _, i := range r.Perm(len(set.Members)) {
		m := &set.Members[i]
		if m == primary || m.Arbiter || !m.Healthy {
			continue
		}
		if src := chooses(set, m, joined, weight, r); src != nil {
			tree[m.Host] = src.Host
			joined = append(joined, m)
		}
	}
	return tree
}

// chooses picks at random among the nearest members that the server allows. The
// primary, if it is one of them, is the first, and has a weight of its own.
func chooses(set *Set, m *Member, joined []*Member, weight float64, r *rand.Rand) *Member {
	var nearest []*Member
	best := 0.0
	for _, s := range joined {
		if s.State != StatePrimary && (!s.Inner() || !set.MayChain(m) || m.Votes > 0 && s.Votes == 0) {
			continue
		}
		ms := set.network(m, s)
		if len(nearest) == 0 || ms < best {
			nearest, best = nearest[:0], ms
		}
		if ms == best {
			nearest = append(nearest, s)
		}
	}
	if len(nearest) == 0 {
		return nil
	}
	if nearest[0].State != StatePrimary {
		return nearest[r.IntN(len(nearest))]
	}
	at := r.Float64()*(weight+float64(len(nearest)-1)) - weight
	if at < 0 {
		return nearest[0]
	}
	return nearest[1+min(int(at), len(nearest)-2)]
}

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
		cell(3, majority, on, 5277, 0.65), cell(3, majority, off, 5241, 0.65), cell(3, w1, on, 15075, 0.93),
		cell(3, w1, off, 14785, 0.93),
		cell(7, majority, on, 3005, 0.56), cell(7, majority, off, 4312, 0.85), cell(7, w1, on, 14414, 0.91),
		cell(7, w1, off, 11492, 0.93),
		cell(15, majority, on, 2932, 0.58), cell(15, majority, off, 3123, 0.91), cell(15, w1, on, 14093, 0.90),
		cell(15, w1, off, 7500, 0.94),
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
