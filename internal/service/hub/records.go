package hub

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
)

// Subjects have the UID of a definition, so a new job of a name begins without records.
const (
	streamPoints = "millrace-points"
	streamEvents = "millrace-events"

	subjectEvents = "millrace.events"

	keepRecords = 30 * 24 * time.Hour
	// maxOfJob bounds the entries of a job and kind.
	maxOfJob = 2000
)

// series has points of one length. Workers merge shorter ones, so that a month is read in few points.
type series struct {
	every           time.Duration
	stream, subject string
	bytes           int64
}

// allSeries has the finest first. A point takes 200 bytes, a longer one 350: a month of 20 jobs fits into the first,
// of 150 into the second, of 1000 into the third. The oldest are dropped.
func allSeries() []series {
	return []series{
		{service.PointEvery, streamPoints, "millrace.points", 1 << 30},
		{5 * time.Minute, streamPoints + "-5m", "millrace.points5m", 512 << 20},
		{time.Hour, streamPoints + "-1h", "millrace.points1h", 256 << 20},
	}
}

// Records has points and logs of jobs. It is safe for concurrent use.
type Records struct {
	*streams
	points []series // the finest first
	log    trail[service.Entry]
}

func (r *Records) forget(ctx context.Context, uid string) error {
	purge := func(stream, subject string) error {
		s, err := r.js.Stream(ctx, stream)
		if err == nil {
			err = s.Purge(ctx, jetstream.WithPurgeSubject(subject))
		}
		return mongo.Wrap(err, "empty %s of stream %s", subject, stream)
	}
	for _, s := range r.points {
		if err := purge(s.stream, s.subject+"."+uid); err != nil {
			return err
		}
	}
	return purge(streamEvents, subjectEvents+".*."+uid)
}

// AddEntry stores an entry once for each id.
func (r *Records) AddEntry(ctx context.Context, uid, id string, e *service.Entry) error {
	return r.publish(ctx, subjectEvents+"."+string(e.Kind)+"."+uid, id, e)
}

// Entries returns a page of a job's entries, the newest first; kind "" is both.
func (r *Records) Entries(ctx context.Context, uid string, kind service.EntryKind, page service.Page) ([]service.Entry,
	error) {
	list, err := r.log.newest(ctx, subjectEvents+"."+cmp.Or(string(kind), "*")+"."+uid, page)
	return list, mongo.Wrap(err, "read the log of a job")
}

const noJob = "-"

// Audit is the audit trail. It is safe for concurrent use.
type Audit struct {
	trail[service.Change]
}

// Note adds an entry. It returns when the entry is stored.
func (a *Audit) Note(ctx context.Context, c *service.Change) error {
	about := cmp.Or(c.Job, noJob)
	raw, err := encode(c)
	if err == nil {
		_, err = a.js.Publish(ctx, subjectAudit+"."+about, raw)
	}
	return mongo.Wrap(err, "note %s of %s in the audit trail", c.What, about)
}

// Trail returns a page of entries, the newest first; job "" is all jobs.
func (a *Audit) Trail(ctx context.Context, job string, page service.Page) ([]service.Change, error) {
	list, err := a.newest(ctx, subjectAudit+"."+cmp.Or(job, ">"), page)
	return list, mongo.Wrap(err, "read the audit trail")
}

const clockSlack = time.Minute

// storedPoint has short names and rounded numbers.
type storedPoint struct {
	From int64 `json:"t"` // milliseconds
	To   int64 `json:"e"`
	storedFigures

	Shards  []storedPart `json:"s,omitempty"`
	Routers []storedPart `json:"r,omitempty"`
}

// storedPart is a shard or a router, with its seconds if they differ from the point's.
type storedPart struct {
	Name string `json:"s"`
	storedFigures
}

type storedFigures struct {
	Seconds figure  `json:"n,omitempty"`
	Docs    figures `json:"d,omitempty"`
	Bytes   figures `json:"b,omitempty"`
	Ops     figures `json:"o,omitempty"`
	Applied figures `json:"a,omitempty"`
	Lag     figures `json:"l,omitempty"`
	Window  figures `json:"w,omitempty"`
	CPU     figures `json:"c,omitempty"`
	Memory  figures `json:"m,omitempty"`
}

// figure is written as an integer, or rounded to five digits.
type figure float64

func (f figure) MarshalJSON() ([]byte, error) {
	v := float64(f)
	if v == math.Trunc(v) && math.Abs(v) < 1<<53 {
		return strconv.AppendInt(nil, int64(v), 10), nil
	}
	return strconv.AppendFloat(nil, v, 'g', 5, 64), nil
}

// figures are sum, lowest and highest rate of an amount, or mean, lowest, highest and seconds of a range.
type figures []figure

func amounts(a service.Amount) figures {
	switch {
	case a == service.Amount{}:
		return nil
	case a.Least == a.Most:
		return figures{figure(a.Sum)}
	}
	return figures{figure(a.Sum), figure(a.Least), figure(a.Most)}
}

func ranges(r service.Range, seconds float64) figures {
	switch {
	case !r.Known():
		return nil
	case r.Least == r.Most && r.Seconds == seconds:
		return figures{figure(r.Mean)}
	}
	return figures{figure(r.Mean), figure(r.Least), figure(r.Most), figure(r.Seconds)}
}

func (f figures) amount(seconds float64) service.Amount {
	if len(f) < 3 {
		return service.NewAmount(int64(append(f, 0)[0]), seconds)
	}
	return service.Amount{Sum: int64(f[0]), Least: float64(f[1]), Most: float64(f[2])}
}

func (f figures) span(seconds float64) service.Range {
	if len(f) < 4 {
		return service.NewRange(float64(append(f, -1)[0]), seconds)
	}
	return service.Range{Mean: float64(f[0]), Least: float64(f[1]), Most: float64(f[2]), Seconds: float64(f[3])}
}

func stored(p *service.Point) *storedPoint {
	parts := func(list []service.Point) (all []storedPart) {
		for i := range list {
			all = append(all, storedPart{list[i].Name, figuresOf(&list[i], p.Seconds)})
		}
		return all
	}
	return &storedPoint{From: p.From.UnixMilli(), To: p.To.UnixMilli(), storedFigures: figuresOf(p, 0),
		Shards: parts(p.Shards), Routers: parts(p.Routers)}
}

// figuresOf omits Seconds if they equal those of the whole point.
func figuresOf(p *service.Point, seconds float64) storedFigures {
	s := p.Seconds
	out := storedFigures{Seconds: figure(s), Docs: amounts(p.Docs), Bytes: amounts(p.Bytes), Ops: amounts(p.Operations),
		Applied: amounts(p.AppliedBytes),
		Lag:     ranges(p.Lag, s), Window: ranges(p.Window, s), CPU: ranges(p.CPU, s), Memory: ranges(p.Memory, s)}
	if s == seconds {
		out.Seconds = 0
	}
	return out
}

func (s *storedPoint) point() *service.Point {
	p := s.named("", 0)
	p.From, p.To = time.UnixMilli(s.From).UTC(), time.UnixMilli(s.To).UTC()
	parts := func(list []storedPart) (all []service.Point) {
		for i := range list {
			all = append(all, list[i].named(list[i].Name, s.Seconds))
		}
		return all
	}
	p.Shards, p.Routers = parts(s.Shards), parts(s.Routers)
	return &p
}

func (s *storedFigures) named(name string, seconds figure) service.Point {
	n := float64(cmp.Or(s.Seconds, seconds))
	return service.Point{Name: name, Seconds: n, Docs: s.Docs.amount(n), Bytes: s.Bytes.amount(n),
		Operations: s.Ops.amount(n), AppliedBytes: s.Applied.amount(n),
		Lag: s.Lag.span(n), Window: s.Window.span(n), CPU: s.CPU.span(n), Memory: s.Memory.span(n)}
}

// Spans returns the lengths of the stored points, the shortest first.
func Spans() (all []time.Duration) {
	for _, s := range allSeries() {
		all = append(all, s.every)
	}
	return all
}

func (r *Records) of(every time.Duration) *series {
	i := slices.IndexFunc(r.points, func(s series) bool { return s.every == every })
	return &r.points[max(i, 0)]
}

// AddPoint stores a point of one of the lengths of Spans, once for each id.
func (r *Records) AddPoint(ctx context.Context, uid, id string, every time.Duration, p *service.Point) error {
	return r.publish(ctx, r.of(every).subject+"."+uid, id, stored(p))
}

// LastPoint returns a job's newest point of one length, nil for none.
func (r *Records) LastPoint(ctx context.Context, uid string, every time.Duration) (*service.Point, error) {
	s := r.of(every)
	stream, err := r.js.Stream(ctx, s.stream)
	if err != nil {
		return nil, fmt.Errorf("look at stream %s: %w", s.stream, err)
	}
	m, err := stream.GetLastMsgForSubject(ctx, s.subject+"."+uid)
	if errors.Is(err, jetstream.ErrMsgNotFound) {
		return nil, nil //nolint:nilnil // none is an answer
	}
	if err != nil {
		return nil, fmt.Errorf("read the last point of stream %s: %w", s.stream, err)
	}
	var one storedPoint
	if err := json.Unmarshal(m.Data, &one); err != nil {
		return nil, fmt.Errorf("read point %d of stream %s: %w", m.Sequence, s.stream, err)
	}
	return one.point(), nil
}

// PointsOf calls each with a job's points of one length that begin in a period.
func (r *Records) PointsOf(ctx context.Context, uid string, every time.Duration, in service.Period,
	each func(*service.Point)) error {
	s := r.of(every)
	return r.forward(ctx, s.stream, s.subject+"."+uid, start{at: in.From.Add(-clockSlack)},
		func(m *jetstream.RawStreamMsg) (bool, error) {
			var one storedPoint
			if err := json.Unmarshal(m.Data, &one); err != nil {
				return false, fmt.Errorf("read point %d: %w", m.Sequence, err)
			}
			p := one.point()
			if !p.From.Before(in.From) && p.From.Before(in.To) {
				each(p)
			}
			// The order is by time, but clocks of workers or of NATS may have been set.
			end := in.To.Add(clockSlack)
			return p.From.After(end) && m.Time.After(end), nil
		})
}

// Points returns figures of a period in spans of step. It reads the longest points up to step, and shorter ones for
// the rest.
func (r *Records) Points(ctx context.Context, uid string, in service.Period, step time.Duration) ([]service.Bucket,
	error) {
	in.From = in.From.Truncate(step)
	buckets := service.NewBuckets(step)
	for i := len(r.points) - 1; i >= 0; i-- {
		if r.points[i].every > step && i > 0 {
			continue
		}
		next := in.From
		err := r.PointsOf(ctx, uid, r.points[i].every, in, func(p *service.Point) {
			buckets.Add(p)
			if p.To.After(next) {
				next = p.To
			}
		})
		if err != nil {
			return nil, err
		}
		in.From = next
	}
	return buckets.List(), nil
}
