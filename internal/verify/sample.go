package verify

import (
	"math"
	"math/rand/v2"

	"github.com/millrace/millrace/internal/scan"
)

// sampled reports that a part of each collection is compared.
func (o *Options) sampled() bool { return o.Share > 0 && o.Share < 1 }

// leastRanges is how many ranges a collection has at least, so that a share of them is
// near the share that is asked for.
func (o *Options) leastRanges() int64 {
	if !o.sampled() {
		return 1
	}
	return int64(math.Ceil(2 / o.Share))
}

// sample draws the share of ranges that are compared, at least one of them.
func (o *Options) sample(all []scan.Slice) []scan.Slice {
	if !o.sampled() {
		return all
	}
	n := max(int(math.Round(o.Share*float64(len(all)))), min(1, len(all)))
	some := make([]scan.Slice, 0, n)
	for _, i := range rand.Perm(len(all))[:n] {
		some = append(some, all[i])
	}
	return some
}
