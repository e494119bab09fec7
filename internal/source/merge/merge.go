package merge

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// Defaults of Options.
const (
	defaultAhead = 32 << 20
	defaultBatch = 4 << 20
	defaultBeat  = 100 * time.Millisecond
)

// Part is one of the sources.
type Part struct {
	// Name is the part's in positions, such as that of a shard.
	Name   string
	Source stream.Source
	// Advance has the part's history pass a time though nothing happens there; nil
	// when the part does so by itself. It is called by one goroutine at a time, and
	// fails only for what ends the run.
	Advance func(ctx context.Context, at mongo.OpTime) error
}

// Options of a Source; the zero value has the defaults.
type Options struct {
	// AheadBytes bounds what is kept of each part beyond the batch that it has in
	// hand, default 32 MB.
	AheadBytes int64
	// BatchBytes is the size of events after which a batch is handed over, default
	// 4 MB. A batch may exceed it by one document.
	BatchBytes int64
	// HeldBytes bounds what is kept of a part while a prepared transaction of it is
	// undecided, default 8 times AheadBytes. Beyond it the run ends with an error of
	// mongo.ClassRetry.
	HeldBytes int64
	// Beat is the time between empty batches, default 100 ms.
	Beat time.Duration
}

func (o Options) withDefaults() Options {
	o.AheadBytes = cmp.Or(o.AheadBytes, defaultAhead)
	o.BatchBytes = cmp.Or(o.BatchBytes, defaultBatch)
	o.HeldBytes = cmp.Or(o.HeldBytes, 8*o.AheadBytes)
	o.Beat = cmp.Or(o.Beat, defaultBeat)
	return o
}

// Source merges its parts. It implements stream.Source. Run is called by one
// goroutine at a time; Stats and Waits by any.
type Source struct {
	parts []Part
	opt   Options

	mu    sync.Mutex
	waits stream.Wait
	known []mongo.OpTime // the floors of the parts; nil while none is read
}

// New makes a source of parts, of which there must be one at least.
func New(parts []Part, o Options) *Source { return &Source{parts: parts, opt: o.withDefaults()} }

// Waits is the wait of this moment.
func (s *Source) Waits() stream.Wait {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.waits
}

// Stats implements stream.Source: sums, the newest position of any part, and the parts.
func (s *Source) Stats() stream.SourceStats {
	s.mu.Lock()
	all, known := stream.SourceStats{Waits: s.waits}, s.known
	s.mu.Unlock()
	for i, p := range s.parts {
		st := p.Source.Stats()
		part := stream.PartStats{Name: p.Name, Events: st.Events, Bytes: st.Bytes}
		if known != nil {
			part.At = known[i]
		}
		all.Parts = append(all.Parts, part)
		all.Entries += st.Entries
		all.Bytes += st.Bytes
		all.Events += st.Events
		all.OpenTransactions += st.OpenTransactions
		all.BufferedBytes += st.BufferedBytes
		all.Newest = mongo.MaxOpTime(all.Newest, st.Newest)
	}
	return all
}

// Run implements stream.Source. The position must be one of a batch of such a
// source, or made by Position, of the same parts.
func (s *Source) Run(ctx context.Context, pos stream.Position, emit func(context.Context, *stream.Batch) error) error {
	from, err := Parts(pos)
	if err == nil && len(from) != len(s.parts) {
		err = fmt.Errorf("position %s is of %d parts, the source has %d", pos.At, len(from), len(s.parts))
	}
	if err != nil {
		return err
	}
	m := newMerger(s, pos, emit)
	group, ctx := errgroup.WithContext(ctx)
	for i, p := range s.parts {
		at, ok := from[p.Name]
		if !ok {
			return fmt.Errorf("position %s does not say where %s goes on", pos.At, p.Name)
		}
		m.feeds = append(m.feeds, newFeed(i, p, at))
	}
	for _, f := range m.feeds {
		group.Go(func() error { return f.run(ctx, m.arrivals) })
		if f.part.Advance != nil {
			group.Go(func() error { return f.advance(ctx) })
		}
	}
	group.Go(func() error { return m.run(ctx) })
	err = group.Wait()
	s.mu.Lock()
	s.waits, s.known = stream.Wait{}, nil
	s.mu.Unlock()
	return err
}
