package ycsb

import (
	"bufio"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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
		// Over the final records, so that the popular ones stay; those not there yet are drawn again.
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
	if c.weights[opInsert] == 0 {
		return 0
	}
	operations := float64(c.operations)
	if c.operations == math.MaxInt64 {
		operations = float64(c.insertCount)
	}
	return int64(operations * c.weights[opInsert] / c.upto[kinds-1] * 2)
}

// evenly draws from all records that there are.
type evenly struct {
	low    int64
	newest func() int64
}

func (e evenly) next(r *rand.Rand) int64 { return e.low + r.Int64N(e.newest()-e.low+1) }

// record draws a record that exists. Where nearly all are to come, it stops trying and folds the number.
func (c *workload) record(r *rand.Rand) int64 {
	const tries = 64
	for range tries {
		if n := c.chosen.next(r); n <= c.inserts.newest.Load() {
			return n
		}
	}
	return c.insertStart + (c.chosen.next(r)-c.insertStart)%(c.inserts.newest.Load()-c.insertStart+1)
}

func (c *workload) operation(r *rand.Rand) kind { return kind(pick(c.upto[:], r.Float64())) }

// sequence hands out numbers of new records and knows up to which all exist.
type sequence struct {
	next, newest atomic.Int64

	mu   sync.Mutex
	done map[int64]struct{} // beyond newest
}

// newSequence begins with the number first; the records before it are there.
func newSequence(first int64) *sequence {
	s := &sequence{done: map[int64]struct{}{}}
	s.next.Store(first)
	s.newest.Store(first - 1)
	return s
}

func (s *sequence) take() int64 { return s.next.Add(1) - 1 }

func (s *sequence) acknowledge(n int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.done[n] = struct{}{}
	at := s.newest.Load()
	for {
		if _, ok := s.done[at+1]; !ok {
			break
		}
		at++
		delete(s.done, at)
	}
	s.newest.Store(at)
}

// hash is the 64-bit FNV-1a hash (Fowler, Noll, Vo) of a number's bytes, the lowest first, without its sign: YCSB's.
func hash(n int64) int64 {
	const basis, prime = 0xcbf29ce484222325, 0x100000001b3
	h, v := uint64(basis), uint64(n)
	for range 8 {
		h = (h ^ v&0xff) * prime
		v >>= 8
	}
	return abs(int64(h))
}

// abs leaves the smallest number as it is, as Java does.
func abs(n int64) int64 {
	if n < 0 {
		return -n
	}
	return n
}

type keys struct {
	ordered bool // else hashed
	pad     int  // digits at least
}

func (k keys) append(dst []byte, n int64) []byte {
	if !k.ordered {
		n = hash(n)
	}
	dst = append(dst, "user"...)
	var digits [20]byte
	d := strconv.AppendInt(digits[:0], n, 10)
	for i := len(d); i < k.pad; i++ {
		dst = append(dst, '0')
	}
	return append(dst, d...)
}

// numbers draws whole numbers. Goroutines may share it; the randomness is the caller's.
type numbers interface {
	next(r *rand.Rand) int64
}

type constant int64

func (c constant) next(*rand.Rand) int64 { return int64(c) }

// uniform draws evenly from low to high, both included.
type uniform struct{ low, high int64 }

func (u uniform) next(r *rand.Rand) int64 { return u.low + r.Int64N(u.high-u.low+1) }

// sequential counts from low to high and begins again.
type sequential struct {
	low, high int64
	n         atomic.Int64
}

func (s *sequential) next(*rand.Rand) int64 {
	return s.low + (s.n.Add(1)-1)%(s.high-s.low+1)
}

const zipfTheta = 0.99

// harmonic sums i^-theta for i from 1 to n: the head term by term, the rest by Euler and Maclaurin. Their error is
// far below that of adding so many floats.
type harmonic struct{ theta, head float64 }

const harmonicHead = 1000

func newHarmonic(theta float64) harmonic {
	h := harmonic{theta: theta}
	for i := 1; i <= harmonicHead; i++ {
		h.head += math.Pow(float64(i), -theta)
	}
	return h
}

func (h harmonic) sum(n int64) float64 {
	if n <= harmonicHead {
		var s float64
		for i := int64(1); i <= n; i++ {
			s += math.Pow(float64(i), -h.theta)
		}
		return s
	}
	const m = harmonicHead
	x := float64(n)
	between := (math.Pow(x, 1-h.theta) - math.Pow(m, 1-h.theta)) / (1 - h.theta)
	fx, fm := math.Pow(x, -h.theta), math.Pow(m, -h.theta)
	return h.head + between + (fx-fm)/2 - h.theta/12*(fx/x-fm/m)
}

// zipfian draws rank i below n in proportion to (i+1)^-theta (Gray et al., SIGMOD 1994, figure 5, section 3.2).
type zipfian struct {
	n                       int64
	alpha, zeta, eta, first float64
}

func newZipfian(n int64, h harmonic) *zipfian {
	z := &zipfian{n: n, alpha: 1 / (1 - h.theta), zeta: h.sum(n), first: 1 + math.Pow(0.5, h.theta)}
	z.eta = (1 - math.Pow(2/float64(n), 1-h.theta)) / (1 - h.sum(2)/z.zeta)
	return z
}

// rank is that of an even random u from 0 to 1.
func (z *zipfian) rank(u float64) int64 {
	uz := u * z.zeta
	switch {
	case uz < 1 || z.n == 1:
		return 0
	case uz < z.first || z.n == 2:
		return 1
	}
	return min(int64(float64(z.n)*math.Pow(z.eta*u-z.eta+1, z.alpha)), z.n-1)
}

func (z *zipfian) next(r *rand.Rand) int64 { return z.rank(r.Float64()) }

// scrambled spreads the ranks of a zipfian over the numbers from low on, by their hash.
type scrambled struct {
	ranks      *zipfian
	low, count int64
}

// scrambledRanks is how many ranks YCSB draws from, for any number of records (its issue 1305): many share a
// record, so that its zipfian is flatter. Results compare only when both do the same.
const scrambledRanks = 10_000_000_000

func (s scrambled) next(r *rand.Rand) int64 { return s.low + hash(s.ranks.next(r))%s.count }

// latest draws zipfian from the newest record backwards.
type latest struct {
	harmonic harmonic
	low      int64
	newest   func() int64
	ranks    atomic.Pointer[zipfian] // for the number of records there were last
}

func (l *latest) next(r *rand.Rand) int64 {
	newest := l.newest()
	n := newest - l.low + 1
	z := l.ranks.Load()
	if z == nil || z.n != n {
		z = newZipfian(n, l.harmonic)
		l.ranks.Store(z)
	}
	return newest - z.next(r)
}

// hotspot draws a share of all numbers evenly from the first part of a range, and the others evenly from the rest.
type hotspot struct {
	low, hot, cold int64 // the sizes of both parts
	share          float64
}

func newHotspot(low, high int64, data, share float64) hotspot {
	n := high - low + 1
	hot := min(int64(float64(n)*data), n)
	return hotspot{low: low, hot: hot, cold: n - hot, share: share}
}

func (h hotspot) next(r *rand.Rand) int64 {
	if h.cold == 0 || h.hot > 0 && r.Float64() < h.share {
		return h.low + r.Int64N(h.hot)
	}
	return h.low + h.hot + r.Int64N(h.cold)
}

// exponential draws from the newest record backwards, with an exponentially falling probability of the given mean.
type exponential struct {
	low    int64
	mean   float64
	newest func() int64
}

// newExponential is one in which percentile percent of all numbers come from the newest so many records.
func newExponential(low int64, percentile, records float64, newest func() int64) *exponential {
	return &exponential{low: low, mean: records / -math.Log(1-percentile/100), newest: newest}
}

func (e *exponential) next(r *rand.Rand) int64 {
	newest := e.newest()
	// The inverse of the distribution, cut off behind the first record: the same as drawing again what lies there.
	within := -math.Expm1(-float64(newest-e.low+1) / e.mean)
	return max(newest-int64(-math.Log1p(-r.Float64()*within)*e.mean), e.low)
}

type histogram struct {
	lengths []int64
	upto    []float64 // running sums of the weights
}

// readHistogram reads lines "number count" after "BlockSize size": a length of number+1 blocks has the weight count.
func readHistogram(path string) (*histogram, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read histogram of field lengths: %w", err)
	}
	defer f.Close()
	h, block, sum := &histogram{}, int64(0), 0.0
	for s := bufio.NewScanner(f); s.Scan(); {
		cols := strings.Fields(s.Text())
		if len(cols) != 2 {
			continue
		}
		n, err := strconv.ParseInt(cols[1], 10, 64)
		if err != nil || n < 0 {
			return nil, fmt.Errorf("histogram %s: invalid count %q", path, cols[1])
		}
		if cols[0] == "BlockSize" {
			block = n
			continue
		}
		at, err := strconv.ParseInt(cols[0], 10, 64)
		if err != nil || block == 0 {
			return nil, fmt.Errorf("histogram %s: line %q; want a first line \"BlockSize size\", then \"number count\"", path,
				s.Text())
		}
		sum += float64(n)
		h.lengths, h.upto = append(h.lengths, (at+1)*block), append(h.upto, sum)
	}
	if sum == 0 {
		return nil, fmt.Errorf("histogram %s is empty", path)
	}
	return h, nil
}

func (h *histogram) next(r *rand.Rand) int64 { return h.lengths[pick(h.upto, r.Float64())] }

// pick finds the part of running sums that a share u of the whole falls in.
func pick(upto []float64, u float64) int {
	at := u * upto[len(upto)-1]
	for i, limit := range upto {
		if at < limit {
			return i
		}
	}
	return len(upto) - 1
}
