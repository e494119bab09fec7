package topology

import (
	"cmp"
	"math"
	"math/rand/v2"
	"slices"
)

// Params holds the costs behind a prediction. Micros are processor time of the primary for one write.
type Params struct {
	Cores        float64 `json:"cores"`        // of the primary's machine
	Threads      float64 `json:"threads"`      // clients that write at once, each waiting for its write
	ClientMillis float64 `json:"clientMillis"` // round trip between a client and the primary
	WriteCPU     float64 `json:"writeMicros"`  // the write itself
	ServeCPU     float64 `json:"serveMicros"`  // the oplog entry for one member that fetches it
	FollowCPU    float64 `json:"followMicros"` // the cost of one voting member at majority concern
	ApplyCPU     float64 `json:"applyMicros"`  // a secondary's own time to fetch and apply a write at w:1
	// HopMillis is the time for one member to fetch, apply and report a write within one data centre.
	HopMillis float64 `json:"hopMillis"`
	// PrimaryWeight is how often members choose the primary, relative to another member at the same distance.
	PrimaryWeight float64 `json:"primaryWeight"`
}

// Prediction is what a tree is expected to do. Rates are writes per second.
type Prediction struct {
	W1       float64 `json:"w1"`
	Majority float64 `json:"majority"`
	// CPUW1 and CPUMajority are shares of the primary's processors at these rates.
	CPUW1       float64 `json:"cpuW1"`
	CPUMajority float64 `json:"cpuMajority"`
	// CPUInner is the share at w:1 of the secondary with the most members under it. Near 1 it lags.
	CPUInner float64 `json:"cpuInnerW1"`
	// Direct is how many members fetch from the primary: a mean where members choose their sources.
	Direct     float64 `json:"direct"`
	Depth      float64 `json:"depth"`      // of the longest path
	FanOut     float64 `json:"fanOut"`     // most members under one secondary
	WaitMillis float64 `json:"waitMillis"` // for the voter that completes the majority
}

// For returns the rate for a write concern, and the share of the primary's processors that it takes.
func (p Prediction) For(concern string) (rate, cpu float64) {
	if concern == Majority {
		return p.Majority, p.CPUMajority
	}
	return p.W1, p.CPUW1
}

type shape struct {
	direct, depth, fanOut float64
	voters                float64 // whose progress makes a majority
	hops                  float64 // to the voter that completes the majority
	rtt                   float64 // milliseconds of network on its way
	impossible            bool    // no majority can be reached
}

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

// closed solves a closed queueing network. Each client sends a write, which queues for a core of the primary for
// some microseconds, and then waits some milliseconds. Both times are taken as exponential, for which the answer
// is exact: the weight of n clients at the primary follows from that of n-1.
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

// shapeOf measures a tree. hop are the milliseconds of a hop.
func shapeOf(set *Set, tree map[string]string, hop float64) (s shape) {
	primary := set.Primary()
	if primary == nil {
		return shape{impossible: true}
	}
	load := map[string]float64{}
	for _, src := range tree {
		load[src]++
	}
	s.direct = load[primary.Host]
	delete(load, primary.Host)
	for _, n := range load {
		s.fanOut = max(s.fanOut, n)
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
	if s.impossible = len(voters) < need; need <= 0 || s.impossible {
		return s
	}
	slices.SortFunc(voters, func(a, b way) int { return cmp.Compare(a.hops*hop+a.rtt-b.hops*hop-b.rtt, 0) })
	s.hops, s.rtt = voters[need-1].hops, voters[need-1].rtt
	return s
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

// network is the round trip between two members in milliseconds, 0 within a data centre.
func (s *Set) network(a, b *Member) float64 {
	const oneSite = 2 // milliseconds, which the fitted hop includes
	if ms, ok := s.pingBetween(a, b); ok && ms > oneSite {
		return ms
	}
	return 0
}

func relative(got, want float64) float64 {
	if want == 0 {
		return math.Inf(1)
	}
	return got/want - 1
}

const (
	autoSamples   = 1001 // trees that stand for those that members choose
	automaticSeed = 6    // draws them, so that the answer is always the same
)

// DirectTree returns the tree of a set with chaining off.
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

// PredictAutomatic returns what is expected of a set whose members choose their sources: each takes one of the
// nearest that joined before it, at random. The figures are means over trees drawn with a fixed seed.
func PredictAutomatic(set *Set, p Params) Prediction { return p.predict(automatic(set, p)) }

// AutomaticTree returns one of the trees that members may choose, ordered by their predicted rate for a write
// concern: the one at a share from 0 (slowest) to 1.
func AutomaticTree(set *Set, concern string, share float64, p Params) map[string]string {
	type drawn struct {
		tree map[string]string
		rate float64
	}
	r := rand.New(rand.NewPCG(automaticSeed, automaticSeed))
	all := make([]drawn, autoSamples)
	for i := range all {
		all[i].tree = randomTree(set, p.PrimaryWeight, r)
		all[i].rate, _ = Predict(set, all[i].tree, p).For(concern)
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return cmp.Compare(a.rate-b.rate, 0) })
	return all[min(max(int(share*autoSamples), 0), autoSamples-1)].tree
}

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
		if src := chooseSource(set, m, joined, weight, r); src != nil {
			tree[m.Host] = src.Host
			joined = append(joined, m)
		}
	}
	return tree
}

// chooseSource picks one of the nearest members that the server allows. The primary is the first, with its own weight.
func chooseSource(set *Set, m *Member, joined []*Member, weight float64, r *rand.Rand) *Member {
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

const (
	publishedCores   = 4
	publishedClients = 8
	publishedRTT     = 0.103 // milliseconds between the clients and the primary
	publishedVoters  = 7     // at most; the last of them is hidden
)

// applyShare is the cost of applying a write, relative to that of the primary's write. It is not published:
// millrace-bench measured 57 to 71 µs on secondaries without followers, about 190 on the primary (mongod 6.0.5).
const applyShare = 0.3

// Cell is what was published of one set, with the model's prediction. An error of 0.1 is 10 % too high.
type Cell struct {
	Members      int     `json:"members"`
	Majority     bool    `json:"majority"` // or w:1
	Chaining     bool    `json:"chaining"`
	OpsPerSecond float64 `json:"opsPerSecond"` // measured
	Model        float64 `json:"model"`        // predicted
	Error        float64 `json:"error"`
	CPU          float64 `json:"cpu"` // published share of the primary's processors
	ModelCPU     float64 `json:"modelCpu"`
	CPUError     float64 `json:"cpuError"`
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

// Published returns the table that the model is fitted to: writes per second of YCSB with eight threads, and the
// primary's share of its four cores. The sets have up to 7 voters, one of them hidden.
func Published() (cells []Cell) {
	for _, r := range []struct {
		members                int
		majority               bool
		on, onCPU, off, offCPU float64 // with chaining on and off
	}{
		{3, true, 5277, 0.65, 5241, 0.65}, {3, false, 15075, 0.93, 14785, 0.93},
		{7, true, 3005, 0.56, 4312, 0.85}, {7, false, 14414, 0.91, 11492, 0.93},
		{15, true, 2932, 0.58, 3123, 0.91}, {15, false, 14093, 0.90, 7500, 0.94},
	} {
		cells = append(cells,
			Cell{Members: r.members, Majority: r.majority, Chaining: true, OpsPerSecond: r.on, CPU: r.onCPU},
			Cell{Members: r.members, Majority: r.majority, OpsPerSecond: r.off, CPU: r.offCPU})
	}
	return cells
}

// PublishedPair returns the cells of a set with chaining off and on; ok is false without published figures.
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

// FitPublished fits the parameters to the published table, so that only the table and the model decide.
func FitPublished() Params { return publishedShapes().fit(Published()) }

// PublishedFit returns the published table with the model's prediction of each cell, also when fitted without it.
func PublishedFit() []Cell {
	cells, all := Published(), publishedShapes()
	fitted := all.fit(cells)
	for i := range cells {
		c := &cells[i]
		c.Model, c.ModelCPU = all.predict(fitted, *c)
		c.Error, c.CPUError = relative(c.Model, c.OpsPerSecond), relative(c.ModelCPU, c.CPU)
		rate, cpu := all.predict(all.fit(slices.Concat(cells[:i:i], cells[i+1:])), *c)
		c.LeftOutError, c.LeftOutCPUError = relative(rate, c.OpsPerSecond), relative(cpu, c.CPU)
	}
	return cells
}

type publishedSet struct {
	members  int
	chaining bool
	weight   float64
}

type shapes map[publishedSet]shape

// leastWeight ends the weights of the primary that are tried: 1, 0.5 and 0.25. A lower weight fits hardly better.
const leastWeight = 0.25

func publishedShapes() shapes {
	all := shapes{}
	for weight := 1.0; weight >= leastWeight; weight /= 2 {
		for _, members := range []int{3, 7, 15} {
			set := Hypothetical(Hypothesis{Members: members, Zones: 1})
			set.Members[min(members, publishedVoters)-1].Hidden = true
			all[publishedSet{members, false, weight}] = shapeOf(set, DirectTree(set), 1)
			all[publishedSet{members, true, weight}] = automatic(set, Params{HopMillis: 1, PrimaryWeight: weight})
		}
	}
	return all
}

func (s shapes) predict(p Params, c Cell) (rate, cpu float64) {
	return p.predict(s[publishedSet{c.Members, c.Chaining, p.PrimaryWeight}]).For(c.concern())
}

func (s shapes) deviation(p Params, cells []Cell) (sum float64) {
	for _, c := range cells {
		rate, cpu := s.predict(p, c)
		r, u := relative(rate, c.OpsPerSecond), relative(cpu, c.CPU)
		sum += r*r + u*u
	}
	return sum
}

func (s shapes) fit(cells []Cell) (best Params) {
	least := math.Inf(1)
	for weight := 1.0; weight >= leastWeight; weight /= 2 {
		if p, d := s.fitCosts(cells, weight); d < least {
			best, least = p, d
		}
	}
	return best
}

// fitCosts changes one cost at a time while that reduces the deviation, by steps that grow or shrink.
func (s shapes) fitCosts(cells []Cell, weight float64) (p Params, least float64) {
	p = Params{Cores: publishedCores, Threads: publishedClients, ClientMillis: publishedRTT, PrimaryWeight: weight,
		WriteCPU: 200, ServeCPU: 20, FollowCPU: 50, HopMillis: 1}
	costs := []*float64{&p.WriteCPU, &p.ServeCPU, &p.FollowCPU, &p.HopMillis}
	const (
		first = 0.3
		last  = 1e-5
		gain  = 1e-9 // what counts as less
	)
	steps := slices.Repeat([]float64{first}, len(costs))
	least = s.deviation(p, cells)
	for slices.Max(steps) > last {
		for i, cost := range costs {
			was, by := *cost, 0.5
			for _, now := range []float64{was * (1 + steps[i]), was / (1 + steps[i])} {
				*cost = now
				if d := s.deviation(p, cells); d < least*(1-gain) {
					least, by = d, 1.5
					break
				}
				*cost = was
			}
			steps[i] *= by
		}
	}
	p.ApplyCPU = applyShare * p.WriteCPU
	return p, least
}
