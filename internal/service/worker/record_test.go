package worker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// keep is a store that may be away.
type keep struct {
	mu      sync.Mutex
	away    bool
	entries []service.Entry
	points  map[time.Duration][]service.Point
	asked   chan struct{} // takes a word at each write that fails
}

func newKeep() *keep {
	return &keep{points: map[time.Duration][]service.Point{}, asked: make(chan struct{}, 1)}
}

func (k *keep) do(f func()) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.away {
		select {
		case k.asked <- struct{}{}:
		default:
		}
		return errors.New("away")
	}
	f()
	return nil
}

func (k *keep) set(away bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.away = away
}

func (k *keep) AddEntry(_ context.Context, _, _ string, e *service.Entry) error {
	return k.do(func() { k.entries = append(k.entries, *e) })
}

func (k *keep) AddPoint(_ context.Context, _, _ string, every time.Duration, p *service.Point) error {
	return k.do(func() { k.points[every] = append(k.points[every], *p) })
}

func (k *keep) LastPoint(_ context.Context, _ string, every time.Duration) (last *service.Point, err error) {
	err = k.do(func() {
		if list := k.points[every]; len(list) > 0 {
			last = &list[len(list)-1]
		}
	})
	return last, err
}

func (k *keep) PointsOf(_ context.Context, _ string, every time.Duration, in service.Period,
	each func(*service.Point)) error {
	return k.do(func() {
		for _, p := range k.points[every] {
			if !p.From.Before(in.From) {
				each(&p)
			}
		}
	})
}

func lengths() []time.Duration { return []time.Duration{service.PointEvery, time.Minute} }

// TestRecorderAway: a store that does not answer holds nothing up; what does not fit into
// the queue is counted, and the newest is written later.
func TestRecorderAway(t *testing.T) {
	k := newKeep()
	r := newRecorder(k, runOf{"u", "r", "w"}, lengths(), slog.New(slog.DiscardHandler))
	r.start(t.Context())
	r.event(slog.LevelInfo, "first")
	for { // until it is written: the queue is empty then
		k.mu.Lock()
		n := len(k.entries)
		k.mu.Unlock()
		if n == 1 {
			break
		}
		time.Sleep(time.Millisecond)
	}
	k.set(true)
	const n = 2000
	log := slog.New(&jobLog{to: r})
	for i := range n {
		log.Info(strings.Repeat("x", 500), "n", i)
	}
	<-k.asked
	r.mu.Lock()
	if r.bytes > recordQueue {
		t.Errorf("%d bytes wait", r.bytes)
	}
	r.mu.Unlock()
	k.set(false)
	r.close()
	last := k.entries[len(k.entries)-1]
	lost := int64(0)
	for _, e := range k.entries {
		lost += e.Lost
	}
	if got := int64(len(k.entries)) - 1 + lost; got != n || lost < n/2 || len(last.Fields) != 1 ||
		last.Fields[0].Value != fmt.Sprint(n-1) || last.Kind != service.KindLog {
		t.Errorf("%d entries, %d lost, the last %+v", len(k.entries), lost, last.Fields)
	}
	r.event(slog.LevelInfo, "late") // nothing hangs
}

// TestRecorderEnds: its end does not wait for a store that is away.
func TestRecorderEnds(t *testing.T) {
	k := newKeep()
	k.set(true)
	r := newRecorder(k, runOf{"u", "r", "w"}, lengths(), slog.New(slog.DiscardHandler))
	r.start(t.Context())
	r.event(slog.LevelInfo, "never")
	r.close()
	if len(k.entries) > 0 {
		t.Errorf("%+v", k.entries)
	}
}

// TestRecorderSafe: entries show no secret and no endless text.
func TestRecorderSafe(t *testing.T) {
	k := newKeep()
	r := newRecorder(k, runOf{"u", "r", "w"}, lengths(), slog.New(slog.DiscardHandler))
	r.hide("mongodb://ada:p%40ss-word@a:1,b:2/?replicaSet=rs")
	r.hide("a key of a mask\n")
	r.hide("")
	r.hide("a")
	r.start(t.Context())
	log := slog.New(&jobLog{to: r}).With("side", "source").WithGroup("of")
	log.Error("reach mongodb://ada:p%40ss-word@a:1,b:2/?replicaSet=rs", "error", errors.New("p@ss-word is wrong"),
		slog.Group("g", "k", "p%40ss-word, a key of a mask"), "bad", "\xff")
	log.Warn(strings.Repeat("\x00", 5000), "a", strings.Repeat("\x01", 5000))
	log.Debug("no")
	r.close()
	if len(k.entries) != 2 {
		t.Fatalf("%+v", k.entries)
	}
	text := fmt.Sprintf("%+v", k.entries)
	for _, secret := range []string{"p@ss", "p%40ss", "of a mask"} {
		if strings.Contains(text, secret) {
			t.Errorf("%s is shown: %.600q", secret, text)
		}
	}
	e := k.entries[0]
	if e.Level != "error" || !strings.HasPrefix(e.Text, "reach mongodb://a:1,b:2") || e.Worker != "w" ||
		len(e.Fields) != 4 || e.Fields[0] != (service.Field{Name: "side", Value: "source"}) || e.Fields[2].Name != "of.g.k" ||
		e.Fields[3].Value != "\ufffd" {
		t.Errorf("%+v", e)
	}
	if e = k.entries[1]; r.fit(&e) > service.MaxEntry {
		t.Errorf("%d bytes", r.fit(&e))
	}
}

// TestRecorderRolls: longer points hold what shorter ones do, once, also those of a worker
// that was killed before it had put them together.
func TestRecorderRolls(t *testing.T) {
	k := newKeep()
	begin := time.Now().UTC().Truncate(time.Hour).Add(-2 * time.Hour)
	point := func(i int) *service.Point {
		at := begin.Add(time.Duration(i) * service.PointEvery)
		return &service.Point{From: at, To: at.Add(service.PointEvery), Seconds: 10, Docs: service.NewAmount(1, 10),
			Lag: service.NewRange(float64(i), 10)}
	}
	one := func(run string, from, to int, end func(*recorder)) {
		r := newRecorder(k, runOf{"u", run, "w"}, lengths(), slog.New(slog.DiscardHandler))
		r.start(t.Context())
		for i := from; i < to; i++ {
			r.point(point(i))
		}
		end(r)
	}
	killed := func(r *recorder) {
		for {
			k.mu.Lock()
			n := len(k.points[service.PointEvery])
			k.mu.Unlock()
			if n == 27 {
				break
			}
			time.Sleep(time.Millisecond)
		}
		r.cancel()
		<-r.done
	}
	one("a", 0, 9, (*recorder).close)   // half a minute is left over
	one("b", 9, 27, killed)             // two are written, and half of one is not
	one("c", 60, 64, (*recorder).close) // later
	total, seconds := int64(0), 0.0
	for _, p := range k.points[time.Minute] {
		total, seconds = total+p.Docs.Sum, seconds+p.Seconds
		if p.To.Sub(p.From) > time.Minute || p.From.Truncate(time.Minute) != p.To.Add(-time.Nanosecond).
			Truncate(time.Minute) {
			t.Errorf("%s to %s", p.From, p.To)
		}
	}
	if total != 31 || seconds != 310 {
		t.Errorf("%d documents in %.0f seconds: %+v", total, seconds, k.points[time.Minute])
	}
}
