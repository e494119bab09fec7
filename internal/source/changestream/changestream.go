package changestream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

const (
	defaultReadAhead = 32 << 20
	defaultBatch     = 4 << 20
	defaultAwait     = 200 * time.Millisecond
	// beat is the time between empty batches, and so how late a consumer notices that it caught up.
	beat = 100 * time.Millisecond
)

// Options configure a Source. The zero value keeps every namespace and assumes the oldest servers.
type Options struct {
	// Support is what Probe has found.
	Support Support
	// Keep reports whether to emit events of a source namespace. Run asks once per namespace. Keep does not
	// apply to internal databases, views and schema changes. But a change that cannot be followed fails the
	// run only if Keep wants one of its names.
	Keep func(ns string) bool
	// JoinRenames makes a rename between databases an error. Change streams report a copy and a drop, while rules
	// judge the command of the user.
	JoinRenames bool
	// ReadAheadBytes bounds what is read ahead, default 32 MB. A reply of larger documents than those before
	// may exceed it, by 16 MB at most.
	ReadAheadBytes int64
	// BatchBytes is the size of events that ends a batch, default 4 MB. One event may exceed it.
	BatchBytes int
	// Await is how long the server waits for events before it answers with none, default 200 ms.
	Await time.Duration
	Log   *slog.Logger // default discards
	// Waiting is called from time to time with what a reply waits for that does not come, and with "" once it
	// has come. One goroutine at a time calls it. It may be nil.
	Waiting func(what string)

	match []string // kinds of events that the server leaves out
	names bool     // changes that cannot be followed become events with kind and names only
}

func (o Options) withDefaults() Options {
	o.ReadAheadBytes = cmp.Or(o.ReadAheadBytes, defaultReadAhead)
	o.BatchBytes = cmp.Or(o.BatchBytes, defaultBatch)
	o.Await = cmp.Or(o.Await, defaultAwait)
	if o.Keep == nil {
		o.Keep = func(string) bool { return true }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Waiting == nil {
		o.Waiting = func(string) {}
	}
	return o
}

// Source reads the change stream of a deployment, which has majority-committed changes only. It implements
// stream.Source. One goroutine at a time may call Run, any goroutine Stats.
type Source struct {
	cluster *mongo.Cluster
	opt     Options
	park    time.Duration
	slow    time.Duration // from when on a reply's wait is named
	ahead   time.Duration // how long a position may be after what the source knows

	mu    sync.Mutex
	stats stream.SourceStats
}

// New returns a source. It reads from the member that c.Reader selects.
func New(c *mongo.Cluster, o Options) *Source {
	return &Source{cluster: c, opt: o.withDefaults(), park: parkAfter, slow: slowAfter, ahead: aheadAfter}
}

// Run implements stream.Source. It resumes from the position's token, or at its time if it has none, and
// omits what is at or before that time. ErrLost reports that the source does not have it any more.
//
// A cut, an election or a killed cursor returns an error of mongo.ClassRetry, after everything read was
// emitted.
func (s *Source) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	if pos.At.IsZero() && pos.Mark == "" {
		return errors.New("read change stream: no position to read from")
	}
	r := &reader{s: s, from: pos, replies: make(chan reply, 1)}
	if pos.Mark != "" {
		if _, err := fromMark(pos.Mark); err != nil {
			return fmt.Errorf("position %s: %w", pos.At, err)
		}
	}
	a := newAssembler(s, pos, emit)
	readCtx, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		r.err = r.run(readCtx)
		close(r.replies)
	}()
	err := a.run(ctx, r)
	stop()
	<-done
	return err
}

// Stats implements stream.Source.
func (s *Source) Stats() stream.SourceStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}

func (s *Source) count(b *stream.Batch, newest mongo.OpTime) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Entries += int64(b.Entries)
	s.stats.Bytes += int64(b.Bytes)
	s.stats.Events += int64(len(b.Events))
	s.stats.Newest = mongo.MaxOpTime(s.stats.Newest, newest)
}
