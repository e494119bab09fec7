package ycsb

import "time"

// Point is what happened up to a moment since the point before.
type Point struct {
	Seconds    float64 `json:"seconds"` // since the start
	Throughput float64 `json:"operationsPerSecond"`
	// Latency by series, in microseconds.
	Latency map[string]PointLatency `json:"latencyMicroseconds"`
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
	window *tallies
	opened time.Duration // when the window was
}

// tick looks whether the window is wide enough for a point. The last one may be
// narrower, but what little remains of a run gives no rate worth showing.
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

// coarsen joins neighbours. A joined percentile is the larger of both: an upper
// bound of the true one.
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

// operationsOf counts operations: a read-modify-write is one, though its read
// and its update are measured too.
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
