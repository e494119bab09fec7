package service

import (
	"maps"
	"slices"
	"time"
)

// PointEvery is how often a point is written of a job that a worker has.
const PointEvery = 10 * time.Second

// Point is what a job, a shard of its source or a router of its target did in a span of time. Consecutive points
// can be merged.
type Point struct {
	// Name is that of a shard or router, "" of a job.
	Name string
	// From and To are the first and the last moment of a job's point.
	From, To time.Time
	// Seconds are those of the span in which a worker had the job, or knew the part.
	Seconds float64

	// Docs and Bytes were copied, Operations and AppliedBytes applied. The latter are, of a shard, changes read in its
	// oplog, of a router commands sent.
	Docs, Bytes, Operations, AppliedBytes Amount
	// Lag and Window are seconds, CPU percent of a core. CPU and Memory are of the worker's process.
	Lag, Window, CPU, Memory Range
	// Shards and Routers are sorted by name, up to MaxParts and Others.
	Shards, Routers []Point
}

// Amount is how much was done, with the lowest and highest rate among the shortest spans.
type Amount struct {
	Sum         int64
	Least, Most float64
}

// NewAmount is what was done in a span that is not divided.
func NewAmount(sum int64, seconds float64) Amount {
	rate := Amount{Sum: sum}.Rate(seconds)
	return Amount{sum, rate, rate}
}

func (a Amount) merge(b Amount) Amount {
	return Amount{a.Sum + b.Sum, min(a.Least, b.Least), max(a.Most, b.Most)}
}

// Range is how a figure stood. Seconds are those for which it was known; 0 is never.
type Range struct{ Mean, Least, Most, Seconds float64 }

// NewRange is a figure that was looked at once. One below 0 is not known.
func NewRange(v, seconds float64) Range {
	if v < 0 || seconds <= 0 {
		return Range{}
	}
	return Range{v, v, v, seconds}
}

// Known reports whether there is anything to show.
func (r Range) Known() bool { return r.Seconds > 0 }

func (r Range) merge(b Range) Range {
	switch {
	case !b.Known():
		return r
	case !r.Known():
		return b
	}
	all := r.Seconds + b.Seconds
	return Range{(r.Mean*r.Seconds + b.Mean*b.Seconds) / all, min(r.Least, b.Least), max(r.Most, b.Most), all}
}

// Merge takes another point into this one.
func (p *Point) Merge(b *Point) {
	if p.Seconds == 0 && p.To.IsZero() {
		*p = *b
		p.Shards, p.Routers = slices.Clone(b.Shards), slices.Clone(b.Routers) // what is merged later stays here
		return
	}
	if b.From.Before(p.From) {
		p.From = b.From
	}
	if b.To.After(p.To) {
		p.To = b.To
	}
	p.Seconds += b.Seconds
	p.combine(b, Amount.merge, Range.merge, Range.merge)
	p.Shards, p.Routers = mergeParts(p.Shards, b.Shards), mergeParts(p.Routers, b.Routers)
}

// combine combines the figures of two points; low is for those where less is worse.
func (p *Point) combine(b *Point, amount func(x, y Amount) Amount, high, low func(x, y Range) Range) {
	p.Docs, p.Bytes = amount(p.Docs, b.Docs), amount(p.Bytes, b.Bytes)
	p.Operations, p.AppliedBytes = amount(p.Operations, b.Operations), amount(p.AppliedBytes, b.AppliedBytes)
	p.Lag, p.Window = high(p.Lag, b.Lag), low(p.Window, b.Window)
	p.CPU, p.Memory = high(p.CPU, b.CPU), high(p.Memory, b.Memory)
}

// Rate is how much was done in a second of the span.
func (p *Point) Rate(a Amount) float64 { return a.Rate(p.Seconds) }

// Rate is how much was done in a second of so many.
func (a Amount) Rate(seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(a.Sum) / seconds
}

// Bucket is a point of the span that begins at From, of a whole multiple of some length.
type Bucket struct {
	Start time.Time
	Point
}

// Buckets are points merged into spans of one length. Spans without points are left out.
type Buckets struct {
	step time.Duration
	by   map[int64]*Point
}

// NewBuckets has spans of a length.
func NewBuckets(step time.Duration) *Buckets { return &Buckets{step, map[int64]*Point{}} }

// Add takes a point into the span in which it begins.
func (b *Buckets) Add(p *Point) {
	at := p.From.Truncate(b.step).UnixMilli()
	if b.by[at] == nil {
		b.by[at] = &Point{}
	}
	b.by[at].Merge(p)
}

// List are all of them by time.
func (b *Buckets) List() []Bucket {
	list := make([]Bucket, 0, len(b.by))
	for _, at := range slices.Sorted(maps.Keys(b.by)) {
		list = append(list, Bucket{time.UnixMilli(at).UTC(), *b.by[at]})
	}
	return list
}

// Period is from one time, which is in it, to another, which is not.
type Period struct{ From, To time.Time }
