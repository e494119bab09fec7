package placing

import (
	"cmp"
	"math"
	"slices"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

const (
	// rangeBytes is the size of a range: a chunk's default.
	rangeBytes = 128 << 20
	// Several ranges a shard: neighbours that are written to together are then on several shards.
	leastRanges, mostRanges = 2, 8
	// mostBound bounds the bytes of a bound. Longer keys are not used.
	mostBound = 1 << 10
)

type bound []bson.RawValue

// point is the key of a sampled document, which represents weight documents.
type point struct {
	key    bound
	weight float64
}

func rangesFor(bytes int64, shards int) int {
	each := math.Ceil(float64(bytes) / rangeBytes / float64(max(shards, 1)))
	return shards * int(min(max(each, leastRanges), mostRanges))
}

// cut chooses up to n-1 bounds between ranges of about equal weights: of the given ones, the source's chunks', if
// they are enough, else also of the sample's keys. Without a sample the chunks count as equal.
func cut(given []bound, sample []point, n int) (cuts []bound, weights []float64) {
	slices.SortFunc(sample, func(a, b point) int { return shardkey.CompareKeys(a.key, b.key) })
	candidates := candidatesOf(given, sample, n)
	below, total := weigh(candidates, sample)
	at, done := -1, 0.0 // the last that was chosen, and what lies below it
	for i := 1; i < n; i++ {
		want := total * float64(i) / float64(n)
		best := -1
		for j := at + 1; j < len(candidates); j++ {
			if below[j] <= done || below[j] >= total {
				continue // nothing would be in the range, or in the last
			}
			if best < 0 || math.Abs(below[j]-want) < math.Abs(below[best]-want) {
				best = j
			}
		}
		if best < 0 || i+1 < n && math.Abs(below[best]-want) > math.Abs(below[best]-total*float64(i+1)/float64(n)) {
			// It is nearer to the end of the next range.
			continue
		}
		cuts, weights = append(cuts, candidates[best]), append(weights, below[best]-done)
		at, done = best, below[best]
	}
	return cuts, append(weights, total-done)
}

func candidatesOf(given []bound, sample []point, n int) []bound {
	all := slices.Clone(given)
	if len(given) < n-1 {
		for _, p := range sample {
			all = append(all, p.key)
		}
	}
	slices.SortFunc(all, func(a, b bound) int { return shardkey.CompareKeys(a, b) })
	return slices.CompactFunc(all, func(a, b bound) bool { return shardkey.CompareKeys(a, b) == 0 })
}

// weigh returns what lies below each bound, and in total.
func weigh(bounds []bound, sample []point) (below []float64, total float64) {
	if len(sample) == 0 {
		for i := range bounds {
			below = append(below, float64(i+1))
		}
		return below, float64(len(bounds) + 1)
	}
	sums := make([]float64, len(sample)+1)
	for i, p := range sample {
		sums[i+1] = sums[i] + p.weight
	}
	for _, b := range bounds {
		i := sort.Search(len(sample), func(i int) bool { return shardkey.CompareKeys(sample[i].key, b) >= 0 })
		below = append(below, sums[i])
	}
	return below, sums[len(sample)]
}

// owners gives ranges to shards that may have them: those with the fewest such shards first, then the heaviest, each
// to the shard with the least. Ranges of about equal weight go to shards in turn.
func owners(weights []float64, of [][]string) []string {
	total := 0.0
	for _, w := range weights {
		total += w
	}
	// A sample shows no finer differences.
	rounded, order := make([]int, len(weights)), make([]int, len(weights))
	for i, w := range weights {
		order[i], rounded[i] = i, int(math.Round(4*w*float64(len(weights))/max(total, 1)))
	}
	slices.SortStableFunc(order, func(a, b int) int {
		return cmp.Or(cmp.Compare(len(of[a]), len(of[b])), cmp.Compare(rounded[b], rounded[a]))
	})
	load, count := map[string]int{}, map[string]int{}
	all := make([]string, len(weights))
	for _, i := range order {
		best := ""
		for _, s := range of[i] {
			if best == "" || load[s] < load[best] || load[s] == load[best] && count[s] < count[best] {
				best = s
			}
		}
		load[best] += rounded[i]
		count[best]++
		all[i] = best
	}
	return all
}

// stretch is the keys of a zone's range, or those between two of them.
type stretch struct {
	from, to bound // to is excluded
	of       []string
}

// stretches cuts all keys at the bounds of zones, which are in order. Keys of no zone may be on any shard.
func stretches(zones []zoned, key shardkey.Pattern, shards []string) (all []stretch) {
	at, end := slices.Repeat(bound{shardkey.MinKey()}, len(key)), slices.Repeat(bound{shardkey.MaxKey()}, len(key))
	for _, z := range zones {
		from, to := bound(shardkey.Bound(z.Min)), bound(shardkey.Bound(z.Max))
		if shardkey.CompareKeys(at, from) < 0 {
			all = append(all, stretch{at, from, shards})
		}
		all = append(all, stretch{from, to, z.of})
		at = to
	}
	if shardkey.CompareKeys(at, end) < 0 {
		all = append(all, stretch{at, end, shards})
	}
	return all
}

// cutStretches cuts each stretch into ranges by its weight. of are the shards that may have a range.
func cutStretches(all []stretch, given []bound, sample []point,
	n int) (cuts []bound, weights []float64, of [][]string) {
	total := weight(given, sample, len(sample) > 0)
	for i, s := range all {
		if i > 0 {
			cuts = append(cuts, s.from)
		}
		inside, each := s.cut(given, sample, float64(n)/max(total, 1))
		cuts, weights = append(cuts, inside...), append(weights, each...)
		for range each {
			of = append(of, s.of)
		}
	}
	return cuts, weights, of
}

// cut cuts what is inside, into at least one range for each shard if there is anything.
func (s stretch) cut(given []bound, sample []point, rangesPerWeight float64) ([]bound, []float64) {
	inside, points := s.within(given, sample)
	own := weight(inside, points, len(sample) > 0)
	if own == 0 {
		return nil, []float64{0}
	}
	return cut(inside, points, max(int(math.Round(own*rangesPerWeight)), len(s.of)))
}

func weight(given []bound, sample []point, sampled bool) (total float64) {
	if !sampled {
		return float64(len(given) + 1)
	}
	for _, p := range sample {
		total += p.weight
	}
	return total
}

func (s stretch) within(given []bound, sample []point) (bounds []bound, points []point) {
	for _, b := range given {
		if shardkey.CompareKeys(s.from, b) < 0 && shardkey.CompareKeys(b, s.to) < 0 {
			bounds = append(bounds, b)
		}
	}
	for _, p := range sample {
		if shardkey.CompareKeys(s.from, p.key) <= 0 && shardkey.CompareKeys(p.key, s.to) < 0 {
			points = append(points, p)
		}
	}
	return bounds, points
}

func (b bound) size() (n int) {
	for _, v := range b {
		n += len(v.Value)
	}
	return n
}

func clone(values []bson.RawValue) bound {
	out := make(bound, len(values))
	for i, v := range values {
		out[i] = bson.RawValue{Type: v.Type, Value: slices.Clone(v.Value)}
	}
	return out
}
