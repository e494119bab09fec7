package shards

import (
	"bytes"
	"context"
	"fmt"
	"maps"
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
//
// Or a document that the donor wrote to, as its TTL indexes do, when the recipient no
// longer heard of it: the write was told, and does not count.
type stray struct {
	with *arrival
	lost bool // what the donor did was told, and is lost
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

// settle adds what became of documents whose chunks have arrived by a time, where the
// owner's events do not tell.
func (j *judge) settle(ctx context.Context, b *stream.Batch, by bson.Timestamp) error {
	groups := j.groups(by)
	var settled []stream.Event
	for a, g := range groups {
		if err := j.unheard(ctx, a, g); err != nil {
			return fmt.Errorf("shard %s, which gave a chunk of %s away: look for writes that were lost: %w", a.from, a.ns, err)
		}
		for part := range slices.Chunk(slices.Collect(maps.Values(g.strays)), 1000) {
			events, err := j.arrived(ctx, part, g.key, g.at)
			if err != nil {
				return fmt.Errorf("shard %s: what became of documents of %s that were written to while their chunk came: %w", j.shard, a.ns, err)
			}
			settled = append(settled, events...)
		}
	}
	if len(groups) > 0 {
		b.Events = among(b, settled)
	}
	return nil
}

// among are the events of a batch with others, in order. What the batch breaks off in stays
// at its end, for the next batch goes on with it: a transaction that was prepared may be of
// an earlier time.
func among(b *stream.Batch, others []stream.Event) []stream.Event {
	end := len(b.Events)
	for b.Partial && end > 0 && b.Events[end-1].At == b.Events[len(b.Events)-1].At {
		end--
	}
	all := slices.Concat(b.Events[:end], others)
	slices.SortStableFunc(all, func(x, y stream.Event) int { return x.At.Compare(y.At) })
	return append(all, b.Events[end:]...)
}

// group are the strays of a chunk that has come.
type group struct {
	at     bson.Timestamp // when it was the shard's
	key    shardkey.Pattern
	uuid   [16]byte
	strays map[string]*stray // by _id
}

// groups gives the chunks that have come by a time and were not settled, and takes
// their strays out of those to remember.
func (j *judge) groups(by bson.Timestamp) map[*arrival]*group {
	j.record.mu.RLock()
	defer j.record.mu.RUnlock()
	all, over := map[*arrival]*group{}, map[*arrival]bool{}
	for _, a := range j.record.arrivals {
		if a.to != j.shard {
			continue
		}
		if j.over[a] {
			over[a] = true
			continue
		}
		g := j.record.grouped(a)
		if g == nil && a.until.IsZero() || g != nil && by.Before(g.at) {
			continue // it is still to come
		}
		if over[a] = true; g != nil && j.done.Before(g.at) {
			all[a] = g
		}
	}
	j.over = over
	for name, s := range j.strays {
		if g := all[s.with]; g != nil {
			g.strays[s.id.String()] = s
		}
		if over[s.with] {
			delete(j.strays, name)
		}
	}
	return all
}

// grouped is a group without strays yet, nil where the chunk has not come.
func (r *record) grouped(a *arrival) *group {
	uuid, c := r.named(a.ns)
	if c == nil {
		return nil
	}
	at, ok := c.held.gained(a.low, a.to, a.since)
	if !ok || !a.until.IsZero() && a.until.Before(at) {
		return nil
	}
	return &group{at: at, key: c.key, uuid: uuid, strays: map[string]*stray{}}
}

// unheard adds the documents of a chunk that its donor wrote to when it had given all
// to the recipient. It refuses what users write then (seen on 5.0.4 and 4.4.2); its TTL
// indexes still delete.
func (j *judge) unheard(ctx context.Context, a *arrival, g *group) error {
	donor := j.shards[a.from]
	if donor == nil {
		return nil // it has left
	}
	from, err := lastly(ctx, donor, a, g.at)
	if err != nil {
		return err
	}
	filter := append(users(a.ns), bson.E{Key: "ts", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lte", Value: g.at}}})
	return entries(ctx, donor, filter, g.at, func(e bson.Raw) error {
		key := documentKey(e)
		op, _ := e.Lookup("op").StringValueOK()
		if keyless := op == "d" && bare(g.key, key); !keyless && g.key.OfDocumentKey(&j.key, key) && !a.has(j.key.Values) {
			return nil
		}
		id := bsonraw.IDOf(key)
		raw := bsonraw.RawValue(id)
		g.strays[raw.String()] = &stray{with: a, lost: true, ns: a.ns, uuid: g.uuid, key: bytes.Clone(key), id: bson.RawValue{Type: raw.Type, Value: bytes.Clone(raw.Value)}}
		return nil
	})
}

// lastly is when the donor of a chunk began to refuse writes to it, which it notes for
// its secondaries; else when the chunk began to move. It reads the oplog from there on:
// backward, servers begin at its end.
func lastly(ctx context.Context, donor *mongo.Cluster, a *arrival, at bson.Timestamp) (bson.Timestamp, error) {
	last := a.since
	err := entries(ctx, donor, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gte", Value: a.since}, {Key: "$lte", Value: at}}}, {Key: "ns", Value: "config.cache.collections"}, {Key: "o2._id", Value: a.ns},
	}, at, func(e bson.Raw) error {
		if o, _ := e.Lookup("o").DocumentOK(); mentions(o, "enterCriticalSectionCounter") {
			t, i, _ := e.Lookup("ts").TimestampOK()
			last = bson.Timestamp{T: t, I: i}
		}
		return nil
	})
	return last, mongo.Wrap(err, "find when it began to refuse writes")
}

// users is a condition on entries of what users did to documents of a collection, except
// in transactions.
func users(ns string) bson.D {
	return bson.D{{Key: "ns", Value: ns}, {Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"u", "d", "i"}}}},
		{Key: "fromMigrate", Value: bson.D{{Key: "$ne", Value: true}}}}
}

// documentKey is that of an entry, or for an insert the document.
func documentKey(e bson.Raw) bson.Raw {
	key, _ := e.Lookup("o").DocumentOK()
	if op, _ := e.Lookup("op").StringValueOK(); op == "u" {
		key, _ = e.Lookup("o2").DocumentOK()
	}
	return key
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
		filter := append(users(a.ns), bson.E{Key: "ts", Value: bson.D{{Key: "$gte", Value: a.since}, {Key: "$lte", Value: j.done}}})
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
	key := documentKey(e)
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
