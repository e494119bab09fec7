package ownership

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

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
)

// History knows which shard owned which keys since a time, from the chunk map and the oplog of writes to it. The
// histories in chunks do not suffice: 4.4 drops what is older than ten seconds at the next move, merges drop all of
// it. It is safe for concurrent use.
type History struct {
	opt HistoryOptions

	mu     sync.RWMutex
	oplog  configOplog
	floor  bson.Timestamp // from when on it knows; zero: not read yet
	owners map[string]*Owners
	byUUID map[[16]byte]*Collection
	// In the order in which they began.
	migrations []*Migration
	migrated   map[string]bool // by collection and shard: one that a chunk came to or left
	joined     map[string]bool // shards, since the floor

	passed map[string]bson.Timestamp // where the shards' sources stand
}

type HistoryOptions struct {
	Config Config
	Shards int // how many shards call Passed
	// Removed returns an error if nobody reads a removed shard that had joined since the History begins.
	Removed func(shard string) error
	// ByEpoch: chunks name an epoch, not the collection's UUID (before 5.0).
	ByEpoch bool
}

// Collection is a sharded one.
type Collection struct {
	NS     string
	Key    shardkey.Pattern
	Owners *Owners
	gone   bson.Timestamp // zero: it is there
}

// NewHistory reads nothing yet.
func NewHistory(o HistoryOptions) *History {
	h := &History{opt: o}
	h.oplog = configOplog{Config: o.Config, apply: h.apply,
		namespaces: bson.A{"config.chunks", "config.collections", "config.migrations", "config.shards"}}
	return h
}

// Load makes the history begin at a time, or before.
func (h *History) Load(ctx context.Context, at bson.Timestamp) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.floor.IsZero() && !at.Before(h.floor) {
		return nil
	}
	h.floor = at
	h.passed = map[string]bson.Timestamp{}
	h.owners, h.byUUID = map[string]*Owners{}, map[[16]byte]*Collection{}
	h.migrations, h.migrated, h.joined = nil, map[string]bool{}, map[string]bool{}
	if err := h.load(ctx); err != nil {
		h.floor = bson.Timestamp{}
		return fmt.Errorf("read the chunk map: %w", err)
	}
	return nil
}

// retention is how long, in seconds, the history keeps what all sources have passed: prepared transactions may have
// earlier times.
const retention = 60 * 60

// Passed records that a shard's source has passed a time, and forgets old history.
func (h *History) Passed(shard string, at bson.Timestamp) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.passed[shard] = at
	first := slices.MinFunc(slices.Collect(maps.Values(h.passed)), bson.Timestamp.Compare)
	if len(h.passed) < h.opt.Shards || first.T < h.floor.T+2*retention {
		return
	}
	h.floor = bson.Timestamp{T: first.T - retention}
	for uuid, c := range h.byUUID {
		c.Owners.forget(h.floor)
		if c.goneBy(h.floor) {
			delete(h.byUUID, uuid)
			maps.DeleteFunc(h.owners, func(_ string, o *Owners) bool { return o == c.Owners })
		}
	}
	h.migrations = slices.DeleteFunc(h.migrations, func(m *Migration) bool { return m.ended(h.floor) })
}

// goneBy reports a collection that was unsharded before a time.
func (c *Collection) goneBy(at bson.Timestamp) bool { return !c.gone.IsZero() && c.gone.Before(at) }

// load reads the chunk map after the writes to it since the floor: a chunk without writes was the same then.
func (h *History) load(ctx context.Context) error {
	if err := h.oplog.startAt(ctx, h.floor); err != nil {
		return err
	}
	chunks, err := h.all(ctx, "chunks")
	if err != nil {
		return err
	}
	collections, err := h.all(ctx, "collections")
	for _, doc := range collections {
		if err == nil && !isDropped(doc) {
			err = h.addCollection(doc)
		}
	}
	if err == nil {
		err = h.loadMigrations(ctx)
	}
	if err == nil {
		err = h.oplog.catchUp(ctx)
	}
	for _, doc := range chunks {
		if err != nil {
			return err
		}
		var ch chunkDoc
		if ch, err = parseChunk(doc); err == nil {
			h.ownersOf(ch.of).fill(ch.low, ch.high, ch.shard)
		}
	}
	return err
}

func (h *History) all(ctx context.Context, name string) ([]bson.Raw, error) {
	return mongo.ReadAll[bson.Raw](ctx, "read config.%s", name)(h.oplog.Cluster.Config(name).Find(ctx, bson.D{}))
}

func (h *History) ownersOf(id string) *Owners {
	o := h.owners[id]
	if o == nil {
		o = newOwners(h.floor)
		h.owners[id] = o
	}
	return o
}

// ReadUntil reads the history up to a time.
func (h *History) ReadUntil(ctx context.Context, at bson.Timestamp) error {
	h.mu.RLock()
	readTo := h.oplog.readTo
	h.mu.RUnlock()
	if !readTo.Before(at) {
		return nil
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.oplog.readUntil(ctx, at)
}

// loadMigrations reads the migrations under way at the floor.
func (h *History) loadMigrations(ctx context.Context) error {
	const longest = 24 * 60 * 60 // seconds of a migration
	from := bson.Timestamp{T: h.floor.T - min(longest, h.floor.T)}
	return EachEntry(ctx, h.oplog.Cluster, bson.D{
		{Key: "ts", Value: bson.D{{Key: "$gte", Value: from}, {Key: "$lte", Value: h.floor}}},
		{Key: "ns", Value: "config.migrations"},
	}, h.floor, func(entry bson.Raw) error {
		_, err := h.oplog.entry(ctx, entry)
		h.migrations = slices.DeleteFunc(h.migrations, func(m *Migration) bool { return !m.End.IsZero() })
		return err
	})
}

func (h *History) apply(ctx context.Context, e *Entry) error {
	switch e.NS {
	case "config.migrations":
		return h.applyMigration(e)
	case "config.chunks":
		return h.applyChunk(ctx, e)
	case "config.collections":
		return h.applyCollection(ctx, e)
	case "config.shards":
		return h.applyShard(e)
	}
	return nil
}

// applyShard finds removed shards, which the list does not show before 5.0.
func (h *History) applyShard(e *Entry) error {
	switch name := e.id(); {
	case e.Op == "i":
		h.joined[name] = true
	case e.Op == "d" && h.joined[name]:
		return h.opt.Removed(name)
	}
	return nil
}

func (h *History) applyChunk(ctx context.Context, e *Entry) error {
	if e.Op == "d" || e.Op == "u" && !e.Replaces() {
		// A merge deletes the chunks that it replaces. Refined bounds, and marks, change no owner.
		if e.Op == "u" && HasField(e.O, "shard") {
			return fmt.Errorf("a chunk gets another owner by an update of a form that is not known: %s", e.O)
		}
		return nil
	}
	ch, err := parseChunk(e.O)
	if err != nil {
		return err
	}
	owners := h.ownersOf(ch.of)
	ch.at, ch.created = e.At, e.Op == "i"
	migration := h.migrationOf(&ch)
	ch.underway = migration != nil && ch.moved && !ch.created
	if owners.needsDonor(ch.chunkWrite) {
		if migration != nil {
			ch.donor = migration.From
		} else if ch.donor, err = h.loggedDonor(ctx, &ch, e.wall); err != nil {
			return fmt.Errorf("find who gave a chunk to %s: %w", ch.shard, err)
		}
	}
	owners.write(ch.chunkWrite)
	return nil
}

func (h *History) named(ns string) (uuid [16]byte, c *Collection) {
	for uuid, c := range h.byUUID {
		if c.NS == ns && c.gone.IsZero() {
			return uuid, c
		}
	}
	return uuid, nil
}

// loggedDonor returns the donor of a chunk by the cluster's changelog, from the move to the recipient closest to a
// time; perhaps Unknown. The chunk's own history names donors of the last ten seconds.
func (h *History) loggedDonor(ctx context.Context, ch *chunkDoc, wall time.Time) (string, error) {
	type move struct {
		Time    time.Time
		Details struct{ From string }
	}
	moves, err := mongo.ReadAll[move](ctx, "read config.changelog")(h.oplog.Cluster.Config("changelog").Find(ctx, bson.D{
		{Key: "what", Value: bson.D{{Key: "$in", Value: bson.A{"moveChunk.commit", "moveChunk.start"}}}},
		{Key: "details.min", Value: ch.min}, {Key: "details.to", Value: ch.shard},
	}))
	from, least := Unknown, time.Duration(-1)
	for _, m := range moves {
		if d := m.Time.Sub(wall).Abs(); least < 0 || d < least {
			from, least = m.Details.From, d
		}
	}
	return from, err
}

func (h *History) applyCollection(ctx context.Context, e *Entry) error {
	doc, ns := e.O, e.id()
	if e.Op == "d" {
		h.markUnsharded(ns, e.At)
		return nil
	}
	if e.Op != "i" && !e.Replaces() {
		var err error
		doc, err = h.oplog.Cluster.Config("collections").FindOne(ctx, bson.D{{Key: "_id", Value: ns}}).Raw()
		if errors.Is(err, driver.ErrNoDocuments) {
			return nil // its end comes later
		}
		if err != nil {
			return fmt.Errorf("read the entry of %s: %w", ns, err)
		}
	}
	if isDropped(doc) {
		h.markUnsharded(ns, e.At)
		return nil
	}
	return h.addCollection(doc)
}

// isDropped reports a collection that 4.4 keeps in the list after its end.
func isDropped(doc bson.Raw) bool {
	dropped, _ := doc.Lookup("dropped").BooleanOK()
	return dropped
}

func (h *History) markUnsharded(ns string, at bson.Timestamp) {
	for _, c := range h.byUUID {
		if c.NS == ns && c.gone.IsZero() {
			c.gone = at
		}
	}
}

// addCollection takes the config servers' entry. A known collection keeps its owners when a refined key changes its
// epoch.
func (h *History) addCollection(doc bson.Raw) error {
	_, data, ok := doc.Lookup("uuid").BinaryOK()
	ns, _ := doc.Lookup("_id").StringValueOK()
	pattern, isKey := doc.Lookup("key").DocumentOK()
	if !ok || len(data) != 16 || !isKey {
		return fmt.Errorf("collection %q has no UUID, or no key: %s", ns, doc)
	}
	uuid, id := [16]byte(data), string(data)
	if h.opt.ByEpoch {
		epoch, ok := doc.Lookup("lastmodEpoch").ObjectIDOK()
		if !ok {
			return fmt.Errorf("collection %q has no epoch: %s", ns, doc)
		}
		id = string(epoch[:])
	}
	c := h.byUUID[uuid]
	if c == nil {
		c = &Collection{Owners: h.ownersOf(id)}
		h.byUUID[uuid] = c
	}
	h.owners[id] = c.Owners
	c.NS, c.Key = ns, shardkey.Parse(slices.Clone(pattern))
	return nil
}

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
			ch.validAfter.T, ch.validAfter.I, _ = entry.Lookup("validAfter").TimestampOK()
		} else {
			ch.donor, _ = entry.Lookup("shard").StringValueOK()
		}
		n++
	}
	if ch.of == "" || n == 0 {
		return ch, fmt.Errorf("a chunk without collection or history: %s", doc)
	}
	return ch, nil
}
