package origin

import (
	"bytes"
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
	if *latest != id {
		m.next[id], m.colls[*latest] = *latest, collection{was.ns, m.colls[*latest].made}
	}
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
func (m *moves) changesOf(ctx context.Context, ns string, after mongo.OpTime) ([]stream.Change, error) {
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

type pastChange struct {
	stream.Change
	at mongo.OpTime
}

// of returns the changes of a name's collections in a span.
func (p *past) of(ctx context.Context, ns string, span oplog.Span, read schema.Changes) ([]stream.Change, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.span.Until.IsZero() || span.After.Before(p.span.After) {
		p.span, p.all = oplog.Span{After: span.After, Until: span.After}, nil
	}
	var err error
	if all := p.all; p.span.Until.Before(span.Until) {
		from := p.span.After
		if from.Before(p.span.Until) { // whose moment may have been read in part
			from = p.span.Until.Previous()
		}
		all = slices.DeleteFunc(all, func(c pastChange) bool { return from.Before(c.at) })
		rest := oplog.Span{After: from, Until: span.Until}
		p.all, err = readPast(ctx, all, rest, read, func(*stream.Change) bool { return true })
		p.span.Until = span.Until
	}
	mine := func(ch *stream.Change) bool { return ch.NS == ns || ch.To == ns }
	found := p.all
	if err != nil {
		p.span, p.all = oplog.Span{}, nil
	}
	if errors.Is(err, errManyChanges) { // fewer may be of this name
		found, err = readPast(ctx, nil, span, read, mine)
	}
	if err != nil {
		return nil, mongo.Wrap(err, "look for changes of %s since %s", ns, span.After)
	}
	var changes []stream.Change
	for i := range found {
		if c := &found[i]; span.After.Before(c.at) && mine(&c.Change) {
			changes = append(changes, c.Change)
		}
	}
	return changes, nil
}

var errManyChanges = mongo.WithHint(fmt.Errorf("there are more than %d schema changes", mostChanges),
	"start the job again with --restart, which copies the present state")

// readPast appends the changes of a span to keep, mostChanges in all.
func readPast(ctx context.Context, all []pastChange, span oplog.Span, read schema.Changes,
	keep func(*stream.Change) bool) ([]pastChange, error) {
	err := read(ctx, span.After, span.Until, func(ch *stream.Change, at mongo.OpTime) error {
		if !keep(ch) {
			return nil
		}
		if len(all) == mostChanges {
			return errManyChanges
		}
		all = append(all, pastChange{stream.Change{Kind: ch.Kind, NS: ch.NS, To: ch.To,
			Replaced: bson.Binary{Data: bytes.Clone(ch.Replaced.Data)}, UUID: bson.Binary{Data: bytes.Clone(ch.UUID.Data)}}, at})
		return nil
	})
	return all, err
}

// follow returns the first and the latest collection that continue the one with id, by the changes of its name.
// listed has the name afterwards. movePrimary makes its copy while the original has the name. So who has the name right
// after the drop, or is made while another one has it, is a copy.
func follow(changes []stream.Change, ns string, id [16]byte, listed [][16]byte) (next, latest *[16]byte, err error) {
	alive := [][16]byte{id}
	for i := range changes {
		ch := &changes[i]
		of, _ := ownership.ParseUUID(ch.UUID)
		mine := slices.Contains(alive, of)
		switch {
		case ch.Kind == stream.ChangeCreate && !mine:
			alive = append(alive, of)
		case ch.Kind == stream.ChangeDrop && mine:
			if alive = without(alive, of); len(alive) == 0 && of == id {
				alive = without(holders(changes[i+1:], ns, listed), id) // other shards report the drop, too
			}
			if len(alive) > 0 && next == nil && of == id {
				next = &alive[len(alive)-1]
			}
		case ch.Kind == stream.ChangeRename && ch.NS == ns && of == id:
			return nil, nil, mongo.Retry(ns+" was renamed meanwhile", nil, "")
		case ch.Kind == stream.ChangeRename && ch.NS == ns && mine:
			return next, &of, nil
		case ch.Kind == stream.ChangeRename && ch.To == ns && !mine:
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
func holders(changes []stream.Change, ns string, after [][16]byte) [][16]byte {
	had := slices.Clone(after)
	for _, ch := range slices.Backward(changes) {
		of, _ := ownership.ParseUUID(ch.UUID)
		had = without(had, of)
		if ch.Kind == stream.ChangeDrop || ch.Kind == stream.ChangeRename && ch.NS == ns {
			had = append(had, of)
		}
		if replaced, ok := ownership.ParseUUID(ch.Replaced); ok && ch.To == ns {
			had = append(had, replaced)
		}
	}
	return had
}

func without(list [][16]byte, one [16]byte) [][16]byte {
	return slices.DeleteFunc(slices.Clone(list), func(id [16]byte) bool { return id == one })
}
