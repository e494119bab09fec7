package worker

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/service"
)

const (
	// recordQueue bounds unwritten records of a job, in bytes.
	recordQueue = 256 << 10
	// pointSize and partSize, of a shard or router, are estimates of stored points.
	pointSize   = 512
	partSize    = 384
	recordTry   = 5 * time.Second
	recordPause = 500 * time.Millisecond
	// recordEnd bounds the wait for unwritten records at the end of a job.
	recordEnd = 3 * time.Second
	// maxText bounds a text of an entry, in bytes.
	maxText   = 1000
	maxFields = 12
)

type records interface {
	AddEntry(ctx context.Context, uid, id string, e *service.Entry) error
	AddPoint(ctx context.Context, uid, id string, every time.Duration, p *service.Point) error
	LastPoint(ctx context.Context, uid string, every time.Duration) (*service.Point, error)
	PointsOf(ctx context.Context, uid string, every time.Duration, in service.Period, each func(*service.Point)) error
}

// recorder writes points and entries of a job in order. Callers never wait: a full queue drops its oldest record.
// It is safe for concurrent use.
type recorder struct {
	to  records
	log *slog.Logger // does not write to this recorder
	runOf

	mu     sync.Mutex
	queue  []record
	bytes  int
	lost   int64
	hidden secrets
	closed bool
	wake   chan struct{} // signals new records

	n       int // counts records for their ids
	rollers []*roller
	done    chan struct{}
	cancel  context.CancelFunc
}

type runOf struct{ uid, run, worker string }

type record struct {
	point *service.Point
	entry *service.Entry
	size  int
}

// newRecorder writes points of spans, the shortest first.
func newRecorder(to records, of runOf, spans []time.Duration, log *slog.Logger) *recorder {
	r := &recorder{to: to, runOf: of, log: log, wake: make(chan struct{}, 1), done: make(chan struct{})}
	for _, every := range spans[1:] {
		r.rollers = append(r.rollers, &roller{every: every})
	}
	return r
}

func (r *recorder) start(ctx context.Context) {
	ctx, r.cancel = context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		defer close(r.done)
		r.write(ctx)
	}()
}

// close waits for the queue, at most recordEnd.
func (r *recorder) close() {
	r.mu.Lock()
	r.closed = true
	r.mu.Unlock()
	r.awake()
	late := time.AfterFunc(recordEnd, r.cancel)
	<-r.done
	late.Stop()
	r.cancel()
}

func (r *recorder) awake() {
	select {
	case r.wake <- struct{}{}:
	default:
	}
}

func (r *recorder) hide(secret string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.hidden.add(secret)
}

func (r *recorder) event(level slog.Level, text string, fields ...service.Field) {
	r.entry(&service.Entry{At: time.Now().UTC(), Kind: service.KindEvent, Level: levelName(level), Text: text,
		Fields: fields})
}

func levelName(l slog.Level) string {
	switch {
	case l >= slog.LevelError:
		return "error"
	case l >= slog.LevelWarn:
		return "warn"
	}
	return "info"
}

func (r *recorder) entry(e *service.Entry) {
	e.Worker = r.worker
	r.mu.Lock()
	defer r.mu.Unlock()
	size := r.fit(e)
	r.put(record{entry: e, size: size})
}

func (r *recorder) point(p *service.Point) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.put(record{point: p, size: pointSize + partSize*(len(p.Shards)+len(p.Routers))})
}

func (r *recorder) put(one record) {
	if r.closed {
		return
	}
	r.queue, r.bytes = append(r.queue, one), r.bytes+one.size
	for r.bytes > recordQueue {
		if r.queue[0].entry != nil {
			r.lost += 1 + r.queue[0].entry.Lost
		}
		r.bytes -= r.queue[0].size
		r.queue = r.queue[1:]
	}
	r.awake()
}

// fit makes an entry safe and small, and returns its size. mu is held.
func (r *recorder) fit(e *service.Entry) int {
	e.Text = r.safe(e.Text)
	e.Fields = e.Fields[:min(len(e.Fields), maxFields)]
	for i := range e.Fields {
		e.Fields[i].Name, e.Fields[i].Value = r.safe(e.Fields[i].Name), r.safe(e.Fields[i].Value)
	}
	for {
		raw, err := json.Marshal(e)
		switch {
		case err == nil && len(raw) <= service.MaxEntry:
			return len(raw)
		case len(e.Fields) > 0:
			e.Fields = e.Fields[:len(e.Fields)-1]
		default: // characters that take six bytes each
			e.Text = service.Short(e.Text, len(e.Text)/2)
		}
	}
}

// safe removes secrets and bounds a text. mu is held.
func (r *recorder) safe(text string) string {
	return service.Short(r.hidden.hide(text), maxText)
}

// next waits for the oldest record; ok is false at the end.
func (r *recorder) next(ctx context.Context) (one record, ok bool) {
	for {
		r.mu.Lock()
		if len(r.queue) > 0 {
			one, r.queue = r.queue[0], r.queue[1:]
			if r.bytes -= one.size; one.entry != nil {
				one.entry.Lost, r.lost = r.lost, 0
			}
			r.mu.Unlock()
			return one, true
		}
		closed := r.closed
		r.mu.Unlock()
		if closed {
			return one, false
		}
		select {
		case <-r.wake:
		case <-ctx.Done():
			return one, false
		}
	}
}

func (r *recorder) write(ctx context.Context) {
	if r.again(ctx, r.catchUp) != nil {
		return
	}
	for {
		one, ok := r.next(ctx)
		if !ok {
			break
		}
		if one.entry != nil {
			id := r.id()
			if r.again(ctx, func(ctx context.Context) error { return r.to.AddEntry(ctx, r.uid, id, one.entry) }) != nil {
				return
			}
		} else if r.addPoint(ctx, service.PointEvery, one.point) != nil || r.roll(ctx, one.point) != nil {
			return
		}
	}
	for _, o := range r.rollers {
		if r.addPoint(ctx, o.every, o.take()) != nil {
			return
		}
	}
}

func (r *recorder) id() string {
	r.n++
	return fmt.Sprintf("%s-%d", r.run, r.n)
}

func (r *recorder) addPoint(ctx context.Context, every time.Duration, p *service.Point) error {
	if p == nil {
		return nil
	}
	id := r.id()
	return r.again(ctx, func(ctx context.Context) error { return r.to.AddPoint(ctx, r.uid, id, every, p) })
}

func (r *recorder) roll(ctx context.Context, p *service.Point) error {
	for _, o := range r.rollers {
		if err := r.addPoint(ctx, o.every, o.add(p)); err != nil {
			return err
		}
	}
	return nil
}

// catchUp merges the points of an earlier worker, which may have been killed.
func (r *recorder) catchUp(ctx context.Context) error {
	for _, o := range r.rollers {
		last, err := r.to.LastPoint(ctx, r.uid, o.every)
		if err != nil {
			return err
		}
		now := time.Now()
		from := now.Add(-catchUpAge)
		if last != nil {
			from = last.To
		}
		var ended []*service.Point
		o.clear()
		err = r.to.PointsOf(ctx, r.uid, service.PointEvery, service.Period{From: from, To: now.Add(time.Hour)},
			func(p *service.Point) {
				if done := o.add(p); done != nil {
					ended = append(ended, done)
				}
			})
		if err != nil {
			return err
		}
		for _, p := range ended {
			if err := r.to.AddPoint(ctx, r.uid, fmt.Sprintf("%s-%s-%d", r.run, o.every, p.From.UnixMilli()), o.every,
				p); err != nil {
				return err
			}
		}
	}
	return nil
}

const catchUpAge = 30 * 24 * time.Hour

// again repeats do until it succeeds or ctx ends.
func (r *recorder) again(ctx context.Context, do func(context.Context) error) error {
	warned := false
	return retry.Again(ctx, recordPause, recordPause, func(err error, _ time.Duration) bool {
		if !warned && ctx.Err() == nil {
			r.log.Warn("the figures and the log of a job cannot be stored; trying again", "error", err)
		}
		warned = true
		return true
	}, func() error {
		try, cancel := context.WithTimeout(ctx, recordTry)
		defer cancel()
		return do(try)
	})
}

type roller struct {
	every time.Duration
	begin time.Time
	now   *service.Point
}

// add returns the longer point that ended before p.
func (o *roller) add(p *service.Point) (ended *service.Point) {
	if begin := p.From.Truncate(o.every); !begin.Equal(o.begin) {
		ended, o.begin = o.take(), begin
	}
	if o.now == nil {
		o.now = new(service.Point)
	}
	o.now.Merge(p)
	return ended
}

func (o *roller) take() *service.Point {
	p := o.now
	o.clear()
	return p
}

func (o *roller) clear() { o.now, o.begin = nil, time.Time{} }

type meter struct {
	every time.Duration
	at    time.Time
	done  job.Done
	cpu   float64
}

func newMeter(every time.Duration) *meter {
	return &meter{every: every, at: time.Now(), cpu: procstat.Read().CPUSeconds}
}

// look returns a point when one is due, or at the end, else nil.
func (m *meter) look(s *job.Status, done job.Done, end bool) *service.Point {
	now := time.Now()
	n := now.Sub(m.at).Seconds()
	if n <= 0 || !end && n < (m.every-lookEvery/2).Seconds() {
		return nil
	}
	use := procstat.Read()
	p := figures("", n, done.Docs-m.done.Docs, done.Bytes-m.done.Bytes, done.Operations-m.done.Operations,
		done.AppliedBytes-m.done.AppliedBytes)
	// The wall clock may have been set since From.
	p.From, p.To = m.at.UTC(), m.at.Add(now.Sub(m.at)).UTC()
	p.Lag, p.Window = service.NewRange(s.Follow.LagSeconds, n), service.NewRange(s.Follow.WindowSeconds, n)
	p.CPU, p.Memory = service.NewRange(100*max(use.CPUSeconds-m.cpu, 0)/n, n), service.NewRange(float64(use.Resident), n)
	for _, d := range done.Shards {
		was := named(m.done.Shards, d.Shard, func(o progress.ShardDone) string { return o.Shard })
		part := figures(d.Shard, n, d.Docs-was.Docs, d.Bytes-was.Bytes, d.Changes-was.Changes, d.ChangeBytes-was.ChangeBytes)
		if s := named(s.Shards, d.Shard, func(o progress.Shard) string { return o.Shard }); s.Shard != "" {
			part.Lag, part.Window = service.NewRange(s.LagSeconds, n), service.NewRange(s.WindowSeconds, n)
		}
		p.Shards = append(p.Shards, part)
	}
	for _, d := range done.Routers {
		was := named(m.done.Routers, d.Router, func(o progress.RouterDone) string { return o.Router })
		p.Routers = append(p.Routers, figures(d.Router, n, 0, 0, d.Commands-was.Commands, d.Bytes-was.Bytes))
	}
	m.at, m.done, m.cpu = now, done, use.CPUSeconds
	return &p
}

func figures(name string, seconds float64, done ...int64) service.Point {
	amount := func(i int) service.Amount { return service.NewAmount(done[i], seconds) }
	return service.Point{Name: name, Seconds: seconds, Docs: amount(0), Bytes: amount(1), Operations: amount(2),
		AppliedBytes: amount(3)}
}

func named[T any](list []T, name string, of func(T) string) (one T) {
	if i := slices.IndexFunc(list, func(o T) bool { return of(o) == name }); i >= 0 {
		return list[i]
	}
	return one
}
