package topology

import (
	"math/rand/v2"
	"slices"
)

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
	slices.SortStableFunc(all, func(a, b drawn) int { return sign(a.rate - b.rate) })
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
