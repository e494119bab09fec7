package job

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/copy"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/wire"
)

// Borrow copies slices of a job that another process runs, whom ask reaches, until it
// lends no more. spec is the job's; of Deps.Lending the version counts. An error says why
// it has ended before, or has not begun; the lender has been told, too, if it could be.
func Borrow(ctx context.Context, spec Spec, worker string, ask Ask) error {
	spec.setDefaults()
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	b := &borrowing{spec: spec, worker: worker, asking: ask, log: spec.Log, cancel: cancel, term: -1}
	return b.run(ctx)
}

// Decline tells the lender of a job why this process cannot borrow from it.
func Decline(ctx context.Context, worker string, why error, ask Ask) error {
	raw, err := bson.Marshal(loanAsk{Kind: askDecline, Worker: worker, Why: mongo.Brief(why)})
	if err == nil {
		_, err = ask(ctx, raw)
	}
	return err
}

// borrowing is one process' copying for another one.
type borrowing struct {
	spec   Spec
	worker string
	asking Ask
	log    *slog.Logger
	cancel context.CancelCauseFunc

	keys     transform.Keys
	rules    *transform.Set
	tally    *transform.Tally
	terms    *loanTerms
	src, dst *mongo.Cluster
	shards   *origin.Sharded // nil where the source is none
	seq      atomic.Int64    // of grants

	mu    sync.Mutex
	heard time.Time // when the last request was sent that was answered
	term  int64     // of the target's primary; -1 before the first answer
}

// run joins, copies and leaves. Nothing is on its way to the target when it returns.
func (b *borrowing) run(ctx context.Context) (err error) {
	b.spec.Rules.Secret = b.keys.Remember(b.spec.Rules.Secret)
	if b.rules, err = transform.New(b.spec.Rules); err != nil {
		return errors.Join(err, Decline(ctx, b.worker, err, b.asking))
	}
	b.tally = transform.NewTally(b.rules)
	began := time.Now()
	r, err := b.ask(ctx, loanAsk{Kind: askJoin, Worker: b.worker, Version: b.spec.Lending.Version})
	if err != nil {
		return err
	}
	if b.terms = r.Terms; b.terms == nil {
		return refusal("its reply has no terms")
	}
	b.heard = began
	beating, stop := context.WithCancel(ctx)
	var beats sync.WaitGroup
	beats.Go(func() { b.beat(beating) })
	err = b.work(ctx)
	b.disconnect() // before the lender is told: then nothing can arrive
	stop()
	beats.Wait()
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	b.leave(ctx, err)
	return err
}

// leave gives back what is left.
func (b *borrowing) leave(ctx context.Context, err error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 3*time.Second)
	defer cancel()
	a := loanAsk{Kind: askLeave, Token: b.terms.Token}
	if err != nil {
		class := mongo.Classify(err)
		a.Why = mongo.Brief(err)
		a.Keep = class != mongo.ClassRetry && class != mongo.ClassCanceled && !errors.Is(err, errRefused) && !errors.Is(err, errUnfit)
	}
	if _, err := b.ask(ctx, a); err != nil {
		b.log.Debug("the lender does not hear that this worker leaves", "error", err)
	}
}

// errUnfit is what keeps this process from copying whatever slice it gets.
var errUnfit = errors.New("this worker cannot copy for the job")

// work connects to both sides, and copies.
func (b *borrowing) work(ctx context.Context) error {
	if b.keys.Mark(b.rules, b.terms.Token) != b.terms.Rules {
		return fmt.Errorf("%w: its rules, or the keys that they mask by, are others than those of the job's owner", errUnfit)
	}
	if err := b.connect(ctx); err != nil {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	o := copy.Options{Readers: b.spec.Readers, Writers: b.spec.Writers, MaxBufferedBytes: b.spec.Memory, AfterClusterTime: b.terms.Start, Log: b.log,
		SaveEvery: b.terms.Lease / 20, SourceGate: pace.NewGate(pace.Normal), TargetGate: pace.NewGate(pace.Normal), Admit: b.admit, Grant: b.grant,
		Others: b.terms.Others}
	if b.shards == nil {
		return b.from(ctx, "", b.src, o)
	}
	share(&o, len(b.terms.Shards))
	o.Replacing = oneEach(b.shards)
	g, ctx := errgroup.WithContext(ctx)
	for _, one := range b.shards.Cluster().Shards {
		if slices.Contains(b.terms.Shards, one.Name) { // others have joined since the lender's attempt began
			g.Go(func() error { return mongo.Wrap(b.from(ctx, one.Name, one.Cluster, o), "shard %s", one.Name) })
		}
	}
	return g.Wait()
}

// from copies slices of a shard, or of a replica set, until there are no more of any.
func (b *borrowing) from(ctx context.Context, shard string, src *mongo.Cluster, o copy.Options) error {
	at := &lending{borrowing: b, shard: shard, asks: make(chan struct{}, 1), owned: map[string]*ownership.Filter{}}
	first, err := at.next(ctx)
	if err != nil || first == nil {
		return err
	}
	at.first.Store(first)
	return copy.New(src, b.dst, b, o).Borrow(ctx, first.Member, at)
}

// connect opens both sides, and makes sure that they are those of the lender.
func (b *borrowing) connect(ctx context.Context) error {
	rp, err := mongo.ParseReadPreference(b.spec.ReadPreference, b.spec.ReadTags)
	if err != nil {
		return err
	}
	compress := b.spec.Compress != CompressOff
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() (err error) {
		reading := mongo.Options{AppName: "millrace-source", ReadPreference: rp, ChooseCompression: compress}
		if b.src, err = b.spec.Connect(gctx, b.spec.Source, reading); err == nil && b.src.Info.Kind == mongo.KindSharded {
			b.shards, err = openShards(gctx, b.src, shards.Options{URI: b.spec.Source, Shards: b.spec.SourceShards, Left: true, Data: true, Mongo: reading, Connect: b.spec.Connect})
		}
		return mongo.Wrap(err, "source")
	})
	g.Go(func() (err error) {
		name := mongo.BorrowerName(b.terms.Job, b.terms.Run, b.terms.Attempt, b.terms.Token)
		b.dst, err = b.spec.Connect(gctx, b.spec.Target, mongo.Options{AppName: name, ChooseCompression: compress, MaxPoolSize: b.mostConnections()})
		return mongo.Wrap(err, "target")
	})
	if err := g.Wait(); err != nil {
		return err
	}
	if b.src.Info.SetID != b.terms.SourceSet || b.dst.Info.SetID != b.terms.TargetSet {
		return errors.New("its connection strings lead to other clusters than those of the job's owner")
	}
	for _, addr := range b.dst.Pool.Addresses() {
		if err := b.reaches(addr); err != nil {
			return err
		}
	}
	b.dst.Pool.SetGuard(b.held)
	return nil
}

// mostConnections is how many there may be to a server of the target: a writer holds one
// to each router, and takes another one to see which router is next.
func (b *borrowing) mostConnections() uint64 {
	const least, writers = 64, 16 // as copy.Options has it
	return uint64(max(least, 2*len(b.terms.Shards)*max(writers, b.spec.Writers)))
}

// reaches fails for a router at which the lender does not look for connections.
func (b *borrowing) reaches(addr string) error {
	if b.dst.Info.Kind != mongo.KindSharded || slices.Contains(b.terms.Routers, addr) {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("its connection string of the target leads to the router %s, that of the job's owner to %s", addr, strings.Join(b.terms.Routers, ", ")),
		"have all workers reach the target by the same addresses")
}

func (b *borrowing) disconnect() {
	var wg sync.WaitGroup
	if b.shards != nil {
		wg.Go(b.shards.Close)
	}
	for _, c := range []*mongo.Cluster{b.src, b.dst} {
		if c != nil {
			wg.Go(c.Close)
		}
	}
	wg.Wait()
}

// admit asks the target, over a connection, whether this process may write still. Who
// takes the right away first writes so, with a majority, and then lists the connections:
// one that is admitted was there before, and is waited for.
func (b *borrowing) admit(ctx context.Context, conn *wire.Conn) error {
	const patience = 10 * time.Second
	if err := b.reaches(conn.Addr()); err != nil {
		return fmt.Errorf("%w: %w", errUnfit, err)
	}
	_, err := b.found(ctx, conn, bson.D{
		{Key: "find", Value: "jobs"}, {Key: "limit", Value: 1}, {Key: "singleBatch", Value: true}, {Key: "projection", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "filter", Value: bson.D{{Key: "_id", Value: b.terms.Job}, {Key: "owner.run", Value: b.terms.Run}, {Key: "fence", Value: b.terms.Attempt}, {Key: "borrowers", Value: b.terms.Token}}},
		{Key: "readConcern", Value: bson.D{{Key: "level", Value: "linearizable"}}}, {Key: "maxTimeMS", Value: patience.Milliseconds()},
	})
	return err
}

func (b *borrowing) found(ctx context.Context, conn *wire.Conn, find bson.D) (bson.Raw, error) {
	reply, err := conn.Run(ctx, mongo.StateDB, find)
	if err != nil {
		return nil, fmt.Errorf("ask the target whether this worker may write: %w", err)
	}
	first, err := bson.Raw(reply).LookupErr("cursor", "firstBatch", "0")
	if err != nil {
		return nil, refusal("it has gone on without this worker")
	}
	return first.Document(), nil
}

// held fails when the lender may have given this process up.
func (b *borrowing) held() error {
	b.mu.Lock()
	silent := time.Since(b.heard)
	b.mu.Unlock()
	if silent < b.terms.Lease*4/5 {
		return nil
	}
	return mongo.Retry(fmt.Sprintf("the job's owner has said nothing for %s", silent.Round(time.Second)), nil, "")
}

// beat tells the lender that this process lives, and ends the work when the lender may
// have given it up.
func (b *borrowing) beat(ctx context.Context) {
	every := b.terms.Lease / 10
	for pace.Pause(ctx, every) == nil {
		_, err := b.tell(ctx, nil)
		if err == nil || ctx.Err() != nil {
			continue
		}
		if errors.Is(err, errRefused) {
			b.cancel(err)
			return
		}
		if lost := b.held(); lost != nil {
			b.cancel(lost)
			return
		}
	}
}

// ask sends one request, and notes that the lender has answered.
func (b *borrowing) ask(ctx context.Context, a loanAsk) (loanReply, error) {
	const patience = 5 * time.Second
	var r loanReply
	raw, err := bson.Marshal(a)
	if err != nil {
		return r, fmt.Errorf("write a request to the job's owner: %w", err)
	}
	if len(raw) > mostMessage {
		return r, fmt.Errorf("a request to the job's owner takes %d bytes, more than %d: its _ids are large", len(raw), mostMessage)
	}
	began := time.Now()
	short, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	if raw, err = b.asking(short, raw); err != nil {
		if ctx.Err() != nil {
			return r, ctx.Err()
		}
		return r, mongo.Retry("ask the job's owner ("+a.Kind+")", err, "")
	}
	if err := bson.Unmarshal(raw, &r); err != nil {
		return r, fmt.Errorf("read the reply of the job's owner: %w", err)
	}
	if r.Refused != "" {
		return r, refusal(r.Refused)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if began.After(b.heard) {
		b.heard = began
	}
	return r, nil
}

// tell reports what has become of slices.
func (b *borrowing) tell(ctx context.Context, changed []scan.Slice) (loanReply, error) {
	b.mu.Lock()
	term := b.term
	b.mu.Unlock()
	return b.ask(ctx, loanAsk{Kind: askReport, Token: b.terms.Token, Slices: changed, Term: term, Tally: b.tally.Copied()})
}

// noneNow is how long a reader waits before it asks for a slice again.
const noneNow = 200 * time.Millisecond

// lending is where slices of one shard, or of a replica set, are borrowed.
type lending struct {
	*borrowing
	shard string
	first atomic.Pointer[loanOfOne] // asked for before there was an engine
	asks  chan struct{}             // full while a reader asks

	looking sync.Mutex
	owned   map[string]*ownership.Filter // of collections, by UUID
}

// Borrow asks for a slice. See copy.Borrower.
func (at *lending) Borrow(ctx context.Context) (*scan.Slice, copy.Task, error) {
	l := at.first.Swap(nil)
	if l == nil {
		var err error
		if l, err = at.next(ctx); l == nil {
			return nil, copy.Task{}, err
		}
	}
	t := ruled(at.rules, at.tally, at.src.Info.Version, l.Source, at.terms.Start)
	t.Target, t.Key = l.Target, l.Key
	if l.Owned {
		var err error
		if t.Owned, err = at.ownedOf(l.Source.UUID); err != nil {
			return nil, t, err
		}
		t.Part = at.shard
	}
	return &l.Slice, t, nil
}

// next asks until there is a slice. Nil says that there are no more. One reader asks at a
// time: the others would hear the same.
func (at *lending) next(ctx context.Context) (*loanOfOne, error) {
	select {
	case at.asks <- struct{}{}:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { <-at.asks }()
	for {
		r, err := at.ask(ctx, loanAsk{Kind: askNext, Token: at.terms.Token, Shard: at.shard})
		if err != nil || r.Loan != nil || !r.More {
			return r.Loan, err
		}
		if err := pace.Pause(ctx, noneNow); err != nil {
			return nil, err
		}
	}
}

// ownedOf is what the shard owns of a collection, as the lender has it asked for: the
// version of now, whatever was there when the copy began. The lender has noted the
// versions of then, and reads again what has moved since.
func (at *lending) ownedOf(uuid bson.Binary) (*ownership.Filter, error) {
	if at.shards == nil {
		return nil, fmt.Errorf("%w: a slice is of a shard, but its source is no sharded cluster", errUnfit)
	}
	at.looking.Lock()
	defer at.looking.Unlock()
	id := string(uuid.Data)
	if at.owned[id] == nil {
		at.owned[id] = at.shards.Owned(at.shard, uuid)
	}
	return at.owned[id], nil
}

// grant waits until so much may be sent.
func (b *borrowing) grant(ctx context.Context, docs, bytes int64) error {
	a := loanAsk{Kind: askGrant, Token: b.terms.Token, Seq: b.seq.Add(1), Docs: docs, Bytes: bytes}
	for {
		r, err := b.ask(ctx, a)
		switch {
		case err == nil && !r.More:
			return nil
		case err != nil && (ctx.Err() != nil || errors.Is(err, errRefused) || b.held() != nil):
			return err
		}
	}
}

// LoadSlices gives none: those to copy are asked for. See copy.Store.
func (b *borrowing) LoadSlices(context.Context) ([]scan.Slice, error) { return nil, nil }

// SaveSlices tells the lender, who keeps them. See copy.Store.
func (b *borrowing) SaveSlices(ctx context.Context, changed []scan.Slice) error {
	passes := func(err error, _ time.Duration) bool {
		return ctx.Err() == nil && mongo.Classify(err) == mongo.ClassRetry && b.held() == nil
	}
	return retry.Again(ctx, noneNow, noneNow, passes, func() error { _, err := b.tell(ctx, changed); return err })
}

// SameTerm fails when the target's primary has changed since this process joined. The
// lender compares the term with its own. Behind routers nobody sees one: what was
// answered is durable. See copy.Store.
func (b *borrowing) SameTerm(term int64) error {
	if b.dst.Info.Kind == mongo.KindSharded {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.term < 0 {
		b.term = term
	}
	if term < 0 || b.term != term {
		return mongo.Retry(fmt.Sprintf("the target's primary changed (term %d, then %d)", b.term, term), nil, "")
	}
	return nil
}
