package origin

import (
	"context"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// moves passes each schema change of a router's change stream once, although every shard reports it. It leaves
// out what movePrimary does to an unsharded collection. That makes a copy with another UUID and drops the
// original, and shards report both as if a user had done it.
type moves struct {
	of     *Streamed
	filter *shards.ChangeFilter

	mu    sync.Mutex
	at    mongo.OpTime        // the stream has passed it
	names map[[16]byte]string // of collections that the stream has seen
	next  map[[16]byte]bson.Binary
}

func newMoves(of *Streamed, names []schema.Name, pos stream.Position) *moves {
	m := &moves{of: of, filter: shards.NewChangeFilter(known(names)), at: pos.At, names: map[[16]byte]string{},
		next: map[[16]byte]bson.Binary{}}
	for _, one := range names {
		m.know(one.UUID, one.NS)
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.moves = m
	return m
}

func (m *moves) know(uuid bson.Binary, ns string) {
	if id, ok := ownership.ParseUUID(uuid); ok {
		m.names[id] = ns
	}
}

func (m *moves) wrap(emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	filtered := m.filter.Wrap(emit)
	return func(ctx context.Context, b *stream.Batch) error {
		for i := range b.Events {
			if ev := &b.Events[i]; ev.Kind == stream.SchemaChange {
				if err := m.change(ctx, ev); err != nil {
					return err
				}
			}
		}
		if err := filtered(ctx, b); err != nil {
			return err
		}
		m.mu.Lock()
		defer m.mu.Unlock()
		m.at = b.End
		return nil
	}
}

// change prepares the filter for a drop: a copy that was made before this run is unknown to it.
func (m *moves) change(ctx context.Context, ev *stream.Event) error {
	ch := ev.Change
	id, ok := ownership.ParseUUID(ch.UUID)
	if !ok {
		return nil
	}
	m.mu.Lock()
	ns, isKnown := m.names[id]
	switch ch.Kind {
	case stream.ChangeCreate:
		m.names[id] = ch.NS
	case stream.ChangeRename:
		m.names[id] = ch.To
	}
	m.mu.Unlock()
	copied := slices.ContainsFunc(m.filter.Copies(), func(c shards.Copy) bool { return c.Of == id })
	if ch.Kind != stream.ChangeDrop || !isKnown || copied {
		return nil
	}
	now, err := m.movedTo(ctx, ns, id, mongo.OpTime{TS: ev.At.TS, Term: -1})
	if err != nil || len(now.Data) == 0 {
		return err
	}
	other, _ := ownership.ParseUUID(now)
	m.filter.SetCopies([]shards.Copy{{NS: ns, ID: other, Of: id}})
	return nil
}

// successor is the UUID that a collection has got by a move, empty for none.
func (m *moves) successor(ctx context.Context, uuid bson.Binary) (now bson.Binary, err error) {
	id, ok := ownership.ParseUUID(uuid)
	m.mu.Lock()
	ns, isKnown := m.names[id]
	now, moved := m.next[id]
	at := m.at
	m.mu.Unlock()
	if !ok || moved || !isKnown {
		return now, nil
	}
	if now, err = m.movedTo(ctx, ns, id, at); err == nil && len(now.Data) > 0 {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.next[id] = now
		m.know(now, ns)
	}
	return now, err
}

// movedTo returns the UUID of the collection that has a name now, if it continues the one with id, by any number of
// moves. after is a position before a drop of that, or the drop's.
func (m *moves) movedTo(ctx context.Context, ns string, id [16]byte, after mongo.OpTime) (now bson.Binary, err error) {
	db, coll := mongo.SplitNS(ns)
	_, now, err = m.of.listed(ctx, db, bson.D{{Key: "name", Value: coll}, {Key: "type", Value: "collection"}})
	other, ok := ownership.ParseUUID(now)
	if err != nil || !ok || other == id {
		return bson.Binary{}, mongo.Wrap(err, "find out whether %s has moved", ns)
	}
	support, err := m.of.Support(ctx)
	if err != nil {
		return bson.Binary{}, err
	}
	until, err := m.of.latest(ctx)
	if err != nil {
		return bson.Binary{}, err
	}
	var since history
	from := after.Previous() // with the drop itself
	err = changestream.Changes(m.of.Cluster, support)(ctx, from, until, func(ch *stream.Change, _ mongo.OpTime) error {
		since.add(ch, ns)
		return nil
	})
	if err != nil || !since.continues(other, id) {
		return bson.Binary{}, err
	}
	return now, nil
}

// history has what became of a name, in order: creations, renames to it, and drops.
type history []step

type step struct {
	kind stream.ChangeKind
	uuid [16]byte
}

func (h *history) add(ch *stream.Change, ns string) {
	named := ch.Kind == stream.ChangeCreate || ch.Kind == stream.ChangeDrop
	named = named && ch.NS == ns || ch.Kind == stream.ChangeRename && ch.To == ns
	if id, ok := ownership.ParseUUID(ch.UUID); ok && named {
		*h = append(*h, step{ch.Kind, id})
	}
}

// made is the index at which a collection got the name, -1 if it had the name before.
func (h history) made(id [16]byte) int {
	return slices.IndexFunc(h, func(s step) bool { return s.uuid == id && s.kind != stream.ChangeDrop })
}

// continues reports that the collection that has the name is the one with id, but for moves. A move makes a copy while
// the original has the name, and then drops that. Users make one while nothing has the name.
func (h history) continues(now, id [16]byte) bool {
	for {
		at := h.made(now)
		if at < 0 {
			return true
		}
		next := slices.IndexFunc(h[at:], func(s step) bool { return s.uuid != now && s.kind == stream.ChangeDrop })
		if next < 0 || h[at].kind == stream.ChangeRename || h.made(h[at+next].uuid) > at { // else a move was given up
			return false
		}
		if now = h[at+next].uuid; now == id {
			return true
		}
	}
}
