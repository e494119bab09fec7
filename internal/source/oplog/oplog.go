package oplog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/wire"
)

const (
	defaultReadAhead = 32 << 20
	defaultBatch     = 4 << 20
	defaultTxnBuffer = 64 << 20
	defaultAwait     = time.Second
)

// maxBeat bounds the time between empty batches, and so how late a consumer notices that it caught up.
const maxBeat = 100 * time.Millisecond

// Options configure a Source. The zero value keeps every namespace.
type Options struct {
	// Keep reports whether to emit events of a source namespace. Run asks once per namespace. Keep does
	// not apply to internal databases, views and schema changes. But a change that cannot be followed
	// fails the run only if Keep wants one of its names.
	Keep func(ns string) bool
	// Prefixes, if any, say how the names begin of all namespaces that Keep takes. It lets the server select.
	Prefixes []string
	// ReadAheadBytes bounds what is read ahead, default 32 MB. Below that, replies are limited to as
	// many documents as fitted before, in place of 16 MB. A reply of larger documents may exceed the
	// bound, by 16 MB at most.
	ReadAheadBytes int64
	// BatchBytes is the size of entries that ends a batch, default 4 MB. One document may exceed it.
	BatchBytes int
	// TxnBufferBytes bounds open transactions in memory, default 64 MB. The rest is reread at commit.
	TxnBufferBytes int64
	// Await is how long a cursor waits for entries, default 1 s. An idle source emits an empty batch as
	// often, and at least ten times a second.
	Await time.Duration
	// SkipMigrated drops entries marked fromMigrate: writes, collections and indexes of chunk
	// migrations. It must be off for replica sets, where cloneCollectionAsCapped writes such entries.
	SkipMigrated bool
	// JoinRenames emits one event for a rename between databases, which servers log as a copy and a
	// drop. The copy's events and its drop are emitted, too.
	JoinRenames bool
	// CommitTimes gives events of prepared transactions the commit time of all shards, which is before
	// this shard's entry, and sets Undecided in batches. It is for parts of a merged source.
	CommitTimes bool
	// Spool, if it has the start position, is read before the oplog and then no longer filled; nil is
	// none.
	Spool *Spooler
	// Shared, if not nil, lets sources of the same oplog read it with one cursor.
	Shared *Shared
	Log    *slog.Logger // default discards
}

func (o Options) withDefaults() Options {
	o.ReadAheadBytes = cmp.Or(o.ReadAheadBytes, defaultReadAhead)
	o.BatchBytes = cmp.Or(o.BatchBytes, defaultBatch)
	o.TxnBufferBytes = cmp.Or(o.TxnBufferBytes, defaultTxnBuffer)
	o.Await = cmp.Or(o.Await, defaultAwait)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	return o
}

// Source reads a replica set's oplog with majority read concern, so its events cannot be rolled back. It
// implements stream.Source. One goroutine at a time may call Run, any goroutine Stats.
type Source struct {
	cluster *mongo.Cluster
	opt     Options
	log     *slog.Logger
	park    time.Duration
	sample  int64 // as in filter

	mu    sync.Mutex
	stats stream.SourceStats
}

// New returns a source. It reads from the member that c.Reader selects.
func New(c *mongo.Cluster, o Options) *Source {
	o = o.withDefaults()
	return &Source{cluster: c, opt: o, log: o.Log, park: parkAfter, sample: sampleBytes}
}

// Run implements stream.Source. A position with increment 0 is a time: reading starts at the first entry
// at or after it. Any other must be an entry of this history (ErrTooOld, ErrRolledBack). The first batch
// starts at the position.
//
// A cut, an election or a killed cursor returns an error of mongo.ClassRetry, after everything read was
// emitted.
func (o *Source) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	from, err := ReadFrom(pos)
	if err == nil && from.IsZero() {
		err = errors.New("no position to read from")
	}
	if err != nil {
		return fmt.Errorf("read oplog: %w", err)
	}
	var f *filter
	if !o.opt.CommitTimes { // others wait for the position of a part
		f = &filter{sample: o.sample, prefixes: o.opt.Prefixes, newer: o.cluster.Info.Evidence() != mongo.EvidenceTests}
		if failpoint.Err("filter.early") != nil {
			f.sample = 1
		}
	}
	a := newAssembler(o, pos.At, from, emit)
	a.filter = f
	for skip := 0; ; skip = 1 {
		if err = o.pass(ctx, a, from, skip); !errors.Is(err, errUnfiltered) {
			break
		}
		from = a.seen
		o.log.Debug("reading the oplog without a filter", "position", from)
	}
	a.fetch.close()
	o.idle()
	return err
}

// pass reads from an entry, or after it with skip 1, until something fails.
func (o *Source) pass(ctx context.Context, a *assembler, from mongo.OpTime, skip int) error {
	q := newQueue(o.opt.ReadAheadBytes)
	r := o.reader(q, from)
	r.skip, r.filter = skip, a.filter
	if q.reply < maxReply || r.filter != nil { // a filter may be found before much is read
		r.size = wire.ReplySize{Bytes: q.reply, Docs: wire.FirstReply}
	}
	readCtx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := o.fromSpool(readCtx, r); err != nil {
			q.close(err)
			return
		}
		q.close(r.run(readCtx))
	}()
	err := a.run(ctx, q)
	stop()
	<-done
	return err
}

func (o *Source) reader(to sink, from mongo.OpTime) *reader {
	return &reader{cluster: o.cluster, log: o.log, await: o.opt.Await, park: o.park, sink: to, from: from,
		shared: o.opt.Shared}
}

// Stats implements stream.Source.
func (o *Source) Stats() stream.SourceStats {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.stats
}

func (o *Source) count(b *stream.Batch, newest mongo.OpTime, txns *txnTable) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stats.Entries += int64(b.Entries)
	o.stats.Bytes += int64(b.Bytes)
	o.stats.Events += int64(len(b.Events))
	o.stats.Newest = mongo.MaxOpTime(o.stats.Newest, newest)
	o.stats.OpenTransactions, o.stats.BufferedBytes = len(txns.open), txns.bytes
}

func (o *Source) idle() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.stats.OpenTransactions, o.stats.BufferedBytes = 0, 0
}

// run consumes the queue until it fails.
func (a *assembler) run(ctx context.Context, q *queue) error {
	every := min(a.o.opt.Await, maxBeat)
	beat := time.Now() // at once, for whoever waits for no more than the start
	watch := mongo.StallWatch{Cluster: a.o.cluster}
	for {
		c, ok, err := q.take(ctx, time.Until(beat))
		if err != nil {
			return err
		}
		if ok {
			err = c.each(func(doc []byte) error { return a.entry(ctx, doc) })
			q.done(c)
		} else {
			err = watch.Check(ctx, a.seen)
		}
		if err != nil {
			return err
		}
		if !ok || a.unsent() && q.empty() {
			if err := a.flush(ctx, false, false); err != nil {
				return err
			}
			beat = time.Now().Add(every)
		}
	}
}
