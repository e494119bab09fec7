package verify

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/transform"
)

// Borrow reads slices for a comparison that another process makes, whom ask reaches, until
// there are no more for a while. spec is that of the comparison. An error says why it has
// ended before; the lender reads then what was lent. Nothing is written anywhere.
func Borrow(ctx context.Context, spec Spec, worker, version string, ask Ask) error {
	b := &borrowing{spec: spec, worker: worker, version: version, id: rand.Text(), asking: ask, loans: map[string]bool{}}
	b.spec.Options = spec.withDefaults()
	b.log = b.spec.Log
	err := b.run(ctx)
	b.leave(ctx)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return err
}

// borrowing is one process' reading for another one.
type borrowing struct {
	spec            Spec
	worker, version string
	id              string
	asking          Ask
	log             *slog.Logger

	keys  transform.Keys
	rules *transform.Set
	e     *Engine

	mu    sync.Mutex
	loans map[string]bool
}

// errRefused is what a lender's refusal is to a borrower.
var errRefused = errors.New("the verification's worker lends nothing")

func (b *borrowing) run(ctx context.Context) (err error) {
	b.spec.Rules.Secret = b.keys.Remember(b.spec.Rules.Secret)
	if b.rules, err = transform.New(b.spec.Rules); err != nil {
		return err
	}
	first, err := b.next(ctx)
	if err != nil || first == nil {
		return err
	}
	sides, err := b.spec.connect(ctx)
	if err != nil {
		return err
	}
	defer closeAll(sides)
	b.e = New(sides[source], sides[target], b.spec.Options)
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	every := first.Lease / 5
	beats.Go(func() { b.beat(beating, every) })
	defer beats.Wait()
	defer stop()
	g, ctx := errgroup.WithContext(ctx)
	for range max(b.spec.Workers/2, 1) { // each of them reads as much as is asked for at a time
		begin := first
		first = nil
		g.Go(func() error { return b.work(ctx, begin) })
	}
	return g.Wait()
}

// work reads slices, one after the other; the first may be there already.
func (b *borrowing) work(ctx context.Context, l *lentSlice) (err error) {
	for {
		if l == nil {
			if l, err = b.next(ctx); err != nil || l == nil {
				return err
			}
		}
		if err := b.read(ctx, l); err != nil {
			return err
		}
		l = nil
	}
}

// idle is how long a borrower stays with nothing to read: the next collection may have
// something.
const idle = 3 * time.Second

// next borrows a slice; nil when there is none for a while.
func (b *borrowing) next(ctx context.Context) (*lentSlice, error) {
	for began := time.Now(); ; {
		r, err := b.ask(ctx, loanAsk{Kind: askSlice, Version: b.version})
		if err != nil || r.Slice == nil && !r.More {
			return nil, err
		}
		if l := r.Slice; l != nil {
			b.mu.Lock()
			b.loans[l.Loan] = true
			b.mu.Unlock()
			return l, nil
		}
		if time.Since(began) > idle {
			return nil, nil
		}
		if err := pace.Pause(ctx, idle/20); err != nil {
			return nil, err
		}
	}
}

// read reads a slice and sends what it sums up to.
func (b *borrowing) read(ctx context.Context, l *lentSlice) error {
	if err := b.fits(l); err != nil {
		return err
	}
	p := pairOf(l.SourceNS, b.rules)
	ns := [...]string{p.SourceNS, p.TargetNS}[l.Side]
	var t *table
	err := again(ctx, b.log, "read a part of "+ns, func() error {
		s, err := b.e.describe(ctx, l.Side, ns)
		if err != nil {
			return err
		}
		s.choose(&p)
		t = &table{groups: make([]group, l.Groups)}
		return s.scanSlice(ctx, l.Slice, sums{seed: uint64(l.Seed), mask: uint64(l.Groups - 1)}.into(t, &b.e.c))
	})
	if err != nil {
		return err
	}
	return b.send(ctx, l.Loan, t)
}

// fits makes sure that the loan is of the clusters and the rules that this process knows.
// Its reads see what the lender has seen.
func (b *borrowing) fits(l *lentSlice) error {
	src, dst := b.e.clusters[source].Info.SetID, b.e.clusters[target].Info.SetID
	switch {
	case l.Side != source && l.Side != target, l.Groups < 1 || l.Groups > mostGroups || l.Groups&(l.Groups-1) != 0:
		return fmt.Errorf("a loan of side %d with %d groups", l.Side, l.Groups)
	case l.SourceSet != src || l.TargetSet != dst:
		return mongo.WithHint(errors.New("its connection strings lead to other clusters than those of the verification's worker"), "give this worker the same ones")
	case l.Rules != b.keys.Mark(b.rules, l.Loan):
		return errors.New("its rules, or the keys that they mask by, are others than those of the verification's worker")
	}
	for at := &b.e.at[l.Side]; ; {
		was := at.Load()
		if was != nil && !was.Before(l.At) || at.CompareAndSwap(was, &l.At) {
			return nil
		}
	}
}

// send sends a table piece by piece.
func (b *borrowing) send(ctx context.Context, loan string, t *table) error {
	for from := 0; from < len(t.groups); {
		end := min(from+pieceGroups, len(t.groups))
		r, err := b.ask(ctx, loanAsk{Kind: askSums, Loan: loan, From: from, Groups: appendGroups(nil, t.groups[from:end]), Docs: t.docs, Bytes: t.bytes})
		switch {
		case err != nil:
			return err
		case r.Gone:
			b.forget(loan)
			return nil
		case r.More: // those of somebody else are arriving
			if err := pace.Pause(ctx, 20*time.Millisecond); err != nil {
				return err
			}
		default:
			from = end
		}
	}
	return errors.New("the lender took all of a slice and does not say so")
}

func (b *borrowing) forget(loan string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.loans, loan)
}

// beat tells the lender again and again that this process lives.
func (b *borrowing) beat(ctx context.Context, every time.Duration) {
	for pace.Pause(ctx, every) == nil {
		if _, err := b.ask(ctx, loanAsk{Kind: askAlive}); err != nil && ctx.Err() == nil {
			b.log.Debug("the lender does not hear that this worker lives", "error", err)
		}
	}
}

// leave gives back what is left.
func (b *borrowing) leave(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	for loan := range b.loans {
		if _, err := b.ask(ctx, loanAsk{Kind: askBack, Loan: loan}); err != nil {
			b.log.Debug("the lender does not hear that this worker leaves", "error", err)
			return
		}
	}
}

// answerPatience is how long a request may take.
const answerPatience = 10 * time.Second

func (b *borrowing) ask(ctx context.Context, a loanAsk) (r loanReply, err error) {
	a.Worker, a.Borrower = b.worker, b.id
	raw, err := bson.Marshal(a)
	if err != nil {
		return r, err
	}
	ctx, cancel := context.WithTimeout(ctx, answerPatience)
	defer cancel()
	raw, err = b.asking(ctx, raw)
	if err == nil {
		err = bson.Unmarshal(raw, &r)
	}
	switch {
	case err != nil:
		return r, fmt.Errorf("ask the verification's worker: %w", err)
	case r.Refused != "":
		return r, fmt.Errorf("%w: %s", errRefused, r.Refused)
	}
	return r, nil
}
