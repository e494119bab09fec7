package shards

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// PrimaryAt returns a database's primary shard at a time, "" for none. sure is false if that is no
// longer known: then shard is the present one. PrimaryAt reads a snapshot of the config servers (from
// 5.0 on, for some minutes), else their oplog.
func (c *Cluster) PrimaryAt(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error) {
	if !c.Before(5, 0) {
		shard, err := c.primaryAsOf(ctx, db, at)
		if err == nil || !mongo.Forgotten(err) && mongo.Classify(err) != mongo.ClassFatal {
			return shard, true, mongo.Wrap(err, "find the shard of database %s", db)
		}
	}
	all, err := c.primaries.open(ctx, c)
	if err != nil {
		return "", false, fmt.Errorf("find which shard had database %s at %s: %w", db, at, err)
	}
	return all.At(ctx, db, at.TS)
}

func (c *Cluster) primaryAsOf(ctx context.Context, db string, at mongo.OpTime) (string, error) {
	ctx, end, err := c.withClusterTime(ctx, c.Router, at)
	if err != nil {
		return "", err
	}
	defer end()
	snapshot := bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at.TS}}
	return ownership.Primary(ctx, c.Router, db, snapshot)
}

// lazyPrimaries opens the history of primary shards on demand. It is safe for concurrent use.
type lazyPrimaries struct {
	mu        sync.Mutex
	primaries *ownership.Primaries
	config    *mongo.Cluster // if the cluster has not opened it
}

func (p *lazyPrimaries) open(ctx context.Context, c *Cluster) (_ *ownership.Primaries, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primaries != nil {
		return p.primaries, nil
	}
	config := c.config
	if config == nil {
		if config, err = c.connectConfig(ctx, "recent moves are recorded only in the config servers' oplog: they have to be "+
			"reachable from here, with the user of the router or by --source-shard config=…"); err != nil {
			return nil, err
		}
		p.config = config
	}
	p.primaries = ownership.NewPrimaries(c.readConfig(config), c.Router)
	return p.primaries, nil
}

func (p *lazyPrimaries) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config != nil {
		p.config.Close()
		p.config, p.primaries = nil, nil
	}
}

// uuidHistory tracks the UUIDs of collections through movePrimary. It is safe for concurrent use.
type uuidHistory struct {
	mu        sync.Mutex
	changes   *ChangeFilter // of the stream
	readUntil mongo.OpTime

	aheadMu    sync.Mutex
	ahead      *ChangeFilter // ahead of the stream, up to aheadUntil
	aheadUntil mongo.OpTime
}

// SetCollections sets the collections at a position for Identity, until a Stream has newer ones.
func (c *Cluster) SetCollections(pos stream.Position, collections []Collection) error {
	_, _, err := c.resume(pos, mongo.OpTime{}, collections)
	return err
}

// resume begins a history at a position, or at a stored schema change after it. It returns where to
// read the shards from.
func (c *Cluster) resume(pos stream.Position, noted mongo.OpTime,
	collections []Collection) (*uuidHistory, stream.Position, error) {
	b, err := parsePosition(pos)
	if err != nil {
		return nil, pos, err
	}
	h := &uuidHistory{changes: NewChangeFilter(collections), readUntil: b.knownUntil}
	h.changes.primary = c.PrimaryAt
	h.changes.SetCopies(b.copies)
	h.changes.knownUntil, h.changes.namesAt, h.changes.notedAt = b.knownUntil, pos.At, noted
	c.uuids.Store(h)
	return h, b.from, nil
}

func (h *uuidHistory) filter(ctx context.Context, b *stream.Batch,
	note func(*stream.Event, []Copy) error) ([]Copy, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.readUntil = mongo.MaxOpTime(h.readUntil, b.End)
	return h.changes.filter(ctx, b, note)
}

// Identity returns the present UUID of a collection, which movePrimary changes if it is unsharded; false
// if it was dropped or is unknown. The collection is one of SetCollections or of a later change.
func (c *Cluster) Identity(ctx context.Context, uuid bson.Binary) (now bson.Binary, there bool, err error) {
	all, err := c.Identities(ctx, uuid)
	if err != nil || len(all) == 0 {
		return uuid, false, err
	}
	return all[0], true, nil
}

// Identities returns the UUIDs that a collection may have now: that of Identity and that of movePrimary's
// copy. The copy is the collection once the database has moved, even before the original is dropped.
func (c *Cluster) Identities(ctx context.Context, uuid bson.Binary) (all []bson.Binary, err error) {
	id, ok := ownership.ParseUUID(uuid)
	h := c.uuids.Load()
	if !ok || h == nil {
		return nil, nil
	}
	h.aheadMu.Lock()
	defer h.aheadMu.Unlock()
	if err := c.readAhead(ctx, h); err != nil {
		return nil, fmt.Errorf("find whether a collection was dropped or moved with its database: %w", err)
	}
	id, there := h.ahead.currentUUID(id)
	if !there {
		return nil, nil
	}
	all = []bson.Binary{{Subtype: uuid.Subtype, Data: id[:]}}
	for _, moving := range h.ahead.copies[id] {
		all = append(all, bson.Binary{Subtype: uuid.Subtype, Data: moving[:]})
	}
	return all, nil
}

// readAhead updates ahead to everything that any shard has committed.
func (c *Cluster) readAhead(ctx context.Context, h *uuidHistory) error {
	h.mu.Lock()
	if h.ahead == nil || h.aheadUntil.Before(h.readUntil) {
		h.ahead, h.aheadUntil = h.changes.clone(), h.readUntil
	}
	h.mu.Unlock()
	now, err := c.Committed(ctx)
	if err != nil {
		return err
	}
	all, err := c.schemaChanges(ctx, oplog.Span{After: h.aheadUntil, Until: now})
	if err == nil {
		_, err = h.ahead.filter(ctx, &stream.Batch{Events: all, End: now}, nil)
	}
	if err != nil {
		h.ahead = nil // incomplete
		return err
	}
	h.aheadUntil = now
	return nil
}

// schemaChanges returns the schema changes of a span, after all shards have committed them.
func (c *Cluster) schemaChanges(ctx context.Context, span oplog.Span) ([]stream.Event, error) {
	err := c.Each(ctx, func(ctx context.Context, i int) error { return c.Pass(ctx, c.Shards[i], span.Until) })
	if err != nil {
		return nil, err
	}
	all, err := c.Look(ctx, []string{}, span)
	if err != nil {
		return nil, err
	}
	return all, c.Each(ctx, func(ctx context.Context, i int) error {
		oldest, beginning, err := c.Shards[i].OldestEntry(ctx)
		if err == nil && !beginning && span.After.Before(oldest) {
			err = mongo.WithHint(fmt.Errorf("its oplog begins at %s, and %s is needed", oldest, span.After),
				"start again with --restart, with a larger oplog")
		}
		return err
	})
}

// currentUUID returns a collection's last UUID; false if it is gone or unknown.
func (f *ChangeFilter) currentUUID(id [16]byte) (now [16]byte, there bool) {
	for {
		next, ok := f.successors[id]
		if !ok {
			c := f.colls[id]
			return id, c != nil && !c.gone
		}
		id = next
	}
}

func (f *ChangeFilter) clone() *ChangeFilter {
	c := &ChangeFilter{colls: make(map[[16]byte]*collState, len(f.colls)), names: maps.Clone(f.names),
		copies: maps.Clone(f.copies), successors: maps.Clone(f.successors), droppedDBs: maps.Clone(f.droppedDBs),
		gone: slices.Clone(f.gone), primary: f.primary}
	for id, k := range f.colls {
		one := *k
		one.indexes = maps.Clone(k.indexes)
		c.colls[id] = &one
	}
	return c
}
