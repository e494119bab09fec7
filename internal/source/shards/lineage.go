package shards

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// lineage knows which UUIDs collections get when movePrimary moves them. It is safe for
// concurrent use.
type lineage struct {
	mu   sync.Mutex
	once *Once // of whoever reads the changes
	read mongo.OpTime

	reading sync.Mutex
	ahead   *Once // has read on, up to seen
	seen    mongo.OpTime
}

// Begin has Identity know the collections that there are at a position, until a Stream
// knows newer ones.
func (c *Cluster) Begin(pos stream.Position, there []Collection) error {
	_, _, err := c.begin(pos, mongo.OpTime{}, there)
	return err
}

// begin knows the changes up to a position, and those before a schema change that was noted. It
// returns where the shards are read from.
func (c *Cluster) begin(pos stream.Position, noted mongo.OpTime, there []Collection) (*lineage, stream.Position, error) {
	b, err := split(pos)
	if err != nil {
		return nil, pos, err
	}
	l := &lineage{once: NewOnce(there), read: b.known}
	l.once.primary = c.PrimaryAt
	l.once.Begun(b.copies)
	l.once.known, l.once.done, l.once.noted = b.known, pos.At, noted
	c.lineage.Store(l)
	return l, b.from, nil
}

// filter has the changes of a batch known. See Once.filter.
func (l *lineage) filter(ctx context.Context, b *stream.Batch, note func(*stream.Event, []Copy) error) ([]Copy, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.read = mongo.MaxOpTime(l.read, b.End)
	return l.once.filter(ctx, b, note)
}

// Identity is the UUID that a collection has by now, which movePrimary changes where it
// is not sharded; false when it was dropped, or nobody knows of it. The collection
// is one of Begin, or of the changes since.
func (c *Cluster) Identity(ctx context.Context, uuid bson.Binary) (now bson.Binary, there bool, err error) {
	all, err := c.Identities(ctx, uuid)
	if err != nil || len(all) == 0 {
		return uuid, false, err
	}
	return all[0], true, nil
}

// Identities are the UUIDs under which a collection may be by now: the one of Identity,
// and that of the copy which movePrimary makes of it. The copy is the collection once the
// database has moved, though the shard where it was has not dropped it yet.
func (c *Cluster) Identities(ctx context.Context, uuid bson.Binary) (all []bson.Binary, err error) {
	id, ok := IDOf(uuid)
	l := c.lineage.Load()
	if !ok || l == nil {
		return nil, nil
	}
	l.reading.Lock()
	defer l.reading.Unlock()
	if err := c.readOn(ctx, l); err != nil {
		return nil, fmt.Errorf("find out whether a collection was dropped, or has moved with its database: %w", err)
	}
	id, there := l.ahead.now(id)
	if !there {
		return nil, nil
	}
	all = []bson.Binary{{Subtype: uuid.Subtype, Data: id[:]}}
	if moving, ok := l.ahead.copies[id]; ok {
		all = append(all, bson.Binary{Subtype: uuid.Subtype, Data: moving[:]})
	}
	return all, nil
}

// readOn has ahead know all that any shard has committed by now.
func (c *Cluster) readOn(ctx context.Context, l *lineage) error {
	l.mu.Lock()
	if l.ahead == nil || l.seen.Before(l.read) {
		l.ahead, l.seen = l.once.clone(), l.read
	}
	l.mu.Unlock()
	now, err := c.Latest(ctx, func(ctx context.Context, s Shard) (mongo.OpTime, error) { return s.Committed(ctx) })
	if err != nil {
		return err
	}
	all, err := c.changes(ctx, oplog.Span{After: l.seen, Until: now})
	if err == nil {
		_, err = l.ahead.filter(ctx, &stream.Batch{Events: all, End: now}, nil)
	}
	if err != nil {
		l.ahead = nil // it knows a part of them
		return err
	}
	l.seen = now
	return nil
}

// changes are the schema changes of a span, when all shards have committed them.
func (c *Cluster) changes(ctx context.Context, span oplog.Span) ([]stream.Event, error) {
	err := c.Each(ctx, func(ctx context.Context, i int) error { return c.Pass(ctx, c.Shards[i], span.Until) })
	if err != nil {
		return nil, err
	}
	all, err := c.Look(ctx, []string{}, span)
	if err != nil {
		return nil, err
	}
	return all, c.Each(ctx, func(ctx context.Context, i int) error {
		oldest, beginning, err := FirstEntry(ctx, c.Shards[i])
		if err == nil && !beginning && span.After.Before(oldest) {
			err = mongo.WithHint(fmt.Errorf("its oplog begins at %s, and %s is needed", oldest, span.After), "begin anew with --restart, with a larger oplog")
		}
		return err
	})
}

// now is the UUID that a collection has at the end; false when it is gone or not known.
func (o *Once) now(id [16]byte) (now [16]byte, there bool) {
	for {
		next, ok := o.next[id]
		if !ok {
			c := o.colls[id]
			return id, c != nil && !c.gone
		}
		id = next
	}
}

// clone knows the same and goes its own way.
func (o *Once) clone() *Once {
	c := &Once{colls: make(map[[16]byte]*known, len(o.colls)), names: maps.Clone(o.names), copies: maps.Clone(o.copies), next: maps.Clone(o.next),
		dropped: maps.Clone(o.dropped), gone: slices.Clone(o.gone), primary: o.primary}
	for id, k := range o.colls {
		one := *k
		one.indexes = maps.Clone(k.indexes)
		c.colls[id] = &one
	}
	return c
}
