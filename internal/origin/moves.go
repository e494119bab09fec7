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
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// moves passes each schema change of a router's change stream once, although every shard reports it. It leaves
// out what movePrimary does to an unsharded collection. That makes a copy with another UUID and drops the
// original, and shards report both as if a user had done it.
type moves struct {
	of     asked
	filter *shards.ChangeFilter

	mu    sync.Mutex
	at    mongo.OpTime            // the stream has passed it
	colls map[[16]byte]collection // that the stream has seen
	next  map[[16]byte][16]byte   // of collections that have moved

	past past
}

// asked is the present of a source, as moves asks for it.
type asked interface {
	// listed is the collection of a database that a filter selects; "" for none.
	listed(ctx context.Context, db string, filter bson.D) (name string, uuid bson.Binary, err error)
	// history reads the schema changes up to a position that nothing listed so far is after.
	history(ctx context.Context) (read schema.Changes, until mongo.OpTime, err error)
}

type collection struct {
	ns    string
	made  bool // in this run, so that the filter knows its copies
	gone  bool // by now, though the stream has not come to its end
	ahead bool // is by now another one's successor; the stream has not come to it
}

// newMoves goes on at a position. The names are as of it, or of the noted schema change after it.
func newMoves(of asked, names []schema.Name, pos stream.Position, noted mongo.OpTime) *moves {
	m := &moves{of: of, filter: shards.NewChangeFilter(known(names)), at: pos.At,
		colls: map[[16]byte]collection{}, next: map[[16]byte][16]byte{}}
	m.filter.SetNoted(noted)
	for _, one := range names {
		if id, ok := ownership.ParseUUID(one.UUID); ok {
			m.colls[id] = collection{ns: one.NS}
		}
	}
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
		m.colls[id] = collection{ns: ch.NS, made: was.made || was.ahead || !isKnown, gone: was.gone}
	case stream.ChangeRename: // drops who had the name, as shards without the renamed one report later
		maps.DeleteFunc(m.colls, func(other [16]byte, has collection) bool {
			return has.ns == ch.To && other != id && !has.ahead
		})
		m.colls[id] = collection{ns: ch.To, made: was.made, gone: was.gone}
	}
	m.mu.Unlock()
	if ch.Kind != stream.ChangeDrop {
		return m.changed(ctx, ev, id)
	}
	if !isKnown {
		return nil
	}
	if !was.made && len(m.filter.CopiesOf(id)) == 0 {
		if err := m.setCopies(ctx, was.ns, id, ev.At); err != nil {
			return err
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	delete(m.colls, id) // other shards report the drop, too
	for _, one := range m.filter.CopiesOf(id) {
		now := m.colls[one]
		now.ns, now.ahead = was.ns, false
		m.colls[one] = now
		m.moved(id, one, was.ns)
	}
	return nil
}

// moved records, under the lock, that a collection is another one now, from which no former move leads on.
func (m *moves) moved(id, now [16]byte, ns string) {
	delete(m.next, now)
	m.next[id] = now
	if _, isKnown := m.colls[now]; !isKnown {
		m.colls[now] = collection{ns: ns, ahead: true}
	}
}

// changed prepares the filter for what users change of a copy that was made before this run, while the original is not
// dropped yet.
func (m *moves) changed(ctx context.Context, ev *stream.Event, id [16]byte) error {
	switch ev.Change.Kind {
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
	default:
		return nil
	}
	if m.filter.Knows(id) {
		return nil
	}
	m.mu.Lock()
	of := slices.DeleteFunc(m.named(ev.Change.NS), func(one [16]byte) bool {
		return m.colls[one].made || !m.filter.Knows(one)
	})
	m.mu.Unlock()
	if len(of) == 0 {
		return nil
	}
	return m.setCopies(ctx, ev.Change.NS, of[0], ev.At)
}

// named returns, under the lock, the collections of a name that the stream has seen.
func (m *moves) named(ns string) (ids [][16]byte) {
	for id, has := range m.colls {
		if has.ns == ns && !has.ahead {
			ids = append(ids, id)
		}
	}
	slices.SortFunc(ids, func(a, b [16]byte) int { return bytes.Compare(a[:], b[:]) })
	return ids
}

// setCopies asks for the copies of a collection that were made before this run.
func (m *moves) setCopies(ctx context.Context, ns string, id [16]byte, at mongo.OpTime) error {
	was, err := m.movedTo(ctx, ns, id, at)
	var copies []shards.Copy
	for _, one := range was.copies {
		copies = append(copies, shards.Copy{NS: ns, ID: one, Of: id})
	}
	m.filter.SetCopies(copies)
	return err
}

// name is that of the documents' collection with a UUID, or of the one that it has moved to; "" for none. m may be nil.
func (m *moves) name(ctx context.Context, of asked, db string, uuid bson.Binary) (string, error) {
	for {
		name, _, err := of.listed(ctx, db, bson.D{{Key: "info.uuid", Value: uuid}})
		if name != "" || err != nil || m == nil {
			return name, mongo.Wrap(err, "find the collection %x of database %s", uuid.Data, db)
		}
		if uuid, err = m.successor(ctx, uuid); len(uuid.Data) == 0 || err != nil {
			return "", err
		}
	}
}

// successor is the UUID that a collection has got by a move, empty for none.
func (m *moves) successor(ctx context.Context, uuid bson.Binary) (now bson.Binary, err error) {
	id, ok := ownership.ParseUUID(uuid)
	m.mu.Lock()
	was, isKnown := m.colls[id]
	next, moved := m.next[id]
	at := m.at
	m.mu.Unlock()
	if !ok || !moved && (!isKnown || was.gone) {
		return now, nil
	}
	if moved {
		return binaryOf(next), nil
	}
	f, err := m.movedTo(ctx, was.ns, id, at)
	if err != nil {
		return now, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if f.latest == nil {
		was.gone = true
		m.colls[id] = was
		return now, nil
	}
	if *f.latest == id { // the routers have changed their mind
		return now, mongo.Retry(f.ns+" was not listed a moment ago", nil, "")
	}
	m.moved(id, *f.latest, f.ns)
	return binaryOf(*f.latest), nil
}

func binaryOf(id [16]byte) bson.Binary { return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: id[:]} }

// movedTo finds out which collection continues the one with id, which has a name until a position, or longer. That
// includes the present.
func (m *moves) movedTo(ctx context.Context, ns string, id [16]byte, at mongo.OpTime) (f fate, err error) {
	m.mu.Lock()
	f = fate{ns: ns, latest: &id, seen: m.named(ns)}
	m.mu.Unlock()
	for after, last := at.Previous(), ""; f.ns != last && err == nil; { // users have renamed it
		last = f.ns
		after, err = m.follow(ctx, &f, after)
	}
	return f, mongo.Wrap(err, "find out whether %s has moved", ns)
}

// follow goes on after a position, by one name.
func (m *moves) follow(ctx context.Context, f *fate, after mongo.OpTime) (renamed mongo.OpTime, err error) {
	db, coll := mongo.SplitNS(f.ns)
	_, now, err := m.of.listed(ctx, db, bson.D{{Key: "name", Value: coll}, {Key: "type", Value: "collection"}})
	listed, ok := ownership.ParseUUID(now)
	if err != nil || ok && listed == *f.latest {
		return after, err
	}
	read, until, err := m.of.history(ctx)
	if err != nil {
		return after, err
	}
	changes, err := m.past.of(ctx, f.ns, oplog.Span{After: after, Until: until}, read)
	if err != nil {
		return after, err
	}
	var there [][16]byte
	if ok {
		there = append(there, listed)
	}
	return f.follow(changes, there), nil
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

// fate is what has become of a collection.
type fate struct {
	seen   [][16]byte // had its name, too, when the stream came there
	copies [][16]byte // of it, when it was dropped, or now; the one that lasted longest is the last
	latest *[16]byte  // the collection that continues it; nil: it was dropped
	ns     string     // of the latest
}

// follow goes on with the latest collection, by the changes of its name. listed has the name afterwards. movePrimary
// makes its copy while the original has the name. So who has the name beside a collection, or is made then, is a copy,
// perhaps one that came to nothing. A rename ends it.
func (f *fate) follow(changes []pastChange, listed [][16]byte) (renamed mongo.OpTime) {
	id, first := *f.latest, f.copies == nil
	others, alone := f.seen, !first                              // a rename has dropped the others
	if i := slices.IndexFunc(changes, func(ch pastChange) bool { // it may be younger than the position
		return ch.id == id && (ch.kind == stream.ChangeCreate || ch.kind == stream.ChangeRename && ch.to == f.ns)
	}); i >= 0 {
		alone = alone || changes[i].kind == stream.ChangeRename
		changes, others = changes[i+1:], nil
	}
	if !alone {
		had := holders(changes, f.ns, listed)
		slices.Reverse(had)
		others = append(others, had...)
	}
	alive := [][16]byte{id}
	for _, other := range others {
		if !slices.Contains(alive, other) {
			alive = append(alive, other)
		}
	}
	if f.latest, f.seen = nil, nil; first {
		f.copies = without(alive, id)
	}
	for i := range changes {
		ch := &changes[i]
		mine := slices.Contains(alive, ch.id)
		switch {
		case ch.kind == stream.ChangeCreate && !mine:
			alive = append(alive, ch.id)
		case ch.kind == stream.ChangeDrop && mine:
			alive = without(alive, ch.id)
		case ch.kind == stream.ChangeRename && ch.ns == f.ns && mine:
			f.latest, f.ns = &ch.id, ch.to
			return ch.at
		case ch.kind == stream.ChangeRename && ch.to == f.ns:
			alive = slices.DeleteFunc(alive, func(other [16]byte) bool { return other != ch.id })
		}
		if first && (slices.Contains(alive, id) || mine && ch.id == id) {
			f.copies = without(alive, id)
		}
		if len(alive) == 0 {
			break
		}
	}
	for i := range alive {
		if f.latest == nil || slices.Contains(listed, alive[i]) {
			f.latest = &alive[i]
		}
	}
	return renamed
}

// holders returns the collections that had a name before some changes, by those that have it after them. The first is
// the last to lose it.
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
