package ycsb

import (
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// variant is which latency of an operation is meant.
type variant uint8

const (
	fromStart          variant = iota // from when it was sent
	fromStartFailed                   // the same, of those that failed
	fromIntended                      // from when it should have been sent
	fromIntendedFailed                // the same, of those that failed
	variants
)

// series is what one histogram is kept of.
type series struct {
	kind    kind
	variant variant
}

// String is the name in the output.
func (s series) String() string {
	name := s.kind.String()
	if s.variant == fromIntended || s.variant == fromIntendedFailed {
		name = "Intended-" + name
	}
	if s.variant == fromStartFailed || s.variant == fromIntendedFailed {
		name += "-FAILED"
	}
	return name
}

const (
	longest     = int64(time.Hour / time.Microsecond) // latencies above count as this long
	significant = 3                                   // digits that percentiles are exact to
)

// tally is what is known of some latencies, in microseconds. Count, sum and
// extremes are exact.
type tally struct {
	count, sum, least, most int64
	squares                 float64
	hist                    *hdrhistogram.Histogram
	millis                  []int64 // by whole milliseconds, the last for all above; nil unless wanted
}

func newTally(buckets int) *tally {
	t := &tally{hist: hdrhistogram.New(1, longest, significant)}
	if buckets > 0 {
		t.millis = make([]int64, buckets+1)
	}
	return t
}

func (t *tally) add(us int64) {
	if t.count == 0 || us < t.least {
		t.least = us
	}
	t.most = max(t.most, us)
	t.count++
	t.sum += us
	t.squares += float64(us) * float64(us)
	_ = t.hist.RecordValue(min(us, longest)) // in range
	if t.millis != nil {
		t.millis[min(us/1000, int64(len(t.millis)-1))]++
	}
}

// merge adds another tally.
func (t *tally) merge(o *tally) {
	if o.count == 0 {
		return
	}
	if t.count == 0 || o.least < t.least {
		t.least = o.least
	}
	t.most = max(t.most, o.most)
	t.count += o.count
	t.sum += o.sum
	t.squares += o.squares
	t.hist.Merge(o.hist)
	for i, n := range o.millis {
		t.millis[i] += n
	}
}

func (t *tally) reset() {
	if t.count == 0 {
		return
	}
	t.hist.Reset()
	clear(t.millis)
	*t = tally{hist: t.hist, millis: t.millis}
}

func (t *tally) mean() float64 {
	if t.count == 0 {
		return 0
	}
	return float64(t.sum) / float64(t.count)
}

// variance is that of the whole population.
func (t *tally) variance() float64 {
	if t.count == 0 {
		return 0
	}
	m := t.mean()
	return max(t.squares/float64(t.count)-m*m, 0)
}

// percentile is exact to three digits, and never outside the extremes.
func (t *tally) percentile(p float64) int64 {
	if t.count == 0 {
		return 0
	}
	return min(max(t.hist.ValueAtPercentile(p), t.least), t.most)
}

// tallies are those of all series that have occurred.
type tallies struct {
	of      [kinds][variants]*tally
	returns [kinds][statuses]int64
	buckets int
}

func (t *tallies) at(k kind, v variant) *tally {
	if t.of[k][v] == nil {
		t.of[k][v] = newTally(t.buckets)
	}
	return t.of[k][v]
}

func (t *tallies) merge(o *tallies) {
	for k := range o.of {
		for v, from := range o.of[k] {
			if from != nil && from.count > 0 {
				t.at(kind(k), variant(v)).merge(from)
			}
		}
		for s, n := range o.returns[k] {
			t.returns[k][s] += n
		}
	}
}

func (t *tallies) reset() {
	for k := range t.of {
		for _, one := range t.of[k] {
			if one != nil {
				one.reset()
			}
		}
	}
	t.returns = [kinds][statuses]int64{}
}

// all yields the series with at least one latency, in the order of kinds.
func (t *tallies) all(yield func(series, *tally) bool) {
	for v := range variants {
		for k := range kinds {
			if one := t.of[k][v]; one != nil && one.count > 0 && !yield(series{k, v}, one) {
				return
			}
		}
	}
}

// shard is where some of the threads record. Its lock is all but free: few
// threads share it, and the collector asks once a second.
type shard struct {
	mu      sync.Mutex
	now     *tallies
	spare   *tallies // empty, exchanged for now by the collector
	measure measureConfig
	raw     *rawWriter // nil unless each latency is written
}

func newShard(m measureConfig, buckets int, raw *rawWriter) *shard {
	return &shard{now: &tallies{buckets: buckets}, spare: &tallies{buckets: buckets}, measure: m, raw: raw}
}

// record counts an operation that ended now.
func (s *shard) record(k kind, st status, intended, start, end time.Time) {
	good, bad := fromStart, fromStartFailed
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.returns[k][st]++
	if s.measure.op || k == opCleanup {
		s.latency(k, st, good, bad, start, end)
	}
	if s.measure.intended && !intended.IsZero() {
		s.latency(k, st, fromIntended, fromIntendedFailed, intended, end)
	}
}

func (s *shard) latency(k kind, st status, good, bad variant, start, end time.Time) {
	us := max(end.Sub(start).Microseconds(), 0)
	v := good
	if !st.ok() {
		v = bad
	}
	s.now.at(k, v).add(us)
	if s.raw != nil {
		s.raw.write(series{k, v}, end, us)
	}
}

// drain merges what was recorded since the last time into others and forgets
// it. Only one goroutine calls it.
func (s *shard) drain(into ...*tallies) {
	s.mu.Lock()
	full := s.now
	s.now, s.spare = s.spare, nil
	s.mu.Unlock()
	for _, t := range into {
		t.merge(full)
	}
	full.reset()
	s.mu.Lock()
	s.spare = full
	s.mu.Unlock()
}
