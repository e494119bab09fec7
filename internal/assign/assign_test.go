package assign_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/millrace/millrace/internal/assign"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/assigntest"
)

const lease = time.Minute

// work is numbers that are to be reported.
type work struct {
	*assign.Owner[*number, *done]
	assigntest.Counter
	keys transform.Keys

	mu       sync.Mutex
	wait     []int
	reported []int
	alone    []int // returned for the owner alone
	noted    []string
	revoking chan struct{} // closed when Revoke may return; nil is at once
	revoked  int
}

type number struct {
	*work
	n int
}

type done struct {
	N int `bson:"n"`
}

func (p *number) ID() string { return fmt.Sprint(p.n) }
func (p *number) Unit() any  { return &done{p.n} }

func (p *number) Return(alone bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if alone {
		p.alone = append(p.alone, p.n)
		return
	}
	p.wait = append(p.wait, p.n)
}

func (*work) Closed() string { return "" }
func (*work) Terms() any     { return nil }

func (w *work) Waiting() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.wait)
}

func (w *work) Next(string) (*number, bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.wait) == 0 {
		return nil, true
	}
	n := w.wait[0]
	w.wait = w.wait[1:]
	return &number{w, n}, true
}

func (w *work) Report(_ context.Context, m *assign.Member[*number], r *done) (bool, error) {
	if r == nil {
		return false, nil
	}
	return false, m.Update(func(parts map[string]*number, f *assign.Figures) error {
		p := parts[fmt.Sprint(r.N)]
		if p == nil {
			return errors.New("that is of somebody else")
		}
		delete(parts, fmt.Sprint(r.N))
		f.Docs++
		w.mu.Lock()
		defer w.mu.Unlock()
		w.reported = append(w.reported, p.n)
		return nil
	})
}

func (w *work) Note(_ context.Context, tokens []string) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.noted = tokens
	return nil
}

func (w *work) Revoke(ctx context.Context, m *assign.Member[*number]) error {
	w.mu.Lock()
	w.revoked++
	noted := m == nil && len(w.noted) == 0 || m != nil && !slices.Contains(w.noted, m.Token)
	w.mu.Unlock()
	if !noted {
		return errors.New("it is noted still")
	}
	if w.revoking != nil {
		select {
		case <-w.revoking:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

// figures are those of a worker.
func (w *work) figures(worker string) assign.Figures {
	_, list := w.Status()
	return assigntest.Of(worker, list)
}

// begin runs the work until stop, which returns what it ended with.
func begin(t *testing.T, w *work, n int) (stop func() error) {
	for i := range n {
		w.wait = append(w.wait, i)
	}
	common := assign.Common{Source: &mongo.Cluster{}, Target: &mongo.Cluster{}, Rules: rules(t), Keys: &w.keys}
	w.Owner = assign.NewOwner(*w.Offer(lease), common, w, slog.New(slog.DiscardHandler), map[string]*assign.Figures{})
	over, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- w.Run(t.Context(), func(ctx context.Context) error {
			select {
			case <-over:
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		})
	}()
	synctest.Wait()
	return func() error {
		close(over)
		return <-ended
	}
}

func rules(t *testing.T) *transform.Set {
	t.Helper()
	set, err := transform.New(transform.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return set
}

type assistant = assign.Assistant[struct{}, done]

// assist has a worker assist.
func (w *work) assist(ctx context.Context, worker string, do func(context.Context, *assistant) error) error {
	j := assign.Joining{Worker: worker, Version: assigntest.Version, Ask: w.Ask, Log: slog.New(slog.DiscardHandler),
		Idle: lease}
	return assign.Assist(ctx, j, do)
}

// all reports parts until there are no more.
func all(ctx context.Context, a *assistant) error {
	parts := a.Group("")
	if err := a.CheckClusters(&mongo.Cluster{}, &mongo.Cluster{}); err != nil {
		return err
	}
	for {
		p, err := parts.Next(ctx)
		if err != nil || p == nil {
			return err
		}
		if _, err := a.Report(ctx, p); err != nil {
			return err
		}
	}
}

// TestSilent: what an assistant has that says nothing is taken back once nothing of it can arrive,
// another one does it, and nothing that comes later counts.
func TestSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{revoking: make(chan struct{})}
		stop := begin(t, w, 3)
		d := &assigntest.Deaf{Ask: w.Ask}
		ended := make(chan error, 1)
		go func() {
			j := assign.Joining{Worker: "deaf", Version: assigntest.Version, Ask: d.Way, Log: slog.New(slog.DiscardHandler)}
			ended <- assign.Assist(t.Context(), j, func(ctx context.Context, a *assistant) error {
				p, err := a.Group("").Next(ctx)
				if err != nil {
					return err
				}
				d.From.Store(true)
				time.Sleep(2 * lease)
				d.From.Store(false)
				_, err = a.Report(ctx, p)
				return err
			})
		}()
		time.Sleep(lease + lease/2)
		synctest.Wait()
		if f := w.figures("deaf"); w.Waiting() != 2 || f.Parts != 1 || !strings.Contains(f.Why, "nothing was heard") {
			t.Errorf("%d wait while it may do something still: %+v", w.Waiting(), f)
		}
		close(w.revoking)
		synctest.Wait()
		if f := w.figures("deaf"); w.Waiting() != 3 || f.Parts != 0 {
			t.Errorf("%d wait: %+v", w.Waiting(), f)
		}
		if err := <-ended; !errors.Is(err, assign.ErrRefused) {
			t.Errorf("the late one ended with %v", err)
		}
		if err := w.assist(t.Context(), "other", all); err != nil {
			t.Error(err)
		}
		if f := w.figures("other"); f.Docs != 3 || len(w.reported) != 3 || w.figures("deaf").Docs != 0 {
			t.Errorf("%v were reported: %+v", w.reported, f)
		}
		if err := stop(); err != nil || len(w.noted) != 0 {
			t.Errorf("%v, noted are %v", err, w.noted)
		}
	})
}

// TestUnanswered: an assistant that gets no answer ends before its parts are taken back.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{}
		stop := begin(t, w, 1)
		began := time.Now()
		dead := false
		j := assign.Joining{Worker: "one", Version: assigntest.Version, Log: slog.New(slog.DiscardHandler)}
		j.Ask = func(ctx context.Context, request []byte) ([]byte, error) {
			if dead {
				return nil, errors.New("no answer")
			}
			return w.Ask(ctx, request)
		}
		err := assign.Assist(t.Context(), j, func(ctx context.Context, _ *assistant) error {
			dead = true
			<-ctx.Done()
			return ctx.Err()
		})
		if took := time.Since(began); mongo.Classify(err) != mongo.ClassRetry || took >= lease {
			t.Errorf("after %s: %v", took, err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestLeaves: what one has that ends is returned, to the owner alone if the reason is in the data; one
// that begins again has nothing of before.
func TestLeaves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{}
		stop := begin(t, w, 1)
		for _, tc := range []struct {
			why   error
			alone bool
		}{{mongo.Retry("it passes", nil, ""), false}, {assign.ErrUnfit, false}, {assign.Refusal("no"), false},
			{context.Canceled, false}, {errors.New("such a document"), true}} {
			err := w.assist(t.Context(), "one", func(ctx context.Context, a *assistant) error {
				if p, err := a.Group("").Next(ctx); err != nil || p == nil {
					t.Errorf("no part, %v", err)
				}
				return tc.why
			})
			synctest.Wait()
			if !errors.Is(err, tc.why) || len(w.alone) == 1 != tc.alone || w.figures("one").Parts != 0 {
				t.Errorf("%v: ended with %v, %v alone, %+v", tc.why, err, w.alone, w.figures("one"))
			}
		}
		w.wait = []int{5}
		err := w.assist(t.Context(), "one", func(ctx context.Context, a *assistant) error {
			if _, err := a.Group("").Next(ctx); err != nil {
				return err
			}
			if err := w.assist(t.Context(), "one", all); err != nil {
				t.Error(err)
			}
			_, err := a.Report(ctx, &done{5})
			return err
		})
		if !errors.Is(err, assign.ErrRefused) || !slices.Equal(w.reported, []int{5}) {
			t.Errorf("%v were reported, %v", w.reported, err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestUnfit: who is of another version or has other rules does not assist, and the owner knows why.
func TestUnfit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{}
		stop := begin(t, w, 1)
		for worker, tc := range map[string]struct {
			version, why string
			rules        transform.Config
		}{
			"version": {"other", "of version other", transform.Config{}},
			"rules":   {assigntest.Version, "its rules", transform.Config{Include: []string{"a.*"}}},
			"broken":  {assigntest.Version, "a.b", transform.Config{Filter: []string{"a.b={"}}},
		} {
			j := assign.Joining{Worker: worker, Version: tc.version, Ask: w.Ask, Rules: tc.rules,
				Log: slog.New(slog.DiscardHandler)}
			err := assign.Assist(t.Context(), j, func(context.Context, *assistant) error {
				t.Error("it assists")
				return nil
			})
			synctest.Wait()
			if err == nil || !strings.Contains(err.Error(), tc.why) || !strings.Contains(w.figures(worker).Why, tc.why) {
				t.Errorf("%s: %v, noted is %q", worker, err, w.figures(worker).Why)
			}
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestFails: what ends the work ends its run, with that cause; nothing is waited for then.
func TestFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &work{revoking: make(chan struct{})}
		stop := begin(t, w, 1)
		broken := errors.New("broken")
		if err := w.assist(t.Context(), "one", func(context.Context, *assistant) error { return nil }); err != nil {
			t.Error(err)
		}
		w.Fail(broken)
		if err := stop(); !errors.Is(err, broken) {
			t.Error(err)
		}
	})
}
