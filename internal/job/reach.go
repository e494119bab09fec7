package job

import (
	"context"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
)

// reachAhead is how far ahead of the source's clock the reach is noted, so that
// events seldom wait for the note.
const reachAhead = 3 // seconds of the source

// reach is the position up to which events may be sent to the target. It is
// durable before they are: a restart knows by it what an earlier attempt may
// have applied.
type reach struct {
	noting sync.Mutex // one note at a time; events that the last one holds do not wait for it
	mu     sync.Mutex
	noted  mongo.OpTime
}

func (r *reach) init(at mongo.OpTime) { r.noted = at }

func (r *reach) holds(at mongo.OpTime) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.noted.Before(at)
}

// allow waits until the events of a batch may be sent.
func (f *follower) allow(ctx context.Context, b *stream.Batch) error {
	if len(b.Events) == 0 {
		return nil
	}
	last := b.Events[len(b.Events)-1].At
	if f.reach.holds(last) {
		return nil
	}
	return f.extend(ctx, last)
}

// extend notes a reach some seconds ahead of a position, and of the source's
// clock.
func (f *follower) extend(ctx context.Context, at mongo.OpTime) error {
	to := max(at.TS.T, f.j.progress.sourceSecond()) + reachAhead
	next := mongo.OpTime{TS: bson.Timestamp{T: to}, Term: -1}
	f.reach.noting.Lock()
	defer f.reach.noting.Unlock()
	if f.reach.holds(next) {
		return nil
	}
	if err := f.j.store.Note(ctx, bson.D{{Key: "reach", Value: next}}); err != nil {
		return err
	}
	f.reach.mu.Lock()
	defer f.reach.mu.Unlock()
	f.reach.noted = next
	return nil
}

// sourceSecond is the source's present time in seconds, as far as it is known.
func (s *progress) sourceSecond() uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.positions.Now.IsZero() {
		return 0
	}
	return uint32(s.positions.Now.Add(time.Since(s.asked)).Unix())
}

// newest is the source's newest position, after a linearizable read.
func (j *Job) newest(ctx context.Context) (mongo.OpTime, error) {
	return j.src.Newest(ctx, j.readable())
}

// readable is a namespace of the source that the user may read. It need not
// exist.
func (j *Job) readable() string {
	const none = ".millrace-none"
	ns := mongo.StateDB + none
	if j.plan == nil {
		return ns
	}
	for _, c := range j.plan.Collections {
		if c.Type == string(schema.TypeCollection) {
			return c.Source
		}
		db, _ := mongo.SplitNS(c.Source)
		ns = db + none
	}
	return ns
}

// places and documents turn the checkpoint's list of documents into the
// engine's, and back.
func places(docs []state.Doc) []mongosink.Place {
	out := make([]mongosink.Place, len(docs))
	for i, d := range docs {
		out[i] = mongosink.Place{NS: d.NS, ID: d.ID, At: d.At, Source: d.Source}
		if len(d.UUID.Data) == 16 {
			id := [16]byte(d.UUID.Data)
			out[i].UUID = &id
		}
	}
	return out
}

func documents(list []mongosink.Place) []state.Doc {
	out := make([]state.Doc, len(list))
	for i, p := range list {
		out[i] = state.Doc{NS: p.NS, ID: p.ID, At: p.At, Source: p.Source}
		if p.UUID != nil {
			out[i].UUID = bson.Binary{Subtype: bson.TypeBinaryUUID, Data: p.UUID[:]}
		}
	}
	return out
}
