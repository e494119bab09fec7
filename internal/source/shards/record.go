package shards

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/shardkey"
)

// record knows who owned what since a time, from the chunk map and from what the config
// servers' oplog tells of writes to it: each move with its time. The histories of chunks
// do not reach: 4.4 drops what is older than ten seconds at the next move, merges of
// chunks drop all of it. It is safe for concurrent use.
type record struct {
	shards int
	reads  func(shard string) bool
	old    bool // before 5.0: chunks name an epoch, not the collection's UUID

	mu     sync.RWMutex
	tail   tail
	floor  bson.Timestamp // from when on it knows; zero: not read yet
	parts  map[string]*ownership
	byUUID map[[16]byte]*collection
	// arrivals are the chunks that move, or did, in the order in which they began to.
	arrivals []*arrival
	touched  map[string]bool // by collection and shard: one that a chunk came to or left
	joined   map[string]bool // shards, since the floor

	passed map[string]bson.Timestamp // where the shards' sources stand
}

// collection is a sharded one.
type collection struct {
	ns   string
	key  shardkey.Pattern
	held *ownership
	gone bson.Timestamp // zero: it is there
}

// since has the record reach back to a time.
func (r *record) since(ctx context.Context, at bson.Timestamp) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.floor.IsZero() && !at.Before(r.floor) {
		return nil
	}
	r.floor = at
	r.passed = map[string]bson.Timestamp{}
	r.parts, r.byUUID, r.arrivals, r.touched = map[string]*ownership{}, map[[16]byte]*collection{}, nil, map[string]bool{}
	r.joined = map[string]bool{}
	if err := r.load(ctx); err != nil {
		r.floor = bson.Timestamp{}
		return err
	}
	return nil
}

// kept is for how long, in seconds, the record knows what all sources have passed: the
// times of prepared transactions may be before those of what came earlier.
const kept = 60 * 60

// done notes that a shard's source stands at a time, and forgets what is long over.
func (r *record) done(shard string, at bson.Timestamp) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.passed[shard] = at
	first := at
	for _, p := range r.passed {
		if p.Before(first) {
			first = p
		}
	}
	if len(r.passed) < r.shards || first.T < r.floor.T+2*kept {
		return
	}
	r.floor = bson.Timestamp{T: first.T - kept}
	for uuid, c := range r.byUUID {
		c.held.forget(r.floor)
		if !c.gone.IsZero() && c.gone.Before(r.floor) {
			delete(r.byUUID, uuid)
			maps.DeleteFunc(r.parts, func(_ string, o *ownership) bool { return o == c.held })
		}
	}
	r.arrivals = slices.DeleteFunc(r.arrivals, func(a *arrival) bool { return !a.until.IsZero() && a.until.Before(r.floor) })
}

// load reads the chunk map as it is, the writes to it since the floor first: what they
// do not tell of was then as it is now.
func (r *record) load(ctx context.Context) error {
	if err := r.tail.begin(ctx, r.floor); err != nil {
		return err
	}
	data := r.tail.config.Client.Database("config", options.Database().SetReadConcern(readconcern.Majority()))
	var now []chunkDoc
	err := each(ctx, data.Collection("chunks"), func(doc bson.Raw) error {
		ch, err := parseChunk(doc)
		now = append(now, ch)
		return err
	})
	if err == nil {
		err = each(ctx, data.Collection("collections"), func(doc bson.Raw) error { return r.collection(doc) })
	}
	if err == nil {
		err = r.before(ctx)
	}
	if err == nil {
		err = r.tail.catchUp(ctx)
	}
	if err != nil {
		return fmt.Errorf("read the chunk map: %w", err)
	}
	for _, ch := range now {
		r.part(ch.of).fill(ch.low, ch.high, ch.shard)
	}
	return nil
}

func each(ctx context.Context, coll *driver.Collection, fn func(bson.Raw) error) error {
	cur, err := coll.Find(ctx, bson.D{})
	if err != nil {
		return err
	}
	defer func() { _ = cur.Close(context.WithoutCancel(ctx)) }()
	for cur.Next(ctx) {
		if err := fn(append(bson.Raw(nil), cur.Current...)); err != nil {
			return err
		}
	}
	return cur.Err()
}

// part is the ownership of what chunks name.
func (r *record) part(id string) *ownership {
	o := r.parts[id]
	if o == nil {
		o = newOwnership(r.floor)
		r.parts[id] = o
	}
	return o
}

// reach has the record know of all up to a time.
func (r *record) reach(ctx context.Context, at bson.Timestamp) error {
	r.mu.RLock()
	known := r.tail.known
	r.mu.RUnlock()
	if !known.Before(at) {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.tail.reach(ctx, at)
}

// before reads which migrations were under way at the floor.
func (r *record) before(ctx context.Context) error {
	const longest = 24 * 60 * 60 // seconds of a migration
	from := bson.Timestamp{T: r.floor.T - min(longest, r.floor.T)}
	return entries(ctx, r.tail.config, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lte", Value: r.floor}}}, {Key: "ns", Value: "config.migrations"},
	}, r.floor, func(entry bson.Raw) error {
		_, err := r.tail.entry(ctx, entry)
		r.arrivals = slices.DeleteFunc(r.arrivals, func(a *arrival) bool { return !a.until.IsZero() })
		return err
	})
}

// operation takes one write.
func (r *record) operation(ctx context.Context, w *configWrite) error {
	switch w.ns {
	case "config.migrations":
		return r.migration(w.op, w.o, w.at)
	case "config.chunks":
		return r.chunk(ctx, w)
	case "config.collections":
		return r.collections(ctx, w)
	case "config.shards":
		return r.shard(w)
	}
	return nil
}

// shard takes a write to the list of shards. Before 5.0 the list itself does not tell
// that one has come and gone.
func (r *record) shard(w *configWrite) error {
	switch name := w.id(); {
	case w.op == "i":
		r.joined[name] = true
	case w.op == "d" && r.joined[name] && !r.reads(name):
		return errPassedBy
	}
	return nil
}

// chunk takes a write to the chunk map.
func (r *record) chunk(ctx context.Context, w *configWrite) error {
	if w.op == "d" || w.op == "u" && !whole(w.o) {
		// A merge deletes the chunks that the one it writes has taken up. Bounds that
		// are refined, and marks, change no owner.
		if w.op == "u" && mentions(w.o, "shard") {
			return fmt.Errorf("a chunk gets another owner by an update of a form that is not known: %s", w.o)
		}
		return nil
	}
	ch, err := parseChunk(w.o)
	if err != nil {
		return err
	}
	held := r.part(ch.of)
	ch.at, ch.made = w.at, w.op == "i"
	way := r.underWay(&ch)
	ch.begun = way != nil && ch.moved && !ch.made
	if held.asks(ch.chunkWrite) {
		if ch.before, err = r.donor(ctx, &ch, way, w.wall); err != nil {
			return err
		}
	}
	held.write(ch.chunkWrite)
	return nil
}

// underWay is the move of a chunk to its shard that has begun and not ended.
func (r *record) underWay(ch *chunkDoc) *arrival {
	for i := len(r.arrivals) - 1; i >= 0; i-- {
		a := r.arrivals[i]
		if _, c := r.named(a.ns); c != nil && c.held == r.parts[ch.of] && a.to == ch.shard && a.until.IsZero() && shardkey.CompareKeys(a.low, ch.low) == 0 {
			return a
		}
	}
	return nil
}

// named is the sharded collection that has a name, with its UUID.
func (r *record) named(ns string) (uuid [16]byte, c *collection) {
	for uuid, c := range r.byUUID {
		if c.ns == ns && c.gone.IsZero() {
			return uuid, c
		}
	}
	return uuid, nil
}

// donor is who gave a chunk away when its history does not tell: as the migration under
// way says, else as the cluster's log of changes has it, that move to the shard which was
// nearest to a time. Moves of the chunk within ten seconds are in its history.
func (r *record) donor(ctx context.Context, ch *chunkDoc, way *arrival, wall time.Time) (string, error) {
	if way != nil {
		return way.from, nil
	}
	log := r.tail.config.Client.Database("config", options.Database().SetReadConcern(readconcern.Majority())).Collection("changelog")
	cur, err := log.Find(ctx, bson.D{
		{Key: "what", Value: bson.D{{Key: "$in", Value: bson.A{"moveChunk.commit", "moveChunk.start"}}}},
		{Key: "details.min", Value: ch.min}, {Key: "details.to", Value: ch.shard},
	})
	if err != nil {
		return "", fmt.Errorf("find who gave a chunk to %s: %w", ch.shard, err)
	}
	var moves []struct {
		Time    time.Time
		What    string
		Details struct{ From string }
	}
	if err := cur.All(ctx, &moves); err != nil {
		return "", fmt.Errorf("find who gave a chunk to %s: %w", ch.shard, err)
	}
	from, least := ownerUnknown, time.Duration(-1)
	for _, m := range moves {
		if d := m.Time.Sub(wall).Abs(); least < 0 || d < least {
			from, least = m.Details.From, d
		}
	}
	return from, nil // unknown is an error for those who ask for it
}

// collections takes a write to what the config servers know of sharded collections.
func (r *record) collections(ctx context.Context, w *configWrite) error {
	if w.op == "i" || w.op == "u" && whole(w.o) {
		return r.take(w.o, w.at)
	}
	ns := w.id()
	if w.op == "d" {
		r.gone(ns, w.at)
		return nil
	}
	doc, err := r.tail.config.Client.Database("config", options.Database().SetReadConcern(readconcern.Majority())).
		Collection("collections").FindOne(ctx, bson.D{{Key: "_id", Value: ns}}).Raw()
	if errors.Is(err, driver.ErrNoDocuments) {
		return nil // its end comes later
	}
	if err != nil {
		return fmt.Errorf("read the entry of %s: %w", ns, err)
	}
	return r.take(doc, w.at)
}

func (r *record) take(doc bson.Raw, ts bson.Timestamp) error {
	if dropped, _ := doc.Lookup("dropped").BooleanOK(); dropped {
		ns, _ := doc.Lookup("_id").StringValueOK()
		r.gone(ns, ts)
		return nil
	}
	return r.collection(doc)
}

// gone notes that a collection is no longer sharded at a time.
func (r *record) gone(ns string, ts bson.Timestamp) {
	for _, c := range r.byUUID {
		if c.ns == ns && c.gone.IsZero() {
			c.gone = ts
		}
	}
}

// collection takes what the config servers know of one. One that is known keeps its
// owners: another epoch is that of a key that was refined.
func (r *record) collection(doc bson.Raw) error {
	if dropped, _ := doc.Lookup("dropped").BooleanOK(); dropped {
		return nil
	}
	_, data, ok := doc.Lookup("uuid").BinaryOK()
	ns, _ := doc.Lookup("_id").StringValueOK()
	pattern, isKey := doc.Lookup("key").DocumentOK()
	if !ok || len(data) != 16 || !isKey {
		return fmt.Errorf("collection %q has no UUID, or no key: %s", ns, doc)
	}
	uuid := [16]byte(data)
	id := string(data)
	if r.old {
		epoch, ok := doc.Lookup("lastmodEpoch").ObjectIDOK()
		if !ok {
			return fmt.Errorf("collection %q has no epoch: %s", ns, doc)
		}
		id = string(epoch[:])
	}
	c := r.byUUID[uuid]
	if c == nil {
		c = &collection{held: r.part(id)}
		r.byUUID[uuid] = c
	}
	r.parts[id] = c.held
	c.ns, c.key = ns, shardkey.Parse(append(bson.Raw(nil), pattern...))
	return nil
}

// chunkDoc is a document of the chunk map.
type chunkDoc struct {
	chunkWrite
	of  string // the collection's UUID, or before 5.0 its epoch
	min bson.Raw
}

func parseChunk(doc bson.Raw) (ch chunkDoc, err error) {
	low, ok1 := doc.Lookup("min").DocumentOK()
	high, ok2 := doc.Lookup("max").DocumentOK()
	shard, ok3 := doc.Lookup("shard").StringValueOK()
	_, minor, ok4 := doc.Lookup("lastmod").TimestampOK()
	if !ok1 || !ok2 || !ok3 || !ok4 {
		return ch, fmt.Errorf("a chunk without bounds, shard or version: %s", doc)
	}
	ch.min, ch.low, ch.high, ch.shard, ch.moved = low, shardkey.Bound(low), shardkey.Bound(high), shard, minor == 0
	if _, data, ok := doc.Lookup("uuid").BinaryOK(); ok {
		ch.of = string(data)
	} else if epoch, ok := doc.Lookup("lastmodEpoch").ObjectIDOK(); ok {
		ch.of = string(epoch[:])
	}
	history, _ := doc.Lookup("history").ArrayOK()
	n := 0
	for e, ok := range bsonraw.Fields(history) {
		if !ok || n > 1 {
			break
		}
		entry := bson.Raw(e.Value)
		if n == 0 {
			t, i, _ := entry.Lookup("validAfter").TimestampOK()
			ch.since = bson.Timestamp{T: t, I: i}
		} else {
			ch.before, _ = entry.Lookup("shard").StringValueOK()
		}
		n++
	}
	if ch.of == "" || n == 0 {
		return ch, fmt.Errorf("a chunk without collection or history: %s", doc)
	}
	return ch, nil
}

// whole reports an update that is the document as it is then.
func whole(o bson.Raw) bool {
	_, ok := bsonraw.Field(o, "_id")
	return ok
}

// mentions reports that a document has a field of a name at any depth.
func mentions(doc []byte, name string) bool {
	for e, ok := range bsonraw.Fields(doc) {
		if !ok {
			return true
		}
		if string(e.Name) == name || (e.Type == bson.TypeEmbeddedDocument || e.Type == bson.TypeArray) && mentions(e.Value, name) {
			return true
		}
	}
	return false
}
