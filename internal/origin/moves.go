package origin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/oplog"
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
	at    mongo.OpTime            // the stream has passed it
	colls map[[16]byte]collection // that the stream has seen
	next  map[[16]byte][16]byte   // of collections that have moved

	past past
}

type collection struct {
	ns   string
	made bool // in this run, so that the filter knows its copies
}

func newMoves(of *Streamed, names []schema.Name, pos stream.Position) *moves {
	m := &moves{of: of, filter: shards.NewChangeFilter(known(names)), at: pos.At,
		colls: map[[16]byte]collection{}, next: map[[16]byte][16]byte{}}
	for _, one := range names {
		if id, ok := ownership.ParseUUID(one.UUID); ok {
			m.colls[id] = collection{ns: one.NS}
		}
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.moves = m
	return m
}

func (m *moves) wrap(emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	return func(ctx context.Context, b *stream.Batch) error {
		kept := b.Events[:0]
		for i := range b.Events {
			ev := b.Events[i]
			if ev.Kind == stream.SchemaChange {
				if err := m.change(ctx, &ev); err != nil {
					return err
				}
				switch passes, err := m.filter.Passes(ctx, &ev); {
				case err != nil:
					return err
				case !passes:
					continue
				}
			}
			kept = append(kept, ev)
		}
		clear(b.Events[len(kept):])
		b.Events = kept
		if err := emit(ctx, b); err != nil {
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
	was, isKnown := m.colls[id]
	switch ch.Kind {
	case stream.ChangeCreate:
		m.colls[id] = collection{ch.NS, was.made || !isKnown}
	case stream.ChangeRename: // drops who had the name, as shards without the renamed one report later
		maps.DeleteFunc(m.colls, func(other [16]byte, has collection) bool { return has.ns == ch.To && other != id })
		m.colls[id] = collection{ch.To, was.made}
	}
	m.mu.Unlock()
	if ch.Kind != stream.ChangeDrop || !isKnown {
		return nil
	}
	var next *[16]byte
	copies := m.filter.Copies()
	if i := slices.IndexFunc(copies, func(c shards.Copy) bool { return c.Of == id }); i >= 0 {
		next = &copies[i].ID
	} else if !was.made {
		var err error
		if next, _, err = m.movedTo(ctx, was.ns, id, mongo.OpTime{TS: ev.At.TS, Term: -1}); err != nil {
			return err
		}
		if next != nil {
			m.filter.SetCopies([]shards.Copy{{NS: was.ns, ID: *next, Of: id}})
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.colls, id) // other shards report the drop, too
	if next != nil {
		m.colls[*next], m.next[id] = collection{was.ns, m.colls[*next].made}, *next
	}
	return nil
}

// successor is the UUID that a collection has got by a move, empty for none.
func (m *moves) successor(ctx context.Context, uuid bson.Binary) (now bson.Binary, err error) {
	id, ok := ownership.ParseUUID(uuid)
	m.mu.Lock()
	was, isKnown := m.colls[id]
	next, moved := m.next[id]
	at := m.at
	m.mu.Unlock()
	if !ok || !moved && !isKnown {
		return now, nil
	}
	if moved {
		return binaryOf(next), nil
	}
	_, latest, err := m.movedTo(ctx, was.ns, id, at)
	if err != nil {
		return now, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if latest == nil {
		delete(m.colls, id) // nobody need look again
		return now, nil
	}
	if *latest == id { // the routers have changed their mind
		return now, mongo.Retry(was.ns+" was not listed a moment ago", nil, "")
	}
	m.next[id], m.colls[*latest] = *latest, collection{was.ns, m.colls[*latest].made}
	return binaryOf(*latest), nil
}

func binaryOf(id [16]byte) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]} }

// movedTo returns the UUIDs of the first and of the latest collection that continue the one with id, nil if it was
// dropped. The latest one is itself while it is listed. after is a position before the drop of the one with id, or that
// of the drop. The collection may have moved several times since.
func (m *moves) movedTo(ctx context.Context, ns string, id [16]byte, after mongo.OpTime) (next, latest *[16]byte,
	err error) {
	db, coll := mongo.SplitNS(ns)
	_, now, err := m.of.listed(ctx, db, bson.D{{Key: "name", Value: coll}, {Key: "type", Value: "collection"}})
	listed, ok := ownership.ParseUUID(now)
	if err != nil || ok && listed == id {
		return nil, &id, mongo.Wrap(err, "find out whether %s has moved", ns)
	}
	after = after.Previous() // with the drop itself
	changes, err := m.changesOf(ctx, ns, after)
	if err != nil {
		return nil, nil, err
	}
	var there [][16]byte
	if ok {
		there = append(there, listed)
	}
	return follow(changes, ns, id, there)
}

// changesOf returns the changes of a name's collections after a position, up to now.
func (m *moves) changesOf(ctx context.Context, ns string, after mongo.OpTime) ([]pastChange, error) {
	support, err := m.of.Support(ctx)
	if err != nil {
		return nil, err
	}
	until, err := m.of.latest(ctx)
	if err != nil {
		return nil, err
	}
	return m.past.of(ctx, ns, oplog.Span{After: after, Until: until}, changestream.Changes(m.of.Cluster, support))
}

// mostChanges bounds what is kept of the past, some 20 MB.
const mostChanges = 100_000

// past has the schema changes of a span, read once: a job that lags asks about many collections, each time from its
// position to the present.
type past struct {
	mu   sync.Mutex
	span oplog.Span // zero: nothing is kept
	all  []pastChange
}

// pastChange is what matters of a schema change.
type pastChange struct {
	kind         stream.ChangeKind
	ns, to       string
	id, replaced [16]byte // zero: unknown
	at           mongo.OpTime
}

func pastOf(ch *stream.Change, at mongo.OpTime) pastChange {
	c := pastChange{kind: ch.Kind, ns: ch.NS, to: ch.To, at: at}
	c.id, _ = ownership.ParseUUID(ch.UUID)
	c.replaced, _ = ownership.ParseUUID(ch.Replaced)
	return c
}

func (c *pastChange) concerns(ns string) bool { return c.ns == ns || c.to == ns }

// of returns the changes of a name's collections in a span.
func (p *past) of(ctx context.Context, ns string, span oplog.Span, read schema.Changes) ([]pastChange, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.span.Until.IsZero() || span.After.Before(p.span.After) {
		p.span, p.all = oplog.Span{After: span.After, Until: span.After}, nil
	}
	var err error
	if p.span.Until.Before(span.Until) {
		from := p.span.After
		if from.Before(p.span.Until) { // whose moment may have been read in part
			from = p.span.Until.Previous()
		}
		p.all = slices.DeleteFunc(p.all, func(c pastChange) bool { return from.Before(c.at) })
		p.all, err = readPast(ctx, p.all, "", oplog.Span{After: from, Until: span.Until}, read)
		p.span.Until = span.Until
	}
	found := p.all
	if err != nil {
		p.span, p.all = oplog.Span{}, nil
	}
	if errors.Is(err, errManyChanges) { // fewer may be of this name
		found, err = readPast(ctx, nil, ns, span, read)
	}
	if err != nil {
		return nil, mongo.Wrap(err, "look for changes of %s since %s", ns, span.After)
	}
	var changes []pastChange
	for _, c := range found {
		if span.After.Before(c.at) && c.concerns(ns) {
			changes = append(changes, c)
		}
	}
	return changes, nil
}

var errManyChanges = mongo.WithHint(fmt.Errorf("there are more than %d schema changes", mostChanges),
	"start the job again with --restart, which copies the present state")

// readPast appends the changes of a span, of one name or of all if it is "". There are at most mostChanges then.
func readPast(ctx context.Context, all []pastChange, ns string, span oplog.Span,
	read schema.Changes) ([]pastChange, error) {
	err := read(ctx, span.After, span.Until, func(ch *stream.Change, at mongo.OpTime) error {
		c := pastOf(ch, at)
		if ns != "" && !c.concerns(ns) {
			return nil
		}
		if len(all) == mostChanges {
			return errManyChanges
		}
		all = append(all, c)
		return nil
	})
	return all, err
}

// follow returns the first and the latest collection that continue the one with id, by the changes of its name.
// listed has the name afterwards. movePrimary makes its copy while the original has the name. So who has the name right
// after the drop, or is made while another one has it, is a copy.
func follow(changes []pastChange, ns string, id [16]byte, listed [][16]byte) (next, latest *[16]byte, err error) {
	alive := [][16]byte{id}
	for i := range changes {
		ch := &changes[i]
		mine := slices.Contains(alive, ch.id)
		switch {
		case ch.kind == stream.ChangeCreate && !mine:
			alive = append(alive, ch.id)
		case ch.kind == stream.ChangeDrop && mine:
			if alive = without(alive, ch.id); len(alive) == 0 && ch.id == id {
				alive = without(holders(changes[i+1:], ns, listed), id) // other shards report the drop, too
			}
			if len(alive) > 0 && next == nil && ch.id == id {
				next = &alive[len(alive)-1]
			}
		case ch.kind == stream.ChangeRename && ch.ns == ns && ch.id == id:
			return nil, nil, mongo.Retry(ns+" was renamed meanwhile", nil, "")
		case ch.kind == stream.ChangeRename && ch.ns == ns && mine:
			return next, &ch.id, nil
		case ch.kind == stream.ChangeRename && ch.to == ns && !mine:
			alive = nil
		}
		if len(alive) == 0 {
			return next, nil, nil
		}
	}
	if slices.Contains(alive, id) { // it is about to be dropped
		alive = append(alive, listed...)
		return nil, &alive[len(alive)-1], nil
	}
	return next, &alive[len(alive)-1], nil
}

// holders returns the collections that had a name before some changes, by those that have it after them.
func holders(changes []pastChange, ns string, after [][16]byte) [][16]byte {
	had := slices.Clone(after)
	for _, ch := range slices.Backward(changes) {
		if ch.kind != stream.ChangeCreate && ch.kind != stream.ChangeDrop && ch.kind != stream.ChangeRename {
			continue // it had the name before, too
		}
		had = without(had, ch.id)
		if ch.kind == stream.ChangeDrop || ch.kind == stream.ChangeRename && ch.ns == ns {
			had = append(had, ch.id)
		}
		if ch.replaced != [16]byte{} && ch.to == ns {
			had = append(had, ch.replaced)
		}
	}
	return had
}

func without(list [][16]byte, one [16]byte) [][16]byte {
	return slices.DeleteFunc(slices.Clone(list), func(id [16]byte) bool { return id == one })
}
