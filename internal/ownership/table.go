// Package ownership knows which shard owns a document or a chunk: at a position, by the config servers' oplog (History,
// Primaries), and now, by their chunk map. A document on any other shard is an orphan. Callers decide which events
// count, which documents a cursor returns and where a range is placed.
package ownership

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
)

// Table says which shard owns which keys of a sharded collection.
type Table struct {
	NS        string         `bson:"_id"`
	UUID      bson.Binary    `bson:"uuid"`
	Key       bson.Raw       `bson:"key"` // the pattern of the shard key
	Epoch     bson.ObjectID  `bson:"lastmodEpoch"`
	Timestamp bson.Timestamp `bson:"timestamp"` // zero before 5.0
	Chunks    []Chunk        `bson:"-"`         // in the order of keys

	server mongo.Version
}

// Chunk is a range of shard keys, Max excluded.
type Chunk struct {
	Min     bson.Raw       `bson:"min"`
	Max     bson.Raw       `bson:"max"`
	Shard   string         `bson:"shard"`
	Version bson.Timestamp `bson:"lastmod"`
	History []struct {
		After bson.Timestamp `bson:"validAfter"`
		Shard string         `bson:"shard"`
	} `bson:"history"` // the newest first; older ones go
}

// since is when the shard had all of the chunk, the end of time if its history does not say.
func (c Chunk) since() bson.Timestamp {
	if len(c.History) == 0 || c.History[0].Shard != c.Shard {
		return bson.Timestamp{T: 1<<32 - 1}
	}
	return c.History[0].After
}

// ReadTable reads the table of a collection at one moment, through a router. server is the shards' version. Without
// one the error is of mongo.CodeNamespaceNotFound.
func ReadTable(ctx context.Context, router *mongo.Cluster, server mongo.Version,
	uuid bson.Binary) (t *Table, err error) {
	sess, err := router.Client.StartSession(options.Session().SetCausalConsistency(true))
	if err != nil {
		return nil, fmt.Errorf("start session: %w", err)
	}
	defer sess.EndSession(ctx)
	ctx = driver.NewSessionContext(ctx, sess)
	const tries = 100
	for range tries {
		t = &Table{server: server}
		complete, err := t.read(ctx, router, uuid)
		if err != nil {
			return nil, fmt.Errorf("read which shard has what of the collection %x: %w", uuid.Data, err)
		}
		if complete {
			return t, nil
		}
	}
	return nil, mongo.Retry(fmt.Sprintf("the chunks of %s change all the time", t.NS), nil, "")
}

// read fills the table; complete says that nothing changed meanwhile.
func (t *Table) read(ctx context.Context, router *mongo.Cluster, uuid bson.Binary) (complete bool, err error) {
	found, err := entry(ctx, router, uuid, t)
	if err == nil && !found {
		err = driver.CommandError{Code: mongo.CodeNamespaceNotFound, Name: "NamespaceNotFound",
			Message: "no sharded collection has this UUID"}
	}
	if err == nil {
		t.Chunks, err = ReadChunks(ctx, router, t.chunks(uuid))
	}
	if err != nil {
		return false, err
	}
	// Each change gives some chunk a version above all others.
	var last Chunk
	newest := options.FindOne().SetSort(bson.D{{Key: "lastmod", Value: -1}})
	err = router.Config("chunks").FindOne(ctx, t.chunks(uuid), newest).Decode(&last)
	if errors.Is(err, driver.ErrNoDocuments) {
		return false, nil // it was dropped, or has just another key
	}
	return err == nil && t.follows() && last.Version == t.version(func(Chunk) bool { return true }), err
}

func (t *Table) chunks(uuid bson.Binary) bson.D { return ChunksOf(t.server, t.NS, uuid) }

// ChunksOf selects a collection's chunks, which have its name before 5.0.
func ChunksOf(server mongo.Version, ns string, uuid bson.Binary) bson.D {
	if server.AtLeast(5, 0) {
		return bson.D{{Key: "uuid", Value: uuid}}
	}
	return bson.D{{Key: "ns", Value: ns}}
}

// ReadChunks reads chunks in the order of their keys.
func ReadChunks(ctx context.Context, router *mongo.Cluster, of bson.D) ([]Chunk, error) {
	return mongo.ReadAll[Chunk](ctx, "read config.chunks")(
		router.Config("chunks").Find(ctx, of, options.Find().SetSort(bson.D{{Key: "min", Value: 1}})))
}

func (t *Table) follows() bool {
	for i := range t.Chunks {
		if i > 0 && !bytes.Equal(t.Chunks[i-1].Max, t.Chunks[i].Min) {
			return false
		}
	}
	return len(t.Chunks) > 0
}

func (t *Table) version(of func(Chunk) bool) (newest bson.Timestamp) {
	for _, c := range t.Chunks {
		if of(c) && c.Version.After(newest) {
			newest = c.Version
		}
	}
	return newest
}

// Owners returns the shards that have chunks, sorted.
func (t *Table) Owners() (all []string) {
	for _, c := range t.Chunks {
		all = append(all, c.Shard)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// Version is what commands to a shard carry, in the form of the servers' vWanted.
func (t *Table) Version(shard string) Version {
	v := Version{Shard: t.version(func(c Chunk) bool { return c.Shard == shard })}
	_, v.Name = mongo.SplitNS(t.NS)
	switch {
	case !t.server.AtLeast(5, 0):
		v.Shard = bson.A{v.Shard, t.Epoch}
	case !t.server.AtLeast(6, 0):
		v.Shard = bson.A{v.Shard, t.Epoch, t.Timestamp}
	default:
		v.Shard = bson.D{{Key: "e", Value: t.Epoch}, {Key: "t", Value: t.Timestamp}, {Key: "v", Value: v.Shard}}
	}
	return v
}

// Part is adjoining chunks of one shard.
type Part struct {
	Shard    string
	Min, Max bson.Raw
	Chunks   []Chunk
}

// Meets reports a chunk with keys of the part.
func (p Part) Meets(c Chunk) bool {
	return shardkey.CompareDocuments(c.Min, p.Max) < 0 && shardkey.CompareDocuments(p.Min, c.Max) < 0
}

// Stand is the version of a sharded collection's table at a moment.
type Stand struct {
	Epoch   bson.ObjectID  `bson:"epoch"`
	Version bson.Timestamp `bson:"version"`
	At      bson.Timestamp `bson:"at"` // a position before that moment
}

// Stand returns the table's version. at is a position before it was read.
func (t *Table) Stand(at mongo.OpTime) Stand {
	return Stand{Epoch: t.Epoch, Version: t.version(func(Chunk) bool { return true }), At: at.TS}
}

// Moved returns the parts that may have another shard since then, without chunks that are left out. A move gives the
// chunk, and one that the donor keeps, a version with a new first number, splits and merges do not. Only the moved
// one came to its shard lately.
func (t *Table) Moved(since Stand, without func(Chunk) bool) []Part {
	// A shard states its time before the config servers know of the move: long bounds the time between.
	const long = 3600 // seconds
	lately := bson.Timestamp{T: since.At.T - min(since.At.T, long)}
	var parts []Part
	for _, c := range t.Chunks {
		moved := t.Epoch != since.Epoch || c.Version.T > since.Version.T && c.since().After(lately)
		if !moved || without(c) {
			continue
		}
		if n := len(parts) - 1; n >= 0 && parts[n].Shard == c.Shard && bytes.Equal(parts[n].Max, c.Min) {
			parts[n].Max, parts[n].Chunks = c.Max, append(parts[n].Chunks, c)
			continue
		}
		parts = append(parts, Part{Shard: c.Shard, Min: c.Min, Max: c.Max, Chunks: []Chunk{c}})
	}
	return parts
}

// Index is one that holds every document of a collection under its shard key.
type Index struct {
	Key  bson.Raw // the pattern
	Hint any      // its name: others may have the same pattern. Of _id it is the pattern
}

// Range is a part of a collection between two complete keys of an index, the upper excluded.
type Range struct {
	Hint         any // what names the index
	Lower, Upper bson.Raw
}

// Range returns the part as a range of an index that begins with the shard key.
func (p Part) Range(index *Index) (*Range, error) {
	key := shardkey.Parse(index.Key)
	lower, err := KeyDocument(shardkey.Bound(p.Min), key)
	if err != nil {
		return nil, err
	}
	upper, err := KeyDocument(shardkey.Bound(p.Max), key)
	if err != nil {
		return nil, err
	}
	return &Range{Hint: index.Hint, Lower: lower, Upper: upper}, nil
}

// KeyDocument returns a bound with the names of a key's fields. Fields beyond the bound are before all their values.
func KeyDocument(bound []bson.RawValue, key shardkey.Pattern) (bson.Raw, error) {
	d := bson.D{}
	for i, f := range key {
		v := shardkey.MinKey()
		if i < len(bound) {
			v = bound[i]
		}
		d = append(d, bson.E{Key: f.Path, Value: v})
	}
	return bson.Marshal(d)
}

// KeyIndex chooses an index that holds every document under its shard key, nil for none.
func (t *Table) KeyIndex(specs []bson.Raw) *Index {
	want := shardkey.Parse(t.Key)
	for _, spec := range specs {
		if !Supports(spec, want) {
			continue
		}
		key, _ := spec.Lookup("key").DocumentOK()
		if name, ok := spec.Lookup("name").StringValueOK(); ok {
			return &Index{key, name}
		}
		return &Index{key, key}
	}
	return nil
}

// Supports reports an index of all documents, in the order of their values, that begins with a shard key.
func Supports(spec bson.Raw, pattern shardkey.Pattern) bool {
	for _, option := range []string{"partialFilterExpression", "sparse", "collation", "hidden"} {
		v := spec.Lookup(option)
		on, isBool := v.BooleanOK()
		n, isNumber := v.AsInt64OK()
		if v.Type != 0 && (!isBool || on) && (!isNumber || n != 0) {
			return false
		}
	}
	key, ok := spec.Lookup("key").DocumentOK()
	return ok && Begins(shardkey.Parse(key), pattern)
}

// Begins reports whether the keys of an index begin with a shard key.
func Begins(key, pattern shardkey.Pattern) bool {
	return len(key) >= len(pattern) && slices.EqualFunc(key[:len(pattern)], pattern, sameField)
}

func sameField(a, b shardkey.Field) bool {
	x, ok1 := a.Value.AsInt64OK()
	y, ok2 := b.Value.AsInt64OK()
	return a.Path == b.Path && (ok1 && ok2 && x == y || !(ok1 && ok2) && a.Value.Equal(b.Value))
}

// View is a History that does not change while it is read. It must not be kept.
type View struct{ h *History }

// Read calls fn with the history, which does not change meanwhile: fn must not wait for it to be read on.
func (h *History) Read(fn func(View) error) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return fn(View{h})
}

// Collection returns the one with a UUID that was sharded at a time, nil for none.
func (v View) Collection(uuid [16]byte, at bson.Timestamp) *Collection {
	if c := v.h.byUUID[uuid]; c != nil && !c.goneBy(at) {
		return c
	}
	return nil
}

// Migrated reports that a collection's chunks came to a shard, or left it.
func (v View) Migrated(ns, shard string) bool { return v.h.migrated[ns+" "+shard] }

// Migrations returns those to a shard, in the order in which they began.
func (v View) Migrations(to string) (all []*Migration) {
	for _, m := range v.h.migrations {
		if m.To == to {
			all = append(all, m)
		}
	}
	return all
}

// Incoming returns the migration that moves a key to a shard at a time, nil for none.
func (v View) Incoming(ns string, key []bson.RawValue, to string, at bson.Timestamp) *Migration {
	for i := len(v.h.migrations) - 1; i >= 0; i-- {
		if m := v.h.migrations[i]; m.To == to && m.NS == ns && m.Underway(at) && m.Contains(key) {
			return m
		}
	}
	return nil
}

// Arrived returns when the recipient of a migration became the owner of its chunk, and the collection; nil if it
// did not.
func (v View) Arrived(m *Migration) (at bson.Timestamp, uuid [16]byte, c *Collection) {
	uuid, c = v.h.named(m.NS)
	if c == nil {
		return at, uuid, nil
	}
	at, ok := c.Owners.gainedAt(m.low, m.To, m.Start)
	if !ok || m.ended(at) {
		return at, uuid, nil
	}
	return at, uuid, c
}
