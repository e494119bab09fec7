package job

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// mostBorrowers bounds those of one copy.
const mostBorrowers = 64

// lender lends slices of a copy to borrowers, and keeps what it hears of them. Nothing
// that a borrower sends has an effect once its slices are taken back, and none of any
// borrower when the copy is over: the target knows who may write (state.Job.Borrowers),
// borrowers ask it over each connection before they write there, and who is struck off
// has its connections ended.
type lender struct {
	throttle
	*Lending
	terms    loanTerms // but for those of one borrower
	of       engines
	target   *mongo.Cluster
	store    state.Store
	rules    *transform.Set
	keys     *transform.Keys // of rules
	tally    *transform.Tally
	progress *progress.Progress
	log      *slog.Logger
	fail     context.CancelCauseFunc // ends the copy

	ctx     context.Context // of the copy
	serving context.Context // while borrowers are answered
	ending  sync.WaitGroup  // borrowers that are ended, and grants that wait
	noting  sync.Mutex      // one note at a time

	mu        sync.Mutex
	joined    bool                 // somebody has
	borrowers map[string]*borrower // by token
	shown     map[string]*progress.Borrower
}

// borrower is one that has joined.
type borrower struct {
	token, worker string
	heard         time.Time
	loans         map[string]*copy.Loan
	grants        map[int64]chan struct{} // closed when they are granted
	tally         []int64
	ended         bool // nothing is taken from it any more
}

// lends reports that slices of the job may be lent. A write concern of less than a
// majority could lose who was struck off.
func (c *copier) lends() bool {
	majority := c.spec.WriteConcern == "" || c.spec.WriteConcern == "majority"
	return c.spec.Lending != nil && majority && c.source.cluster.Info.Kind != mongo.KindStandalone && c.dst.Info.Kind != mongo.KindStandalone
}

// runLending runs engines whose slices others may borrow: run runs them all.
func (c *copier) runLending(ctx context.Context, of engines, start mongo.OpTime, run func(context.Context) error) error {
	running, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	serving, stop := context.WithCancel(running)
	defer stop()
	l := &lender{throttle: c.throttle, Lending: c.spec.Lending, of: of, target: c.dst, store: c.store, rules: c.rules, keys: &c.keys, tally: c.tally, progress: c.progress, log: c.log,
		fail: cancel, ctx: running, serving: serving, borrowers: map[string]*borrower{}, shown: c.borrowers,
		terms: loanTerms{Job: c.id, Run: c.lease.run, Attempt: c.stored.Fence, SourceSet: c.source.cluster.Info.SetID, TargetSet: c.dst.Info.SetID,
			Others: c.spec.OnExisting == ExistingMerge, Start: start, Lease: c.spec.Lending.Lease}}
	for _, e := range of {
		l.terms.Shards = append(l.terms.Shards, e.shard)
	}
	c.progress.Lending(l.show) // from here on nobody else looks at shown
	l.mu.Lock()
	for _, b := range l.shown {
		b.Slices = 0
	}
	l.mu.Unlock()
	var serve sync.WaitGroup
	serve.Go(func() {
		if err := l.Serve(serving, l.answer); err != nil && serving.Err() == nil {
			c.log.Warn("no slices of the copy can be lent", "error", err)
		}
	})
	serve.Go(func() { l.watch(serving) })
	err := run(running)
	stop()
	serve.Wait()
	if err != nil {
		cancel(err)
	}
	l.ending.Wait()
	if err == nil {
		err = l.close(running)
	}
	if err != nil && running.Err() != nil {
		err = context.Cause(running)
	}
	return err
}

// close makes sure that nothing of a borrower arrives at the target any more.
func (l *lender) close(ctx context.Context) error {
	l.mu.Lock()
	joined := l.joined
	clear(l.borrowers)
	l.mu.Unlock()
	if !joined {
		return nil
	}
	defer l.progress.Wait("")
	return l.strike(ctx, "", func(left []mongo.Connection) {
		l.progress.Wait(fmt.Sprintf("%d connections of workers that have copied a part, to the target to end, one of them from %s", len(left), left[0].Client))
	})
}

// strike notes who may write still, and ends the connections of one who may not, or of
// all.
func (l *lender) strike(ctx context.Context, token string, waiting func([]mongo.Connection)) error {
	if err := l.note(ctx); err != nil {
		return err
	}
	_, err := l.target.EndConnections(ctx, mongo.Borrowers(l.terms.Job, l.terms.Run, l.terms.Attempt, token), waiting, bson.D{{Key: "ping", Value: 1}})
	return mongo.Wrap(err, "end the connections of a worker that has copied a part")
}

// note has the target know who may write.
func (l *lender) note(ctx context.Context) error {
	l.noting.Lock()
	defer l.noting.Unlock()
	tokens := []string{}
	l.mu.Lock()
	for token, b := range l.borrowers {
		if !b.ended {
			tokens = append(tokens, token)
		}
	}
	l.mu.Unlock()
	slices.Sort(tokens)
	return l.store.Note(ctx, bson.D{{Key: "borrowers", Value: tokens}})
}

// watch ends borrowers that say nothing, until ctx ends.
func (l *lender) watch(ctx context.Context) {
	lease := l.Lease
	for pace.Pause(ctx, lease/10) == nil {
		l.mu.Lock()
		silent := slices.Collect(maps.Values(l.borrowers))
		silent = slices.DeleteFunc(silent, func(b *borrower) bool { return b.ended || time.Since(b.heard) < lease })
		l.mu.Unlock()
		for _, b := range silent {
			l.end(b, fmt.Sprintf("nothing was heard of it for %s", lease), false)
		}
	}
}

// end takes back what a borrower has, once nothing of it can arrive any more.
func (l *lender) end(b *borrower, why string, keep bool) {
	l.mu.Lock()
	first := !b.ended
	b.ended = true
	shown := l.shown[b.worker]
	shown.Why = why
	undone := len(b.loans)
	l.mu.Unlock()
	if !first {
		return
	}
	if why != "" {
		l.log.Warn("a worker that copied a part has ended", "worker", b.worker, "why", why, "slices", undone)
	}
	l.ending.Go(func() {
		var once sync.Once // members are looked at side by side, and again and again
		err := l.strike(l.ctx, b.token, func(left []mongo.Connection) {
			once.Do(func() {
				l.log.Warn("a worker that copied a part still has connections to the target; its slices wait for them to end", "worker", b.worker,
					"connections", len(left), "from", left[0].Client, "hint", "end that process")
			})
		})
		if err != nil {
			l.fail(err)
			return
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		for _, loan := range b.loans {
			loan.Return(keep)
		}
		shown.Slices -= len(b.loans)
		clear(b.loans)
		delete(l.borrowers, b.token)
	})
}

// answer answers one request.
func (l *lender) answer(ctx context.Context, request []byte) []byte {
	var a loanAsk
	var r loanReply
	if err := bson.Unmarshal(request, &a); err != nil {
		r.Refused = "the request cannot be read"
	} else {
		r = l.reply(ctx, &a)
	}
	raw, err := bson.Marshal(r)
	if err != nil {
		l.log.Warn("a reply to a worker cannot be written", "error", err)
	}
	return raw
}

func (l *lender) reply(ctx context.Context, a *loanAsk) loanReply {
	switch a.Kind {
	case askJoin:
		return l.join(a)
	case askDecline:
		l.declined(a.Worker, a.Why)
		return loanReply{}
	}
	l.mu.Lock()
	b := l.borrowers[a.Token]
	known := b != nil && !b.ended
	if known {
		b.heard = time.Now()
	}
	l.mu.Unlock()
	if !known {
		return loanReply{Refused: "the job's owner has given this worker up"}
	}
	switch a.Kind {
	case askNext:
		return l.next(b, a.Shard)
	case askGrant:
		return l.grant(ctx, b, a)
	case askReport:
		return l.report(b, a)
	case askLeave:
		l.end(b, a.Why, a.Keep)
		return loanReply{}
	}
	return loanReply{Refused: "there is no request " + a.Kind}
}

const refusedLow = "the job's load is low: its owner copies alone"

// join lets a borrower in.
func (l *lender) join(a *loanAsk) loanReply {
	switch {
	case a.Version != l.Version:
		why := fmt.Sprintf("it is of version %s, the job's owner of version %s", a.Version, l.Version)
		l.declined(a.Worker, why)
		return loanReply{Refused: why}
	case l.low():
		return loanReply{Refused: refusedLow}
	case !slices.ContainsFunc(l.of, engine.ready):
		return loanReply{Refused: "there is nothing to lend yet"}
	}
	b := &borrower{token: state.NewRun(), worker: a.Worker, heard: time.Now(), loans: map[string]*copy.Loan{}, grants: map[int64]chan struct{}{}}
	l.mu.Lock()
	var before []*borrower
	for _, other := range l.borrowers {
		if other.worker == a.Worker {
			before = append(before, other)
		}
	}
	full := len(l.borrowers) >= mostBorrowers
	if !full {
		l.joined = true
		l.borrowers[b.token] = b
		l.shownOf(a.Worker).Why = ""
	}
	l.mu.Unlock()
	for _, other := range before {
		l.end(other, "it has begun again", false)
	}
	if full {
		return loanReply{Refused: fmt.Sprintf("%d workers copy the job already", mostBorrowers)}
	}
	if err := l.note(l.ctx); err != nil { // not ctx: that the serving ends, for all is copied, is no failure
		l.fail(err)
		return loanReply{Refused: "the job's owner cannot reach the target"}
	}
	l.log.Info("another worker copies a part", "worker", a.Worker)
	terms := l.terms
	terms.Token, terms.Rules = b.token, l.keys.Mark(l.rules, b.token)
	if l.target.Info.Kind == mongo.KindSharded { // a borrower's connections by another router would not be seen
		terms.Routers = l.target.Pool.Addresses()
	}
	return loanReply{Terms: &terms}
}

// ready reports that the engine reads, and may lend.
func (e engine) ready() bool {
	_, ready := e.Member()
	return ready
}

// declined notes why a worker does not copy.
func (l *lender) declined(worker, why string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.shown) >= mostBorrowers && l.shown[worker] == nil {
		return
	}
	if shown := l.shownOf(worker); shown.Why != why {
		shown.Why = why
		l.log.Warn("a worker cannot copy a part", "worker", worker, "why", why)
	}
}

// shownOf is called with mu held.
func (l *lender) shownOf(worker string) *progress.Borrower {
	if l.shown[worker] == nil {
		l.shown[worker] = &progress.Borrower{Worker: worker}
	}
	return l.shown[worker]
}

// show is what the status tells.
func (l *lender) show() (waiting int, list []progress.Borrower) {
	for _, e := range l.of {
		if l.serving.Err() == nil && e.ready() && !l.low() { // else nobody would be answered
			waiting += e.Lendable()
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, b := range l.shown {
		list = append(list, *b)
	}
	slices.SortFunc(list, func(a, b progress.Borrower) int { return cmp.Compare(a.Worker, b.Worker) })
	return waiting, list
}

func loanKey(st *scan.Slice) string { return fmt.Sprintf("%s/%d", st.Collection, st.N) }

// lend takes a slice of a shard's part that waits. more says that there may be one later,
// of any shard: who has come stays while there is something for it to do.
func (l *lender) lend(shard string) (loan *copy.Loan, member scan.Member, more bool) {
	for _, e := range l.of {
		m, ready := e.Member()
		if !ready {
			continue
		}
		if e.shard != shard || loan != nil {
			more = more || e.Lendable() > 0
			continue
		}
		var waits bool
		loan, waits = e.Lend()
		member, more = m, more || waits
	}
	return loan, member, more
}

// next lends a slice.
func (l *lender) next(b *borrower, shard string) loanReply {
	if l.low() {
		return loanReply{}
	}
	for {
		loan, member, more := l.lend(shard)
		if loan == nil {
			return loanReply{More: more}
		}
		one := &loanOfOne{Source: loan.Source, Target: loan.Target, Key: loan.Key, Slice: loan.Slice, Owned: loan.Part != "", Member: member}
		if raw, err := bson.Marshal(one); err != nil || len(raw) > mostMessage/2 { // its positions may grow
			loan.Return(true)
			continue
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		if b.ended {
			loan.Return(false)
			return loanReply{Refused: "the job's owner has given this worker up"}
		}
		b.loans[loanKey(&loan.Slice)] = loan
		l.shownOf(b.worker).Slices++
		return loanReply{Loan: one}
	}
}

// grantPatience is how long a request for a grant is answered at most: who waits longer
// asks again.
const grantPatience = 2 * time.Second

// grant lets a borrower send so much, when the limits of the job allow it.
func (l *lender) grant(ctx context.Context, b *borrower, a *loanAsk) loanReply {
	if l.low() {
		return loanReply{Refused: refusedLow}
	}
	l.mu.Lock()
	granted := b.grants[a.Seq]
	if granted == nil && !b.ended {
		granted = make(chan struct{})
		b.grants[a.Seq] = granted
		l.ending.Go(func() {
			if l.limit.Wait(l.serving, a.Docs, a.Bytes) == nil && l.dstGate.Unheld(l.serving) == nil {
				close(granted)
			}
		})
	}
	l.mu.Unlock()
	late := time.NewTimer(grantPatience)
	defer late.Stop()
	select {
	case <-granted:
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(b.grants, a.Seq)
		return loanReply{}
	case <-late.C:
		return loanReply{More: true}
	case <-ctx.Done():
		return loanReply{Refused: "the job's owner does not copy any more"}
	}
}

// report takes what has become of slices.
func (l *lender) report(b *borrower, a *loanAsk) loanReply {
	if len(a.Slices) > 0 {
		if err := l.store.SameTerm(a.Term); err != nil {
			l.fail(err)
			return loanReply{Refused: "the target has another primary"}
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if b.ended {
		return loanReply{Refused: "the job's owner has given this worker up"}
	}
	l.tally.AddCopied(b.tally, a.Tally)
	if a.Tally != nil {
		b.tally = a.Tally
	}
	shown := l.shownOf(b.worker)
	for i := range a.Slices {
		st := &a.Slices[i]
		loan := b.loans[loanKey(st)]
		if loan == nil {
			continue // told of before: it is done
		}
		docs, bytes, err := loan.Advance(*st)
		if err != nil {
			l.log.Warn("a worker told of something that was not lent to it", "worker", b.worker, "error", err)
			return loanReply{Refused: err.Error()}
		}
		shown.Docs += docs
		shown.Bytes += bytes
		if loan.Done() {
			delete(b.loans, loanKey(st))
			shown.Slices--
		}
	}
	return loanReply{}
}

// errRefused is what a lender's refusal is to a borrower.
var errRefused = errors.New("the job's owner lends nothing")

func refusal(why string) error { return fmt.Errorf("%w: %s", errRefused, strings.TrimSpace(why)) }
