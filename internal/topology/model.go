package topology

import (
	"math"
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
		if m.Votes > 0 && m.holdsData() {
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
	slices.SortFunc(voters, func(a, b way) int { return sign(a.hops*hop + a.rtt - b.hops*hop - b.rtt) })
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

func sign(f float64) int {
	switch {
	case f < 0:
		return -1
	case f > 0:
		return 1
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
