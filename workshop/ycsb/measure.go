package ycsb

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/plot"
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

// latencyStats is what is known of some latencies, in microseconds. Count, sum and extremes are exact.
type latencyStats struct {
	count, sum, least, most int64
	squares                 float64
	hist                    *hdrhistogram.Histogram
	millis                  []int64 // by whole milliseconds, the last for all above; nil unless wanted
}

func newLatencyStats(buckets int) *latencyStats {
	t := &latencyStats{hist: hdrhistogram.New(1, longest, significant)}
	if buckets > 0 {
		t.millis = make([]int64, buckets+1)
	}
	return t
}

func (t *latencyStats) add(us int64) {
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

func (t *latencyStats) merge(o *latencyStats) {
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

func (t *latencyStats) reset() {
	if t.count == 0 {
		return
	}
	t.hist.Reset()
	clear(t.millis)
	*t = latencyStats{hist: t.hist, millis: t.millis}
}

func (t *latencyStats) mean() float64 { return float64(t.sum) / float64(max(t.count, 1)) }

// variance is that of the whole population.
func (t *latencyStats) variance() float64 {
	m := t.mean()
	return max(t.squares/float64(max(t.count, 1))-m*m, 0)
}

// percentile is exact to three digits, and never outside the extremes.
func (t *latencyStats) percentile(p float64) int64 {
	return min(max(t.hist.ValueAtPercentile(p), t.least), t.most)
}

// runStats are those of all series that have occurred.
type runStats struct {
	of      [kinds][variants]*latencyStats
	returns [kinds][statuses]int64
	buckets int
}

func (t *runStats) at(k kind, v variant) *latencyStats {
	if t.of[k][v] == nil {
		t.of[k][v] = newLatencyStats(t.buckets)
	}
	return t.of[k][v]
}

func (t *runStats) merge(o *runStats) {
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

func (t *runStats) reset() {
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
func (t *runStats) all(yield func(series, *latencyStats) bool) {
	for v := range variants {
		for k := range kinds {
			if one := t.of[k][v]; one != nil && one.count > 0 && !yield(series{k, v}, one) {
				return
			}
		}
	}
}

// shard is where a few threads record. The collector takes its lock once a second.
type shard struct {
	mu      sync.Mutex
	now     *runStats
	spare   *runStats // empty, exchanged for now by the collector
	measure measureConfig
	raw     *rawWriter // nil unless each latency is written
}

func newShard(m measureConfig, buckets int, raw *rawWriter) *shard {
	return &shard{now: &runStats{buckets: buckets}, spare: &runStats{buckets: buckets}, measure: m, raw: raw}
}

func (s *shard) record(k kind, st status, intended, start, end time.Time) {
	failed := variant(0)
	if !st.ok() {
		failed = 1 // the variant after
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.now.returns[k][st]++
	if s.measure.op || k == opCleanup {
		s.latency(series{k, fromStart + failed}, start, end)
	}
	if s.measure.intended && !intended.IsZero() {
		s.latency(series{k, fromIntended + failed}, intended, end)
	}
}

func (s *shard) latency(of series, since, end time.Time) {
	us := max(end.Sub(since).Microseconds(), 0)
	s.now.at(of.kind, of.variant).add(us)
	if s.raw != nil {
		s.raw.write(of, end, us)
	}
}

// drain merges what was recorded since the last time into others and forgets it. Only one goroutine calls it.
func (s *shard) drain(into ...*runStats) {
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

// Point is what happened up to a moment since the point before.
type Point struct {
	Seconds    float64                 `json:"seconds"` // since the start
	Throughput float64                 `json:"operationsPerSecond"`
	Latency    map[string]PointLatency `json:"latencyMicroseconds"` // Latency by series, in microseconds.
}

// PointLatency are latencies between two points, in microseconds.
type PointLatency struct {
	Count   int64   `json:"count"`
	Average float64 `json:"average"`
	P95     int64   `json:"p95"`
	P99     int64   `json:"p99"`
	Max     int64   `json:"max"`
}

// maxPoints bounds a course: beyond it, neighbours are joined.
const maxPoints = 1200

// course is a run over time.
type course struct {
	points []Point
	each   time.Duration // the distance of points
	window *runStats
	opened time.Duration // when the window was
}

// tick adds a point when the window is wide enough. The last may be narrower, but not too narrow for a rate.
func (c *course) tick(since time.Duration, last bool) {
	wide := since - c.opened
	if wide < c.each-c.each/10 && !last || wide <= 0 || last && wide < c.each/4 && len(c.points) > 0 {
		return
	}
	p := Point{Seconds: since.Seconds(), Latency: map[string]PointLatency{}}
	for s, t := range c.window.all {
		p.Latency[s.String()] = PointLatency{t.count, t.mean(), t.percentile(95), t.percentile(99), t.most}
	}
	p.Throughput = float64(operationsOf(&c.window.returns)) / wide.Seconds()
	c.points = append(c.points, p)
	c.window.reset()
	c.opened = since
	if len(c.points) >= maxPoints {
		c.coarsen()
	}
}

// coarsen joins neighbours. A joined percentile is the larger of both: an upper bound of the true one.
func (c *course) coarsen() {
	var start float64
	joined := c.points[:0]
	for i := 0; i+1 < len(c.points); i += 2 {
		a, b := c.points[i], c.points[i+1]
		end := b.Seconds
		b.Throughput = (a.Throughput*(a.Seconds-start) + b.Throughput*(b.Seconds-a.Seconds)) / (b.Seconds - start)
		for name, x := range a.Latency {
			y := b.Latency[name]
			n := x.Count + y.Count
			b.Latency[name] = PointLatency{n, (x.Average*float64(x.Count) + y.Average*float64(y.Count)) / float64(max(n, 1)),
				max(x.P95, y.P95), max(x.P99, y.P99), max(x.Max, y.Max)}
		}
		joined = append(joined, b)
		start = end
	}
	c.points, c.each = joined, 2*c.each
}

// operationsOf counts operations: a read-modify-write is one, though its read and its update are measured too.
func operationsOf(returns *[kinds][statuses]int64) (n int64) {
	for k := range kinds {
		if k == opCleanup || k == opVerify {
			continue
		}
		for _, one := range returns[k] {
			if k == opModify {
				one = -one // its two parts are counted
			}
			n += one
		}
	}
	return n
}

// rawWriter writes "READ,milliseconds,microseconds", with headings. It is safe for concurrent use.
type rawWriter struct {
	mu     sync.Mutex
	w      *bufio.Writer
	closer io.Closer
	headed [kinds][variants]bool
	line   []byte
	err    error
}

// newRawWriter writes to a file, or to w when there is none.
func newRawWriter(path string, w io.Writer) (*rawWriter, error) {
	if path == "" {
		return &rawWriter{w: bufio.NewWriterSize(w, 1<<16)}, nil
	}
	f, err := os.Create(path)
	if err != nil {
		return nil, fmt.Errorf("write raw latencies: %w", err)
	}
	return &rawWriter{w: bufio.NewWriterSize(f, 1<<16), closer: f}, nil
}

func (w *rawWriter) write(s series, at time.Time, us int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return
	}
	w.line = w.line[:0]
	if !w.headed[s.kind][s.variant] {
		w.headed[s.kind][s.variant] = true
		w.line = append(append(w.line, s.String()...), " latency raw data: op, timestamp(ms), latency(us)\n"...)
	}
	w.line = append(append(w.line, s.String()...), ',')
	w.line = append(strconv.AppendInt(w.line, at.UnixMilli(), 10), ',')
	w.line = append(strconv.AppendInt(w.line, us, 10), '\n')
	_, w.err = w.w.Write(w.line)
}

func (w *rawWriter) close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err := errors.Join(w.err, w.w.Flush())
	if w.closer != nil {
		err = errors.Join(err, w.closer.Close())
	}
	return mongo.Wrap(err, "write raw latencies")
}

// statusLine writes YCSB's status lines. A nil one writes none.
type statusLine struct {
	w      io.Writer
	label  string
	total  int64
	window *runStats // since the last line
	wrote  bool
	at     time.Duration // of the last line
	done   int64         // by then
}

// write writes a line when one is due: at the beginning, every interval and at the end.
func (s *statusLine) write(since time.Duration, returns *[kinds][statuses]int64, every time.Duration, last bool) {
	if s == nil {
		return
	}
	first := !s.wrote
	if !first && !last && since < s.at.Truncate(every)+every {
		return
	}
	s.wrote = true
	done := operationsOf(returns)
	var b strings.Builder
	fmt.Fprintf(&b, "%s ", time.Now().Format("2006-01-02 15:04:05:")+fmt.Sprintf("%03d", time.Now().UnixMilli()%1000))
	if s.label != "" {
		b.WriteString(s.label + " ")
	}
	fmt.Fprintf(&b, "%d sec: %d operations; ", int64(since.Seconds()), done)
	if wide := since - s.at; !first && wide > 0 {
		fmt.Fprintf(&b, "%s current ops/sec; ", short(float64(done-s.done)/wide.Seconds()))
	}
	if !last && s.total > 0 {
		b.WriteString("est completion in " + remaining(since, done, s.total) + " ")
	}
	for name, t := range s.window.all {
		fmt.Fprintf(&b, "[%s: Count=%d, Max=%d, Min=%d, Avg=%s, 90=%d, 99=%d, 99.9=%d, 99.99=%d] ", name, t.count, t.most,
			t.least, short(t.mean()), t.percentile(90), t.percentile(99), t.percentile(99.9), t.percentile(99.99))
	}
	s.window.reset()
	s.at, s.done = since, done
	fmt.Fprintln(s.w, b.String())
}

// remaining tells the time that the rest will take at the rate so far.
func remaining(since time.Duration, done, total int64) string {
	if done == 0 {
		return "0 seconds"
	}
	seconds := int64(since.Seconds() * float64(total-done) / float64(done))
	days, hours, minutes := seconds/86400, seconds/3600%24, seconds/60%60
	switch {
	case days > 0:
		return plot.Several(days, "day") + " " + plot.Several(hours, "hour")
	case hours > 0:
		return plot.Several(hours, "hour") + " " + strconv.FormatInt(minutes, 10) + " minutes"
	case minutes > 0:
		return strconv.FormatInt(minutes, 10) + " minutes"
	}
	return plot.Several(seconds, "second")
}

// short is a number with at most two digits after the point.
func short(f float64) string {
	s := strconv.FormatFloat(f, 'f', 2, 64)
	return strings.TrimSuffix(strings.TrimRight(s, "0"), ".")
}
