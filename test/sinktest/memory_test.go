package sinktest_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// memoryStore is what a memorySink writes to, and what outlives it. The zero value is empty.
// It is safe for concurrent use.
type memoryStore struct {
	mu   sync.Mutex
	docs map[string]map[string]bson.Raw // by namespace and the key of the _id
}

// Documents are those of a namespace, in no order.
func (s *memoryStore) Documents(ns string) (docs []bson.Raw) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range s.docs[ns] {
		docs = append(docs, d)
	}
	return docs
}

// Apply makes one event's change. In the overlap, what it is about may be gone.
// Of schema changes it knows drops, of collections that are not renamed.
func (s *memoryStore) Apply(ev *stream.Event, overlap bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.docs == nil {
		s.docs = map[string]map[string]bson.Raw{}
	}
	if ev.Kind == stream.SchemaChange {
		if ev.Change.Kind == stream.ChangeDrop {
			delete(s.docs, ev.Change.NS)
		}
		return nil
	}
	coll := s.docs[ev.Route.Target]
	if coll == nil {
		coll = map[string]bson.Raw{}
		s.docs[ev.Route.Target] = coll
	}
	key := string(delta.AppendKey(nil, ev.Key.ID))
	was := coll[key]
	switch ev.Kind {
	case stream.Delete:
		delete(coll, key)
	case stream.Update, stream.Upsert:
		if was == nil && ev.Kind == stream.Upsert {
			was = bson.Raw(bsoncore.NewDocumentBuilder().AppendValue("_id", ev.Key.ID).Build())
		}
		if was == nil && overlap {
			return nil // a later event deletes it
		}
		doc, err := updated(was, ev, overlap)
		if err != nil {
			return fmt.Errorf("update in %s, _id %s, at %s: %w", ev.Route.Target, bsonraw.IDText(ev.Key.ID), ev.At, err)
		}
		coll[key] = doc
	default:
		coll[key] = bytes.Clone(ev.Doc)
	}
	return nil
}

func updated(was bson.Raw, ev *stream.Event, overlap bool) (bson.Raw, error) {
	if was == nil {
		return nil, errors.New("the document is missing")
	}
	d, err := delta.ParseAs(ev.Form, ev.Doc)
	if err != nil {
		return nil, err
	}
	doc, skipped, err := delta.Apply(nil, was, d)
	if err == nil && skipped > 0 && !overlap {
		err = errors.New("the document has another shape")
	}
	return doc, err
}

// memorySink keeps documents in memory, by namespace and _id: the smallest thing
// that is a sink. It applies each batch to a memoryStore as it is fed.
type memorySink struct {
	store   *memoryStore
	overlap mongo.OpTime // until where the store may be ahead

	mu      sync.Mutex
	applied stream.Position
	stats   stream.SinkStats
}

// newMemory is a sink that starts at pos, while the store may be ahead until overlap.
func newMemory(store *memoryStore, pos stream.Position, overlap mongo.OpTime) *memorySink {
	return &memorySink{store: store, overlap: overlap, applied: pos}
}

// Run waits for the end: there are no goroutines.
func (s *memorySink) Run(ctx context.Context) error {
	<-ctx.Done()
	return context.Cause(ctx)
}

// Feed applies the batch.
func (s *memorySink) Feed(ctx context.Context, b *stream.Batch) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	schema := int64(0)
	for i := range b.Events {
		ev := &b.Events[i]
		if err := s.store.Apply(ev, !s.overlap.Before(ev.At)); err != nil {
			return err
		}
		if ev.Kind == stream.SchemaChange {
			schema++
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stats.Operations += int64(len(b.Events)) - schema
	s.stats.Schema += schema
	s.stats.Bytes += int64(b.Bytes)
	if s.applied.At.Before(b.End) {
		s.applied = b.Resume()
	}
	return nil
}

// Drain has nothing to wait for.
func (s *memorySink) Drain(ctx context.Context) error { return context.Cause(ctx) }

// Applied is the end of the last batch.
func (s *memorySink) Applied() stream.Position {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.applied
}

// Stats is a snapshot.
func (s *memorySink) Stats() stream.SinkStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.stats
}
