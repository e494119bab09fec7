package shards

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// filteredSource is the source of a shard without the events of documents that it did not own. A user's
// write may go to all shards. Then servers before 6.0 also write to documents of a chunk that was on the
// shard, or is about to be, without a mark.
type filteredSource struct {
	stream.Source
	shard   Shard
	history *ownership.History
	router  *mongo.Cluster
	shards  map[string]*mongo.Cluster
}

func (s *filteredSource) Run(ctx context.Context, pos stream.Position, emit emitFunc) error {
	if err := s.history.Load(ctx, pos.At.TS); err != nil {
		return err
	}
	f := &ownerFilter{filteredSource: s, resumedAt: pos.At.TS, orphans: map[string]*orphanWrite{},
		lookedUp: map[string][]bson.Raw{}, settled: map[*ownership.Migration]bool{}}
	if err := f.restore(ctx); err != nil {
		return err
	}
	return s.Source.Run(ctx, pos, func(ctx context.Context, b *stream.Batch) error {
		if err := f.batch(ctx, b); err != nil {
			return err
		}
		return emit(ctx, b)
	})
}

// ownerFilter leaves out the events of documents that a shard did not own.
type ownerFilter struct {
	*filteredSource
	resumedAt  bson.Timestamp // events up to here are read again, and skipped elsewhere
	key        shardkey.Key
	orphans    map[string]*orphanWrite       // by migration and _id
	lookedUp   map[string][]bson.Raw         // documents, by _id
	settled    map[*ownership.Migration]bool // their orphan writes were emitted
	reportedAt uint32                        // second of the last report to the history
}

func (f *ownerFilter) batch(ctx context.Context, b *stream.Batch) error {
	if b.Start.TS.T >= f.reportedAt+60 {
		f.reportedAt = b.Start.TS.T
		f.history.Passed(f.shard.Name, b.Start.TS)
	}
	newest := b.End.TS
	for i := range b.Events {
		if at := b.Events[i].At.TS; newest.Before(at) {
			newest = at
		}
	}
	if err := f.history.ReadUntil(ctx, newest); err != nil {
		return err
	}
	if err := f.lookUpKeys(ctx, b); err != nil {
		return err
	}
	err := f.history.Read(func(v ownership.View) error { return f.keepOwned(v, b) })
	if err != nil {
		return err
	}
	return f.settle(ctx, b, newest)
}

func (f *ownerFilter) keepOwned(v ownership.View, b *stream.Batch) error {
	kept := b.Events[:0]
	for i := range b.Events {
		owned, err := f.isOwned(v, &b.Events[i])
		if err != nil {
			return err
		}
		if owned {
			kept = append(kept, b.Events[i])
		}
	}
	clear(b.Events[len(kept):])
	b.Events = kept
	return nil
}

// isOwned reports whether the shard owned the document of an event.
func (f *ownerFilter) isOwned(v ownership.View, ev *stream.Event) (bool, error) {
	if ev.Kind == stream.SchemaChange || ev.UUID == nil || !f.resumedAt.Before(ev.At.TS) {
		return true, nil
	}
	c := v.Collection(*ev.UUID, ev.At.TS)
	if c == nil {
		return true, nil // not sharded
	}
	if f.lacksKey(v, c, ev) {
		return !f.isOrphan(c, ev), nil
	}
	var ok bool
	if ev.Key.Shard != nil {
		ok = c.Key.OfDocumentKey(&f.key, ev.Key.Shard)
	} else {
		ok = c.Key.Of(&f.key, ev.Doc)
	}
	if !ok {
		return false, fmt.Errorf("%s: %s of %s on shard %s has no shard key", ev.At, ev.Kind, bsonraw.IDText(ev.Key.ID),
			f.shard.Name)
	}
	switch owner := c.Owners.At(f.key.Values, ev.At.TS); owner {
	case f.shard.Name, ownership.Any:
		return true, nil
	case ownership.Unknown:
		return false, mongo.WithHint(fmt.Errorf("%s: unknown owner of %s of %s: neither the config servers' oplog nor "+
			"config.changelog names the donor of its chunk",
			ev.At, bsonraw.IDText(ev.Key.ID), ev.NS), "copy the collection again")
	}
	return false, f.remember(v, c, ev)
}

const maxLookup = 1000

// lacksKey reports a delete without the shard key of its document. Servers of 5.0 log only the _id for
// deletes of TTL indexes and others that no router sent. A shard without migrations has only its own
// documents.
func (f *ownerFilter) lacksKey(v ownership.View, c *ownership.Collection, ev *stream.Event) bool {
	return ev.Kind == stream.Delete && v.Migrated(c.NS, f.shard.Name) && lacksShardKey(c.Key, ev.Key.Shard)
}

// lacksShardKey reports a document key without shard key fields other than the _id.
func lacksShardKey(p shardkey.Pattern, key bson.Raw) bool {
	more := false
	for i := range p {
		if p[i].Path == "_id" {
			continue
		}
		if _, ok := bsonraw.Field(key, p[i].Path); ok {
			return false
		}
		more = true
	}
	return more
}

// lookUpKeys looks up the documents of a batch's deletes without shard key. One that its owner still
// has was an orphan on this shard.
func (f *ownerFilter) lookUpKeys(ctx context.Context, b *stream.Batch) error {
	clear(f.lookedUp)
	ids := map[*ownership.Collection]bson.A{}
	_ = f.history.Read(func(v ownership.View) error {
		for i := range b.Events {
			ev := &b.Events[i]
			if ev.Kind != stream.Delete || ev.UUID == nil || !f.resumedAt.Before(ev.At.TS) {
				continue
			}
			if c := v.Collection(*ev.UUID, ev.At.TS); c != nil && f.lacksKey(v, c, ev) {
				ids[c] = append(ids[c], bsonraw.RawValue(ev.Key.ID))
			}
		}
		return nil
	})
	for c, all := range ids {
		for part := range slices.Chunk(all, maxLookup) {
			if err := f.findKeys(ctx, c, part); err != nil {
				return fmt.Errorf("look up documents of %s that shard %s deleted: %w", c.NS, f.shard.Name, err)
			}
		}
	}
	return nil
}

func (f *ownerFilter) findKeys(ctx context.Context, c *ownership.Collection, ids bson.A) error {
	fields := bson.D{{Key: "_id", Value: 1}}
	for _, field := range c.Key {
		if field.Path != "_id" {
			fields = append(fields, bson.E{Key: field.Path, Value: 1})
		}
	}
	db, name := mongo.SplitNS(c.NS)
	cur, err := f.router.Client.Database(db).Collection(name).Find(ctx,
		bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, options.Find().SetProjection(fields))
	var docs []bson.Raw
	if err == nil {
		err = cur.All(ctx, &docs)
	}
	for _, doc := range docs {
		id := string(bsonraw.AppendID(nil, bsonraw.IDOf(doc)))
		f.lookedUp[id] = append(f.lookedUp[id], doc)
	}
	return err
}

// isOrphan reports a delete without shard key of a document that another shard owned and still has. A
// document that no shard has is gone, whichever deleted it.
func (f *ownerFilter) isOrphan(c *ownership.Collection, ev *stream.Event) bool {
	for _, doc := range f.lookedUp[string(bsonraw.AppendID(nil, ev.Key.ID))] {
		if !c.Key.Of(&f.key, doc) {
			continue
		}
		switch c.Owners.At(f.key.Values, ev.At.TS) {
		case f.shard.Name, ownership.Any, ownership.Unknown:
		default:
			return true
		}
	}
	return false
}

// maxOrphanWrites bounds the remembered orphan writes.
const maxOrphanWrites = 1_000_000

// orphanWrite is a document that a shard wrote to while its chunk arrived. The write counts unless the
// donor wrote to the document later. No event reports it: it is not among the owner's events, and the
// document arrives with its chunk.
//
// It can also be a document that the donor wrote to, such as by a TTL index, after it stopped sending
// writes to the recipient. That write was emitted, but does not count.
type orphanWrite struct {
	migration *ownership.Migration
	lost      bool // the donor's write was emitted, but lost
	ns        string
	uuid      [16]byte
	id        bson.RawValue
	key       bson.Raw // the document key
}

// newOrphanWrite copies the key.
func newOrphanWrite(m *ownership.Migration, ns string, uuid [16]byte, key stream.Key) *orphanWrite {
	return &orphanWrite{migration: m, ns: ns, uuid: uuid, key: bytes.Clone(key.Shard),
		id: bsonraw.RawValue(bsonraw.Clone(key.ID))}
}

// remember keeps an event of a document that the shard does not own yet.
func (f *ownerFilter) remember(v ownership.View, c *ownership.Collection, ev *stream.Event) error {
	m := v.Incoming(c.NS, f.key.Values, f.shard.Name, ev.At.TS)
	if m == nil {
		return nil
	}
	name := m.ID + " " + string(bsonraw.AppendID(nil, ev.Key.ID))
	if f.orphans[name] != nil {
		return nil
	}
	if len(f.orphans) >= maxOrphanWrites {
		return mongo.WithHint(fmt.Errorf("%s: shard %s has written to more than %d documents of %s whose chunks are arriving",
			ev.At, f.shard.Name, maxOrphanWrites, ev.NS), "copy the collection again")
	}
	f.orphans[name] = newOrphanWrite(m, ev.NS, *ev.UUID, ev.Key)
	return nil
}

// settle adds the events of orphan writes to chunks that have arrived by a time.
func (f *ownerFilter) settle(ctx context.Context, b *stream.Batch, by bson.Timestamp) error {
	arrived := f.arrivedChunks(by)
	var settled []stream.Event
	for m, chunk := range arrived {
		if err := f.addLostWrites(ctx, m, chunk); err != nil {
			return fmt.Errorf("shard %s, donor of a chunk of %s: look for lost writes: %w", m.From, m.NS, err)
		}
		for part := range slices.Chunk(slices.Collect(maps.Values(chunk.orphans)), 1000) {
			events, err := f.finalEvents(ctx, part, chunk)
			if err != nil {
				return fmt.Errorf("shard %s: find the state of documents of %s that were written to while their chunk "+
					"arrived: %w", f.shard.Name, m.NS, err)
			}
			settled = append(settled, events...)
		}
	}
	if len(arrived) > 0 {
		b.Events = insertEvents(b, settled)
	}
	return nil
}

// insertEvents merges events into those of a batch, in order. An unfinished transaction stays at the
// end: the next batch continues it, and its time may be earlier.
func insertEvents(b *stream.Batch, others []stream.Event) []stream.Event {
	end := len(b.Events)
	for b.Partial && end > 0 && b.Events[end-1].At == b.Events[len(b.Events)-1].At {
		end--
	}
	all := slices.Concat(b.Events[:end], others)
	slices.SortStableFunc(all, func(x, y stream.Event) int { return x.At.Compare(y.At) })
	return append(all, b.Events[end:]...)
}

type arrivedChunk struct {
	at      bson.Timestamp // of arrival
	key     shardkey.Pattern
	uuid    [16]byte
	orphans map[string]*orphanWrite // by _id
}

// arrivedChunks returns the chunks that have arrived by a time and were not settled, with their orphan
// writes, and forgets these.
func (f *ownerFilter) arrivedChunks(by bson.Timestamp) map[*ownership.Migration]*arrivedChunk {
	all, settled := map[*ownership.Migration]*arrivedChunk{}, map[*ownership.Migration]bool{}
	_ = f.history.Read(func(v ownership.View) error {
		for _, m := range v.Migrations(f.shard.Name) {
			if f.settled[m] {
				settled[m] = true
				continue
			}
			at, uuid, c := v.Arrived(m)
			if c == nil && m.End.IsZero() || c != nil && by.Before(at) {
				continue // not arrived yet
			}
			if settled[m] = true; c != nil && f.resumedAt.Before(at) {
				all[m] = &arrivedChunk{at: at, key: c.Key, uuid: uuid, orphans: map[string]*orphanWrite{}}
			}
		}
		return nil
	})
	f.settled = settled
	for name, w := range f.orphans {
		if chunk := all[w.migration]; chunk != nil {
			chunk.orphans[w.id.String()] = w
		}
		if settled[w.migration] {
			delete(f.orphans, name)
		}
	}
	return all
}

// addLostWrites adds the documents of a chunk that its donor wrote to in the critical section. The
// donor refuses users' writes then (seen on 5.0.4 and 4.4.2), but its TTL indexes still delete.
func (f *ownerFilter) addLostWrites(ctx context.Context, m *ownership.Migration, chunk *arrivedChunk) error {
	donor := f.shards[m.From]
	if donor == nil {
		return nil // removed from the cluster
	}
	from, err := criticalSectionStart(ctx, donor, m, chunk.at)
	if err != nil {
		return err
	}
	return ownership.EachEntry(ctx, donor, userWrites(m.NS, from, chunk.at), chunk.at, func(raw bson.Raw) error {
		e := ownership.ParseEntry(raw)
		key := e.Key()
		bare := e.Op == "d" && lacksShardKey(chunk.key, key)
		if !bare && chunk.key.OfDocumentKey(&f.key, key) && !m.Contains(f.key.Values) {
			return nil
		}
		w := newOrphanWrite(m, m.NS, chunk.uuid, stream.Key{ID: bsonraw.IDOf(key), Shard: key})
		w.lost = true
		chunk.orphans[w.id.String()] = w
		return nil
	})
}

// criticalSectionStart returns when the donor of a chunk began to refuse writes, which it logs for its
// secondaries, else when the chunk began to move. It reads the oplog forward: backward, servers start
// at its end.
func criticalSectionStart(ctx context.Context, donor *mongo.Cluster, m *ownership.Migration,
	at bson.Timestamp) (bson.Timestamp, error) {
	last := m.Start
	err := ownership.EachEntry(ctx, donor, bson.D{between(m.Start, at),
		{Key: "ns", Value: "config.cache.collections"}, {Key: "o2._id", Value: m.NS},
	}, at, func(raw bson.Raw) error {
		if e := ownership.ParseEntry(raw); ownership.HasField(e.O, "enterCriticalSectionCounter") {
			last = e.At
		}
		return nil
	})
	return last, mongo.Wrap(err, "find the start of its critical section")
}

func between(from, until bson.Timestamp) bson.E {
	return bson.E{Key: "ts", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lte", Value: until}}}
}

// userWrites matches users' writes to a collection outside transactions.
func userWrites(ns string, from, until bson.Timestamp) bson.D {
	return bson.D{{Key: "ns", Value: ns}, {Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"u", "d", "i"}}}},
		{Key: "fromMigrate", Value: bson.D{{Key: "$ne", Value: true}}}, between(from, until)}
}

func (f *ownerFilter) restore(ctx context.Context) error {
	var underway []*ownership.Migration
	_ = f.history.Read(func(v ownership.View) error {
		underway = slices.DeleteFunc(v.Migrations(f.shard.Name),
			func(m *ownership.Migration) bool { return !m.Underway(f.resumedAt) })
		return nil
	})
	for _, m := range underway {
		err := ownership.EachEntry(ctx, f.shard.Cluster, userWrites(m.NS, m.Start, f.resumedAt), f.resumedAt,
			func(raw bson.Raw) error {
				return f.history.Read(func(v ownership.View) error { return f.restoreEntry(v, raw) })
			})
		if err != nil {
			return fmt.Errorf("shard %s: look for writes to documents of %s while their chunk arrived: %w", f.shard.Name, m.NS,
				err)
		}
	}
	return nil
}

func (f *ownerFilter) restoreEntry(v ownership.View, raw bson.Raw) error {
	_, data, ok := raw.Lookup("ui").BinaryOK()
	if !ok || len(data) != 16 {
		return nil
	}
	uuid := [16]byte(data)
	e := ownership.ParseEntry(raw)
	c := v.Collection(uuid, bson.Timestamp{}) // even if it is no longer sharded
	if c == nil || !c.Key.OfDocumentKey(&f.key, e.Key()) {
		return nil
	}
	return f.remember(v, c, &stream.Event{NS: e.NS, UUID: &uuid, At: mongo.OpTime{TS: e.At},
		Key: stream.Key{ID: bsonraw.IDOf(e.Key()), Shard: e.Key()}})
}
