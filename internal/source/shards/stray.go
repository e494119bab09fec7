package shards

import (
	"bytes"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// maxStrays bounds what is remembered of documents that were written to while their
// chunk arrived.
const maxStrays = 1_000_000

// arrival is a chunk on its way to a shard.
type arrival struct {
	id, ns    string
	low, high []bson.RawValue
	from, to  string
	since     bson.Timestamp // nothing of it has come before
	until     bson.Timestamp // it has come by then, or never will; zero: under way
}

// stray is a document that a shard wrote to while its chunk arrived: the write counts
// if the donor's own writes to the document do not come after it. It is told by no
// event: the owner's say nothing of it, and the document comes with its chunk.
type stray struct {
	with *arrival
	ns   string
	uuid [16]byte
	id   bson.RawValue
	key  bson.Raw // the document key
}

// arriving is the arrival of a key at a shard at a time, nil when there is none.
func (r *record) arriving(ns string, key []bson.RawValue, to string, at bson.Timestamp) *arrival {
	for i := len(r.arrivals) - 1; i >= 0; i-- {
		a := r.arrivals[i]
		if a.to == to && a.ns == ns && a.since.Before(at) && (a.until.IsZero() || at.Before(a.until)) && a.has(key) {
			return a
		}
	}
	return nil
}

func (a *arrival) has(key []bson.RawValue) bool {
	return shardkey.CompareKeys(a.low, key) <= 0 && (shardkey.CompareKeys(key, a.high) < 0 || highest(a.high))
}

// migration takes a write to the config servers' list of migrations.
func (r *record) migration(op string, o bson.Raw, ts bson.Timestamp) error {
	id := o.Lookup("_id").String()
	switch op {
	case "d":
		for _, a := range r.arrivals {
			if a.id == id && a.until.IsZero() {
				a.until = ts
			}
		}
	case "i":
		low, ok1 := o.Lookup("min").DocumentOK()
		high, ok2 := o.Lookup("max").DocumentOK()
		ns, ok3 := o.Lookup("ns").StringValueOK()
		from, ok4 := o.Lookup("fromShard").StringValueOK()
		to, ok5 := o.Lookup("toShard").StringValueOK()
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return fmt.Errorf("a migration without collection, bounds or shards: %s", o)
		}
		r.touched[ns+" "+from], r.touched[ns+" "+to] = true, true
		r.arrivals = append(r.arrivals, &arrival{id: id, ns: ns, low: shardkey.Bound(low), high: shardkey.Bound(high), from: from, to: to, since: ts})
	}
	return nil
}

// stray remembers an event of a document that is not the shard's yet.
func (j *judge) stray(c *collection, ev *stream.Event) error {
	a := j.record.arriving(c.ns, j.key.Values, j.shard, ev.At.TS)
	if a == nil {
		return nil
	}
	id := bsonraw.RawValue(ev.Key.ID)
	name := a.id + " " + string(bsonraw.AppendID(nil, ev.Key.ID))
	if j.strays[name] != nil {
		return nil
	}
	if len(j.strays) >= maxStrays {
		return mongo.WithHint(fmt.Errorf("%s: shard %s has written to more than %d documents of %s whose chunks it is getting", ev.At, j.shard, maxStrays, ev.NS),
			"the collection has to be copied again")
	}
	j.strays[name] = &stray{with: a, ns: ev.NS, uuid: *ev.UUID, key: bytes.Clone(ev.Key.Shard),
		id: bson.RawValue{Type: id.Type, Value: bytes.Clone(id.Value)}}
	return nil
}

// settle adds what became of strays whose chunks have arrived by a time.
func (j *judge) settle(ctx context.Context, b *stream.Batch, by bson.Timestamp) error {
	groups := map[*arrival][]*stray{}
	when := map[*arrival]bson.Timestamp{}
	keys := map[*arrival]shardkey.Pattern{}
	j.record.mu.RLock()
	for name, s := range j.strays {
		at, came := bson.Timestamp{}, false
		if c := j.record.byUUID[s.uuid]; c != nil {
			keys[s.with] = c.key
			at, came = c.held.gained(s.with.low, j.shard, s.with.since)
		}
		switch {
		case came && !by.Before(at):
			groups[s.with], when[s.with] = append(groups[s.with], s), at
			delete(j.strays, name)
		case !came && !s.with.until.IsZero():
			delete(j.strays, name)
		}
	}
	j.record.mu.RUnlock()
	for a, all := range groups {
		for part := range slices.Chunk(all, 1000) {
			events, err := j.arrived(ctx, part, keys[a], when[a])
			if err != nil {
				return fmt.Errorf("shard %s: what became of documents of %s that were written to while their chunk came: %w", j.shard, a.ns, err)
			}
			b.Events = append(b.Events, events...)
		}
	}
	if len(groups) > 0 {
		slices.SortStableFunc(b.Events, func(x, y stream.Event) int { return x.At.Compare(y.At) })
	}
	return nil
}

// look calls fn for entries of the shard's oplog.
func (j *judge) look(ctx context.Context, filter bson.D, at bson.Timestamp, fn func(bson.Raw) error) error {
	return entries(ctx, j.from, filter, at, fn)
}

// recall finds the strays of chunks that were on their way where the run begins: it
// does not see again what came before.
func (j *judge) recall(ctx context.Context) error {
	j.record.mu.RLock()
	var all []*arrival
	for _, a := range j.record.arrivals {
		if a.to == j.shard && a.since.Before(j.done) && (a.until.IsZero() || j.done.Before(a.until)) {
			all = append(all, a)
		}
	}
	j.record.mu.RUnlock()
	for _, a := range all {
		filter := bson.D{
			{Key: "ts", Value: bson.D{{Key: "$gte", Value: a.since}, {Key: "$lte", Value: j.done}}}, {Key: "ns", Value: a.ns},
			{Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"u", "d", "i"}}}}, {Key: "fromMigrate", Value: bson.D{{Key: "$ne", Value: true}}},
		}
		if err := j.look(ctx, filter, j.done, j.recalled); err != nil {
			return fmt.Errorf("shard %s: look for writes to documents of %s while their chunk came: %w", j.shard, a.ns, err)
		}
	}
	return nil
}

// recalled takes an entry that was read before.
func (j *judge) recalled(e bson.Raw) error {
	_, data, ok := e.Lookup("ui").BinaryOK()
	if !ok || len(data) != 16 {
		return nil
	}
	uuid := [16]byte(data)
	key, _ := e.Lookup("o").DocumentOK()
	if op, _ := e.Lookup("op").StringValueOK(); op == "u" {
		key, _ = e.Lookup("o2").DocumentOK()
	}
	t, i, _ := e.Lookup("ts").TimestampOK()
	j.record.mu.RLock()
	defer j.record.mu.RUnlock()
	c := j.record.byUUID[uuid]
	if c == nil || !c.key.OfDocumentKey(&j.key, key) {
		return nil
	}
	ns, _ := e.Lookup("ns").StringValueOK()
	ev := stream.Event{NS: ns, UUID: &uuid, At: mongo.OpTime{TS: bson.Timestamp{T: t, I: i}}, Key: stream.Key{ID: bsonraw.IDOf(key), Shard: key}}
	return j.stray(c, &ev)
}
