package topology

import (
	"math"
	"slices"
)

// Params are the costs behind a prediction. Those in microseconds are processor
// time of the primary for one write; see [FitPublished] for where they come from.
type Params struct {
	// Cores of the primary's machine and the share of them that a server can
	// use before it is full.
	Cores   float64 `json:"cores"`
	Ceiling float64 `json:"ceiling"`
	// Threads is how many clients write at once, each waiting for its write.
	Threads float64 `json:"threads"`
	// WriteCPU is the write itself.
	WriteCPU float64 `json:"writeMicros"`
	// ServeCPU is the oplog entry served to one member that fetches it.
	ServeCPU float64 `json:"serveMicros"`
	// MajorityShare is the share of the primary's processors that goes into
	// following the progress of all members and waking clients while these wait
	// for a majority. It does not grow with the rate, for where more is written,
	// more writes share a report; but it is no more than WakeCPU for each write,
	// what one takes that shares none.
	MajorityShare float64 `json:"majorityShare"`
	WakeCPU       float64 `json:"wakeMicros"`
	// ApplyCPU is a secondary's own time to fetch and apply a write at w:1.
	ApplyCPU float64 `json:"applyMicros"`
	// HopMillis is the time, not the processor's, that a write takes to be
	// fetched, applied and reported on by one member on its way, the network of
	// one data centre included.
	HopMillis float64 `json:"hopMillis"`
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

// shape is what the model needs to know of a tree.
type shape struct {
	direct, depth, fanOut float64
	hops                  float64 // to the voter that completes the majority
	rtt                   float64 // milliseconds of network on its way
	impossible            bool    // no majority is reachable
}

// Predict says what a tree of a set is expected to do.
func Predict(set *Set, tree map[string]string, p Params) Prediction {
	return p.predict(shapeOf(set, tree, p.HopMillis))
}

// predict follows the pessimistic bound of closed queueing networks: each
// write finds the others of all clients before it at the primary, and then
// waits for its majority. Of the two bounds of what majority costs the primary
// the lesser holds, which is the one that leaves the higher rate.
func (p Params) predict(s shape) Prediction {
	full := p.Cores * p.Ceiling
	w1 := p.WriteCPU + p.ServeCPU*s.direct
	wait := s.hops*p.HopMillis + s.rtt
	out := Prediction{Direct: s.direct, Depth: s.depth, FanOut: s.fanOut, WaitMillis: wait}
	out.W1 = 1e6 * full / w1
	out.CPUW1 = p.Ceiling
	out.CPUInner = out.W1 * (p.ApplyCPU + p.ServeCPU*s.fanOut) / 1e6 / p.Cores
	if s.impossible {
		return out
	}
	each := w1/full + 1000*wait/p.Threads
	shared, alone := 1e6*(1-p.MajorityShare/p.Ceiling)/each, 1e6/(each+p.WakeCPU/full)
	out.Majority = max(shared, alone)
	out.CPUMajority = out.Majority*w1/1e6/p.Cores + min(p.MajorityShare, out.Majority*p.WakeCPU/1e6/p.Cores)
	return out
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
