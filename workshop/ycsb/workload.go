package ycsb

import (
	"math"
	"math/rand/v2"
)

// workload is what the threads of a run share.
type workload struct {
	*config
	content *records
	inserts *sequence // of the run phase
	chosen  numbers   // of records to work on
	upto    [kinds]float64
}

func newWorkload(c *config, noise []byte) *workload {
	w := &workload{config: c, inserts: newSequence(c.records),
		content: &records{noise: noise, fields: c.fields, length: c.fieldLength, fixed: c.verify}}
	var sum float64
	for k, weight := range c.weights {
		sum += weight
		w.upto[k] = sum
	}
	w.chosen = w.chooser()
	return w
}

// chooser is the generator of records to work on.
func (c *workload) chooser() numbers {
	low, high := c.insertStart, c.insertStart+c.insertCount-1
	newest := func() int64 { return c.inserts.newest.Load() }
	switch c.requests {
	case "zipfian":
		// Over the records that there will be at the end, so that the popular
		// ones stay the same; those that are not there yet are drawn again.
		count := c.insertCount + c.expectedInserts()
		ranks := c.zipfRanks
		if ranks == 0 {
			ranks = count
		}
		return scrambled{newZipfian(ranks, newHarmonic(c.theta)), low, count}
	case "latest":
		return &latest{harmonic: newHarmonic(c.theta), low: low, newest: newest}
	case "hotspot":
		return newHotspot(low, high, c.hotData, c.hotOps)
	case "sequential":
		return &sequential{low: low, high: high}
	case "exponential":
		return newExponential(low, c.expPercentile, float64(c.insertCount)*c.expFrac, newest)
	}
	if high+1 < c.records {
		return uniform{low, high} // a part of the records, the others are for other clients
	}
	return evenly{low, newest}
}

// expectedInserts is twice what the run will insert by its share, to be sure.
func (c *workload) expectedInserts() int64 {
	var sum float64
	for _, weight := range c.weights {
		sum += weight
	}
	if c.weights[opInsert] == 0 {
		return 0
	}
	operations := float64(c.operations)
	if c.operations == math.MaxInt64 {
		operations = float64(c.insertCount)
	}
	return int64(operations * c.weights[opInsert] / sum * 2)
}

// evenly draws from all records that there are.
type evenly struct {
	low    int64
	newest func() int64
}

func (e evenly) next(r *rand.Rand) int64 { return e.low + r.Int64N(e.newest()-e.low+1) }

// record draws the number of a record that is there. Where nearly all records
// are still to come, it stops trying and folds the number into those there are.
func (c *workload) record(r *rand.Rand) int64 {
	const tries = 64
	for range tries {
		if n := c.chosen.next(r); n <= c.inserts.newest.Load() {
			return n
		}
	}
	return c.insertStart + (c.chosen.next(r)-c.insertStart)%(c.inserts.newest.Load()-c.insertStart+1)
}

// operation draws what to do.
func (c *workload) operation(r *rand.Rand) kind { return kind(pick(c.upto[:], r.Float64())) }

// readField draws the field to read, -1 for all.
func (c *workload) readField(r *rand.Rand) int { return c.fieldUnless(c.readAll, r) }

// writeField draws the field to write, -1 for all.
func (c *workload) writeField(r *rand.Rand) int { return c.fieldUnless(c.writeAll, r) }

func (c *workload) fieldUnless(all bool, r *rand.Rand) int {
	if all {
		return -1
	}
	return r.IntN(len(c.fields))
}
