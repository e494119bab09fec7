package service

import (
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
)

// PointEvery is the interval of points of a running job.
const PointEvery = 10 * time.Second

// Point has the figures of a job, a shard of its source or a router of its target for a time span.
type Point struct {
	// Name is "" for a job.
	Name     string
	From, To time.Time
	// Seconds counts the time in which a worker ran the job, or knew the part.
	Seconds float64

	// Of a shard, Operations and AppliedBytes are changes read in its oplog; of a router, commands sent.
	Docs, Bytes, Operations, AppliedBytes Amount
	// Lag and Window are seconds, CPU percent of a core. CPU and Memory are of the worker's process.
	Lag, Window, CPU, Memory Range
	// Shards and Routers are sorted by name, up to job.MaxParts and job.OtherParts.
	Shards, Routers []Point
}

// Amount is a sum, with the lowest and highest rate a second of the shortest spans.
type Amount struct {
	Sum         int64
	Least, Most float64
}

// NewAmount makes the amount of one span.
func NewAmount(sum int64, seconds float64) Amount {
	rate := Amount{Sum: sum}.Rate(seconds)
	return Amount{sum, rate, rate}
}

func (a Amount) merge(b Amount) Amount {
	return Amount{a.Sum + b.Sum, min(a.Least, b.Least), max(a.Most, b.Most)}
}

// Range is a figure over time. Seconds counts the time in which it was known.
type Range struct{ Mean, Least, Most, Seconds float64 }

// NewRange makes the range of one measurement. A negative one is unknown.
func NewRange(v, seconds float64) Range {
	if v < 0 || seconds <= 0 {
		return Range{}
	}
	return Range{v, v, v, seconds}
}

// Known reports whether the figure was ever known.
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

func (p *Point) Merge(b *Point) {
	if p.Seconds == 0 && p.To.IsZero() {
		*p = *b
		p.Shards, p.Routers = slices.Clone(b.Shards), slices.Clone(b.Routers) // later merges must not change b
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

// combine merges figures. low is for those where less is worse.
func (p *Point) combine(b *Point, amount func(x, y Amount) Amount, high, low func(x, y Range) Range) {
	p.Docs, p.Bytes = amount(p.Docs, b.Docs), amount(p.Bytes, b.Bytes)
	p.Operations, p.AppliedBytes = amount(p.Operations, b.Operations), amount(p.AppliedBytes, b.AppliedBytes)
	p.Lag, p.Window = high(p.Lag, b.Lag), low(p.Window, b.Window)
	p.CPU, p.Memory = high(p.CPU, b.CPU), high(p.Memory, b.Memory)
}

// Rate returns an amount of the point per second.
func (p *Point) Rate(a Amount) float64 { return a.Rate(p.Seconds) }

// Rate returns the amount per second.
func (a Amount) Rate(seconds float64) float64 {
	if seconds <= 0 {
		return 0
	}
	return float64(a.Sum) / seconds
}

// Bucket is a point that begins at a multiple of a step.
type Bucket struct {
	Start time.Time
	Point
}

// Buckets merge points into spans of one step. Spans without points are absent.
type Buckets struct {
	step time.Duration
	by   map[int64]*Point
}

// NewBuckets makes spans of a step.
func NewBuckets(step time.Duration) *Buckets { return &Buckets{step, map[int64]*Point{}} }

// Add merges a point into the span in which it begins.
func (b *Buckets) Add(p *Point) {
	at := p.From.Truncate(b.step).UnixMilli()
	if b.by[at] == nil {
		b.by[at] = &Point{}
	}
	b.by[at].Merge(p)
}

// List returns the spans by time.
func (b *Buckets) List() []Bucket {
	list := make([]Bucket, 0, len(b.by))
	for _, at := range slices.Sorted(maps.Keys(b.by)) {
		list = append(list, Bucket{time.UnixMilli(at).UTC(), *b.by[at]})
	}
	return list
}

// Period includes From and excludes To.
type Period struct{ From, To time.Time }

func (p *Point) beside(b *Point) {
	p.Seconds = max(p.Seconds, b.Seconds)
	p.combine(b, Amount.beside,
		func(x, y Range) Range { return x.beside(y, func(x, y float64) float64 { return max(x, y) }) },
		func(x, y Range) Range { return x.beside(y, func(x, y float64) float64 { return min(x, y) }) })
}

func (a Amount) beside(b Amount) Amount {
	return Amount{a.Sum + b.Sum, a.Least + b.Least, a.Most + b.Most}
}

func (r Range) beside(b Range, worse func(x, y float64) float64) Range {
	switch {
	case !b.Known():
		return r
	case !r.Known():
		return b
	}
	return Range{worse(r.Mean, b.Mean), worse(r.Least, b.Least), worse(r.Most, b.Most), max(r.Seconds, b.Seconds)}
}

func mergeParts(list, later []Point) []Point {
	for i := range later {
		l := &later[i]
		if at := slices.IndexFunc(list, func(p Point) bool { return p.Name == l.Name }); at >= 0 {
			list[at].Seconds += l.Seconds
			list[at].combine(l, Amount.merge, Range.merge, Range.merge)
		} else {
			list = append(list, *l)
		}
	}
	return FoldParts(list, nil)
}

// FoldParts sorts parts by name, and merges unwanted ones and those beyond job.MaxParts.
func FoldParts(list []Point, keep func(name string) bool) []Point {
	rest := Point{}
	out := list[:0:0]
	for i := range list {
		if p := &list[i]; p.Name != job.OtherParts && len(out) < job.MaxParts && (keep == nil || keep(p.Name)) {
			out = append(out, *p)
		} else {
			rest.Name = job.OtherParts
			rest.beside(p)
		}
	}
	slices.SortFunc(out, func(a, b Point) int { return strings.Compare(a.Name, b.Name) })
	if rest.Name != "" {
		out = append(out, rest)
	}
	return out
}

// EntryKind separates events from log lines.
type EntryKind string

const (
	KindEvent EntryKind = "event"
	KindLog   EntryKind = "log"
)

// Entry is an event or a log line of a job.
type Entry struct {
	At     time.Time `json:"at"`
	Kind   EntryKind `json:"kind"`
	Level  string    `json:"level"` // info, warn or error
	Text   string    `json:"text"`
	Fields []Field   `json:"fields,omitempty"`
	Worker string    `json:"worker"`
	// Lost counts the entries before this one that could not be stored.
	Lost int64 `json:"lost,omitempty"`
	// Seq is the sequence in the store.
	Seq uint64 `json:"seq"`
}

type Field struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

// MaxEntry bounds a stored entry, in bytes.
const MaxEntry = 4 << 10

// Page selects up to Limit entries before one; 0 is the end.
type Page struct {
	Before uint64
	Limit  int
}

type AlertKind string

const (
	AlertLag        AlertKind = "lag"         // the target is too far behind
	AlertWindow     AlertKind = "window"      // the source's oplog will soon overwrite what the job needs
	AlertFailed     AlertKind = "failed"      // the job has ended with an error
	AlertConflict   AlertKind = "conflict"    // the target refuses documents
	AlertNoProgress AlertKind = "no-progress" // a worker has the job, and nothing changes
	AlertNoWorker   AlertKind = "no-worker"   // no worker runs the job
)

func AlertKinds() []AlertKind {
	return []AlertKind{AlertLag, AlertWindow, AlertFailed, AlertConflict, AlertNoProgress, AlertNoWorker}
}

// Alert tells operators about a job. It fires once and is resolved once.
type Alert struct {
	ID   string    `json:"id"`
	Kind AlertKind `json:"kind"`
	Job  string    `json:"job"`
	UID  string    `json:"uid,omitempty"`
	// Text says what is wrong, Hint what to do, both as of the time when the alert fired.
	Text    string    `json:"text"`
	Hint    string    `json:"hint"`
	FiredAt time.Time `json:"firedAt"`
	// ResolvedAt is nil while the alert fires. Ending says why it ended.
	ResolvedAt *time.Time `json:"resolvedAt"`
	Ending     string     `json:"ending"`
	// Receivers were notified of the present state.
	Notified bool `json:"told,omitempty"`
	// Mark counts the refused documents of which receivers were notified.
	Mark int64 `json:"mark,omitempty"`
	Stored
}

// Shown returns what users and receivers get. text makes foreign text harmless.
func (a *Alert) Shown(text func(string) string) Alert {
	return Alert{ID: a.ID, Kind: a.Kind, Job: a.Job, Text: text(a.Text), Hint: text(a.Hint), FiredAt: a.FiredAt,
		ResolvedAt: a.ResolvedAt, Ending: text(a.Ending)}
}

func (a *Alert) Firing() bool { return a.ResolvedAt == nil }

// Since returns the time of the last change.
func (a *Alert) Since() time.Time {
	if a.Firing() {
		return a.FiredAt
	}
	return *a.ResolvedAt
}
