package follow

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/schema"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// mostCappedBytes bounds the events of capped collections in memory. Far fewer can have been sent
// since the last checkpoint.
const mostCappedBytes = 256 << 20

var errEnough = errors.New("enough")

// cappedStarts finds, by target namespace, which events after the checkpoint each capped collection
// already has. Reapplying one would reorder documents and evict others.
func (f *follower) cappedStarts(ctx context.Context) (map[string]mongosink.CappedStart, error) {
	l := cappedLook{follower: f, left: mostCappedBytes}
	if err := l.collections(ctx); err != nil || len(l.all) == 0 {
		return nil, err
	}
	var err error
	if l.copied, _, err = f.copiedAt(ctx); err != nil {
		return nil, err
	}
	if err := l.through(ctx, f.job.Applied, f.overlapEnd); err != nil && !errors.Is(err, errEnough) {
		return nil, fmt.Errorf("look for changes of capped collections since %s: %w", f.job.Applied, err)
	}
	starts := map[string]mongosink.CappedStart{}
	for _, c := range l.all {
		n, err := c.applied(ctx, f)
		if err != nil {
			return nil, err
		}
		if n > 0 || f.job.Applied.Before(c.past) {
			starts[c.target] = mongosink.CappedStart{Past: c.past, Then: n}
			f.Log.Debug("a capped collection is ahead of the checkpoint", "ns", c.target, "past", c.past, "events", n,
				"of", len(c.events))
		}
	}
	return starts, nil
}

func (f *follower) copiedStarts(ctx context.Context) (starts map[string]mongosink.CappedStart, err error) {
	_, starts, err = f.copiedAt(ctx)
	return starts, err
}

// copiedAt returns the positions of the copies of capped collections: at by UUID, starts by target
// namespace.
func (f *follower) copiedAt(
	ctx context.Context,
) (at map[string]mongo.OpTime, starts map[string]mongosink.CappedStart, err error) {
	states, err := f.Store.LoadSlices(ctx)
	at, starts = map[string]mongo.OpTime{}, map[string]mongosink.CappedStart{}
	for _, one := range states {
		var s scan.Slice
		if err := bson.Unmarshal(one, &s); err != nil {
			return nil, nil, fmt.Errorf("decode slice: %w", err)
		}
		if !s.At.IsZero() {
			at[s.Collection], starts[s.NS] = s.At, mongosink.CappedStart{Past: s.At}
		}
	}
	return at, starts, err
}

type cappedLook struct {
	*follower
	copied   map[string]mongo.OpTime // by UUID
	all      []*cappedSeen
	bySource map[string]*cappedSeen
	left     int
}

// cappedSeen is a capped collection of the target and the events after the checkpoint that it may
// have: none lies after the next schema change.
type cappedSeen struct {
	sources []string // source namespaces with this target
	target  string
	limit   limit
	roomy   bool         // finalize sets the limits
	past    mongo.OpTime // the collection has everything up to here
	events  []cappedEvent
	inserts int64
	bytes   int  // of the events
	closed  bool // the collection has no later event
}

type cappedEvent struct {
	kind stream.Kind
	id   bsonraw.ID
	doc  bson.Raw // inserted or replacing document, or an update's delta
}

func (l *cappedLook) collections(ctx context.Context) error {
	l.bySource = map[string]*cappedSeen{}
	dbs, err := l.Target.Client.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return fmt.Errorf("list databases of the target: %w", err)
	}
	for _, db := range dbs {
		if !l.Rules.MatchTargetDB(db) {
			continue
		}
		// Not ListCollectionNames: with nameOnly the server cannot filter by options.
		specs, err := l.Target.Client.Database(db).ListCollectionSpecifications(ctx,
			bson.D{{Key: "options.capped", Value: true}})
		if err != nil {
			return fmt.Errorf("list capped collections of %s: %w", db, err)
		}
		for _, spec := range specs {
			target := db + "." + spec.Name
			c := &cappedSeen{sources: l.Rules.Sources(target), target: target, roomy: schema.Roomy(spec.Options),
				past: l.job.Applied}
			c.limited(spec.Options, "size", "max")
			for _, src := range c.sources {
				l.bySource[src] = c
			}
			if len(c.sources) > 0 {
				l.all = append(l.all, c)
			}
		}
	}
	return nil
}

func (c *cappedSeen) limited(options bson.Raw, size, most string) {
	if n, ok := options.Lookup(size).AsInt64OK(); ok {
		const unit = 256 // servers round up to it
		c.limit.bytes = (n + unit - 1) / unit * unit
	}
	if n, ok := options.Lookup(most).AsInt64OK(); ok {
		c.limit.docs = n
	}
}

func (l *cappedLook) through(ctx context.Context, from, until mongo.OpTime) error {
	return l.Source.Look(ctx, slices.Collect(maps.Keys(l.bySource)), oplog.Span{After: from, Until: until},
		func(ev *stream.Event) error {
			if ev.Kind == stream.SchemaChange {
				return l.change(ctx, ev)
			}
			c := l.bySource[ev.NS]
			if c.closed {
				return nil
			}
			if ev.UUID != nil {
				l.incarnation(c, ev.UUID[:])
			}
			if !c.past.Before(ev.At) || l.left < 0 {
				return nil
			}
			size := len(ev.Doc) + len(ev.Key.ID.Data)
			if l.left -= size; l.left < 0 {
				return errEnough
			}
			c.bytes += size
			c.events = append(c.events, cappedEvent{kind: ev.Kind, id: bsonraw.Clone(ev.Key.ID), doc: slices.Clone(ev.Doc)})
			if ev.Kind == stream.Insert {
				c.inserts++
			}
			return nil
		})
}

// incarnation skips the events that the copy of the collection with this UUID contains.
func (l *cappedLook) incarnation(c *cappedSeen, uuid []byte) {
	if len(uuid) > 0 {
		c.past = mongo.MaxOpTime(c.past, l.copied[hex.EncodeToString(uuid)])
	}
}

// change handles a schema change. The target has no event after it, unless the change is the one
// that the checkpoint names as intended.
func (l *cappedLook) change(ctx context.Context, ev *stream.Event) error {
	ch := ev.Change
	for _, c := range l.all {
		if c.closed || !slices.ContainsFunc(c.sources, ch.Touches) {
			continue
		}
		from := slices.Contains(c.sources, ch.NS)
		if from && ch.Kind != stream.ChangeCreate {
			l.incarnation(c, ch.UUID.Data)
		}
		made, err := l.made(ctx, ch, from, ev.At)
		if err != nil {
			return err
		}
		if !made {
			c.closed = true
			continue
		}
		c.past, c.events, c.inserts, c.bytes = mongo.MaxOpTime(c.past, ev.At), nil, 0, 0
		if ch.Kind == stream.ChangeCollMod && !c.roomy {
			c.limited(ch.Options, "cappedSize", "cappedMax")
		}
	}
	return nil
}

// made reports that the target may have a schema change already; from reports that the change names
// the collection as its source.
func (l *cappedLook) made(ctx context.Context, ch *stream.Change, from bool, at mongo.OpTime) (bool, error) {
	if at != l.job.Intent {
		return false, nil
	}
	switch {
	case ch.Kind == stream.ChangeCreate, ch.Kind == stream.ChangeCollMod:
		return true, nil
	case ch.Kind != stream.ChangeRename || from || !l.Rules.Match(ch.NS):
		return false, nil
	}
	there, err := l.Schema.Catalog.Has(ctx, l.Rules.Target(ch.NS))
	return err == nil && !there, err
}

func (c *cappedSeen) applied(ctx context.Context, f *follower) (n int, err error) {
	if len(c.events) == 0 {
		return 0, nil
	}
	target, err := c.onTarget(ctx, f)
	if err != nil {
		return 0, fmt.Errorf("read %s on the target: %w", c.target, err)
	}
	var repair []bson.Raw
	r := newRing(target, c.limit)
	for i, ev := range c.events {
		switch id := keyOf(ev.id); ev.kind {
		case stream.Insert:
			if !f.Letters.Disputed(c.target, ev.id) {
				r.insert(id, ev.doc)
			}
		case stream.Update, stream.Replace:
			r.update(id, ev.doc)
		case stream.Delete:
			r.remove(id)
		}
		if r.matches() {
			n, repair = i+1, r.unrepaired()
		}
	}
	for _, doc := range repair {
		if err := c.repair(ctx, f, doc); err != nil {
			return 0, fmt.Errorf("restore a zero timestamp in %s, _id %s: %w", c.target, doc.Lookup("_id"), err)
		}
	}
	return n, nil
}

// repair restores zero timestamps in a document that was inserted just before a kill.
func (c *cappedSeen) repair(ctx context.Context, f *follower, doc bson.Raw) error {
	_, d, _ := delta.AppendTimestampRepair(nil, doc)
	u, form := delta.AppendStatement(nil, d)
	if form == delta.None {
		return write.ErrZeroTimestamp
	}
	db, name := mongo.SplitNS(c.target)
	_, err := f.Target.Write(ctx, db, bson.D{{Key: "update", Value: name}, {Key: "updates", Value: bson.A{
		bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: doc.Lookup("_id")}}}}},
			{Key: "u", Value: bson.Raw(u)}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	return err
}

// keyOf is the exact value: oplog entries name documents by their very _id.
func keyOf(id bsonraw.ID) string { return string(byte(id.Type)) + string(id.Data) }

// onTarget reads as many of the newest documents as were inserted, and of the others the changed ones.
func (c *cappedSeen) onTarget(ctx context.Context, f *follower) (targetDocs, error) {
	h := targetDocs{docs: map[string]targetDoc{}}
	db, name := mongo.SplitNS(c.target)
	coll := f.Target.Client.Database(db).Collection(name)
	newest := options.Find().SetSort(bson.D{{Key: "$natural", Value: -1}}).SetLimit(c.inserts + 1)
	const room = 32 << 20
	whole, err := h.read(ctx, coll, bson.D{}, newest, 2*c.bytes+room)
	if err != nil {
		return h, err
	}
	if h.whole = whole && int64(h.n) <= c.inserts; h.whole {
		return h, nil
	}
	var older []bson.RawValue
	for _, ev := range c.events {
		if _, ok := h.docs[keyOf(ev.id)]; !ok {
			older = append(older, bsonraw.RawValue(ev.id))
		}
	}
	const some = 500
	for ids := range slices.Chunk(older, some) {
		if _, err := h.read(ctx, coll, bson.D{{Key: "_id", Value: bson.D{{Key: "$in", Value: ids}}}}, nil,
			math.MaxInt); err != nil {
			return h, err
		}
	}
	return h, nil
}

// read adds documents: the newest first or, without options, older ones. It reports that all of them
// fit into room bytes.
func (h *targetDocs) read(ctx context.Context, coll *driver.Collection, filter bson.D,
	newest *options.FindOptionsBuilder, room int) (bool, error) {
	o := options.Find()
	if newest != nil {
		o = newest
	}
	cur, err := coll.Find(ctx, filter, o)
	if err != nil {
		return false, err
	}
	for cur.Next(ctx) {
		if room -= len(cur.Current); room < 0 {
			return false, cur.Close(ctx)
		}
		d := targetDoc{doc: bytes.Clone(cur.Current), place: far}
		if newest != nil {
			d.place = h.n
			h.n++
		}
		id := keyOf(bsonraw.IDOf(d.doc))
		if _, ok := h.docs[id]; !ok { // not one equal to another under a collation
			h.docs[id] = d
		}
	}
	return true, cur.Err()
}
