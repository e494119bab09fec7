package topology

import (
	"math/rand/v2"
	"slices"
)

const (
	// autoSamples is how many trees stand for the ones that members choose.
	autoSamples = 2001
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
// there before it, at random; from this follow the mean number of members under
// the primary and the median way to the majority. The trees are drawn with a
// fixed seed, so that the answer is always the same.
func PredictAutomatic(set *Set, p Params) Prediction { return p.predict(automatic(set, p.HopMillis)) }

// AutomaticTree is one of the trees that members choose themselves: of those
// drawn, the one at a share from 0 to 1 in their order, the slowest first, as
// the model predicts them for writes that wait for a majority, or do not; 0.5 is the median one. Shares
// that are spread evenly stand for all of them better than as many draws.
func AutomaticTree(set *Set, waits bool, share float64, p Params) map[string]string {
	type drawn struct {
		tree map[string]string
		rate float64
	}
	r := rand.New(rand.NewPCG(automaticSeed, automaticSeed))
	var all []drawn
	for range autoSamples {
		tree := randomTree(set, r)
		out := Predict(set, tree, p)
		rate := out.W1
		if waits {
			rate = out.Majority
		}
		all = append(all, drawn{tree, rate})
	}
	slices.SortStableFunc(all, func(a, b drawn) int { return sign(a.rate - b.rate) })
	return all[min(max(int(share*autoSamples), 0), autoSamples-1)].tree
}

func automatic(set *Set, hop float64) shape {
	r := rand.New(rand.NewPCG(automaticSeed, automaticSeed))
	var sum shape
	var ways []shape
	for range autoSamples {
		s := shapeOf(set, randomTree(set, r), hop)
		sum.direct += s.direct
		sum.depth += s.depth
		sum.fanOut += s.fanOut
		ways = append(ways, s)
	}
	slices.SortFunc(ways, func(a, b shape) int {
		if a.impossible != b.impossible {
			return boolRank(a.impossible) - boolRank(b.impossible)
		}
		return sign(a.hops*hop + a.rtt - b.hops*hop - b.rtt)
	})
	median := ways[len(ways)/2]
	return shape{direct: sum.direct / autoSamples, depth: sum.depth / autoSamples, fanOut: sum.fanOut / autoSamples,
		hops: median.hops, rtt: median.rtt, impossible: median.impossible}
}

// randomTree lets the members join in any order.
func randomTree(set *Set, r *rand.Rand) map[string]string {
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
		if src := chooses(set, m, joined, r); src != nil {
			tree[m.Host] = src.Host
			joined = append(joined, m)
		}
	}
	return tree
}

// chooses picks at random among the nearest members that the server allows.
func chooses(set *Set, m *Member, joined []*Member, r *rand.Rand) *Member {
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
	return nearest[r.IntN(len(nearest))]
}
