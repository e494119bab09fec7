package shards

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/stream"
)

// Collection is one of the cluster's, as its shards know it.
type Collection struct {
	NS   string
	UUID bson.Binary
}

// ChangeFilter passes each schema change once, although every shard with a part of the collection logs
// it at its own time. It omits changes that are in effect already.
//
// It also omits what movePrimary does to unsharded collections: a copy with another UUID on the new
// shard, and a drop of the original, both logged like a user's. Index changes of a copy pass: users
// may create indexes on it before the original is dropped.
//
// A drop counts if the database's primary shard logs it. Other shards drop what has moved away, or
// their part of a sharded collection.
//
// ChangeFilter is not safe for concurrent use. To begin at a later position it needs that position's
// Copies.
type ChangeFilter struct {
	colls      map[[16]byte]*collState
	names      map[string][16]byte     // of the collections that exist
	copies     map[[16]byte][][16]byte // from a collection to movePrimary's copies, the oldest first
	successors map[[16]byte][16]byte   // from a collection that is gone to the copy that replaced it
	droppedDBs map[string]bool         // databases
	gone       [][16]byte              // collections, the oldest first
	history    []copiesFrom            // of copies, the oldest needed first

	knownUntil mongo.OpTime // changes up to here are omitted; zero: none
	namesAt    mongo.OpTime // time of the initial names; zero: nothing is read again
	notedAt    mongo.OpTime // time of a stored schema change; all changes before it were applied

	// primary returns the primary shard of a database at a time. sure is false if it is the present
	// one. Nil: unknown.
	primary func(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error)
}

// copiesFrom are the copies from a position on. Batches may contain events after their end.
type copiesFrom struct {
	from   mongo.OpTime
	copies []Copy
}

// maxGone bounds the dropped collections, and databases, that are remembered: other shards log the
// drop seconds later.
const maxGone = 10_000

type collState struct {
	ns      string
	gone    bool
	indexes map[string]bson.Raw // by name; nil: dropped
	lastMod bson.Raw            // of collMod
	copyOf  *[16]byte           // the original that movePrimary is copying
}

// NewChangeFilter returns a filter that begins with the given collections.
func NewChangeFilter(collections []Collection) *ChangeFilter {
	f := &ChangeFilter{colls: map[[16]byte]*collState{}, names: map[string][16]byte{}, droppedDBs: map[string]bool{},
		copies: map[[16]byte][][16]byte{}, successors: map[[16]byte][16]byte{}}
	for _, c := range collections {
		if id, ok := ownership.ParseUUID(c.UUID); ok {
			f.add(id, c.NS)
		}
	}
	return f
}

// Copy is an unfinished copy by movePrimary.
type Copy struct {
	NS     string
	ID, Of [16]byte // UUIDs of the copy and of the original
}

// Copies returns the unfinished copies, by name. Those of one collection are in the order in which they were made.
func (f *ChangeFilter) Copies() []Copy {
	all := make([]Copy, 0, len(f.copies))
	for of, ids := range f.copies {
		for _, id := range ids {
			all = append(all, Copy{NS: f.colls[id].ns, ID: id, Of: of})
		}
	}
	slices.SortStableFunc(all, func(a, b Copy) int { return cmp.Compare(a.NS, b.NS) })
	return all
}

// Knows reports that the filter has, or had, a collection.
func (f *ChangeFilter) Knows(id [16]byte) bool { return f.colls[id] != nil }

// CopiesOf returns the UUIDs of a collection's unfinished copies, the oldest first.
func (f *ChangeFilter) CopiesOf(id [16]byte) [][16]byte { return f.copies[id] }

// SetNoted sets the time of a stored schema change: the initial collections are as after it, or as before it. All
// changes before it were applied.
func (f *ChangeFilter) SetNoted(at mongo.OpTime) { f.notedAt = at }

// SetCopies adds copies that movePrimary had begun before. It ignores those among the filter's
// collections: the names may be ahead of the position.
func (f *ChangeFilter) SetCopies(all []Copy) {
	for _, c := range all {
		if f.colls[c.ID] == nil {
			f.addCopy(c)
		}
	}
	f.history = []copiesFrom{{copies: f.Copies()}}
}

func (f *ChangeFilter) addCopy(c Copy) {
	f.colls[c.ID] = &collState{ns: c.NS, indexes: map[string]bson.Raw{}, copyOf: &c.Of}
	f.copies[c.Of] = append(slices.Clip(f.copies[c.Of]), c.ID)
}

func (f *ChangeFilter) add(id [16]byte, ns string) {
	f.colls[id], f.names[ns] = &collState{ns: ns, indexes: map[string]bson.Raw{}}, id
}

type emitFunc = func(context.Context, *stream.Batch) error

// filter removes known changes from a batch, and returns the copies at its end. It calls note, if not
// nil, with each remaining schema change and the copies at its position.
func (f *ChangeFilter) filter(ctx context.Context, b *stream.Batch,
	note func(*stream.Event, []Copy) error) (copies []Copy, err error) {
	kept := b.Events[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind != stream.SchemaChange {
			kept = append(kept, *ev)
			continue
		}
		if !f.knownUntil.IsZero() && !f.knownUntil.Before(ev.At) {
			continue
		}
		isNew, err := f.Passes(ctx, ev)
		if err != nil {
			ch := ev.Change
			return nil, fmt.Errorf("%s of %s at %s, logged by shard %s: %w", ch.Kind, ch.NS, ev.At, ch.Shard, err)
		}
		f.history = append(f.history, copiesFrom{from: ev.At, copies: f.Copies()})
		if isNew {
			kept = append(kept, *ev)
		}
	}
	clear(b.Events[len(kept):])
	b.Events = kept
	for i := range kept {
		if ev := &kept[i]; note != nil && ev.Kind == stream.SchemaChange {
			if err := note(ev, f.history[f.indexAt(ev.At)].copies); err != nil {
				return nil, err
			}
		}
	}
	return f.copiesAt(b.End), nil
}

// copiesAt returns the copies at a position. Later calls must be for later positions.
func (f *ChangeFilter) copiesAt(pos mongo.OpTime) []Copy {
	i := f.indexAt(pos)
	if i < 0 {
		return nil
	}
	f.history = slices.Delete(f.history, 0, i)
	return f.history[0].copies
}

// indexAt returns the index of the last part of the history up to a position, -1 for none.
func (f *ChangeFilter) indexAt(pos mongo.OpTime) int {
	i := -1
	for i+1 < len(f.history) && !pos.Before(f.history[i+1].from) {
		i++
	}
	return i
}

// Passes reports a new change: no drop that another shard than the database's primary logged.
func (f *ChangeFilter) Passes(ctx context.Context, ev *stream.Event) (bool, error) {
	ch := ev.Change
	if !f.namesAt.IsZero() && !f.namesAt.Before(ev.At) || ev.At.Before(f.notedAt) {
		f.reapply(ch)
		return false, nil
	}
	drop := ch.Kind == stream.ChangeDrop || ch.Kind == stream.ChangeDropView || ch.Kind == stream.ChangeDropAllViews
	if !drop || f.primary == nil || ch.Shard == "" {
		return f.isNew(ch), nil
	}
	db, _ := mongo.SplitNS(ch.NS)
	shard, sure, err := f.primary(ctx, db, ev.At)
	if err != nil {
		return false, err
	}
	id, known := ownership.ParseUUID(ch.UUID)
	moves := len(f.copies[id]) > 0
	if c := f.colls[id]; c != nil && c.copyOf != nil {
		moves = true
	}
	switch primary := shard == ch.Shard; {
	case primary && (sure || !moves):
		f.confirm(id)
		return f.isNew(ch), nil
	case !primary && moves && known:
		return f.isNew(ch), nil
	case sure:
		return false, nil
	}
	return false, mongo.WithHint(errors.New("the database has moved since: cannot determine whether this was dropped, "+
		"or moved"), restartHint)
}

// reapply handles a change that was applied before the filter began. The initial names include it. It
// may begin and end copies, and change indexes.
func (f *ChangeFilter) reapply(ch *stream.Change) {
	db, _ := mongo.SplitNS(ch.NS)
	if ch.Kind == stream.ChangeDropDatabase {
		for _, c := range f.Copies() {
			if in, _ := mongo.SplitNS(c.NS); in == db {
				f.dropCopy(c.ID)
			}
		}
		f.droppedDBs[db] = true
		return
	}
	id, ok := ownership.ParseUUID(ch.UUID)
	if !ok {
		return
	}
	c := f.colls[id]
	switch ch.Kind {
	case stream.ChangeCreate:
		delete(f.droppedDBs, db)
		if was, exists := f.names[ch.NS]; c == nil && exists {
			f.addCopy(Copy{NS: ch.NS, ID: id, Of: was})
		} else { // the collection that had the name was not its original
			f.dropCopies(id)
		}
	case stream.ChangeDrop:
		f.dropCopy(id)
	case stream.ChangeRename:
		f.dropCopy(id)
		f.dropCopies(id)
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		if c != nil && !c.gone {
			f.isNew(ch)
		}
	}
}

// dropCopy removes a copy that movePrimary gave up.
func (f *ChangeFilter) dropCopy(id [16]byte) {
	if c := f.colls[id]; c != nil && c.copyOf != nil {
		f.endCopy(id, c)
		delete(f.colls, id)
	}
}

func (f *ChangeFilter) dropCopies(of [16]byte) {
	for _, id := range f.copies[of] {
		f.dropCopy(id)
	}
}

func (f *ChangeFilter) endCopy(id [16]byte, c *collState) {
	f.setCopies(*c.copyOf, slices.DeleteFunc(slices.Clone(f.copies[*c.copyOf]),
		func(other [16]byte) bool { return other == id }))
}

func (f *ChangeFilter) setCopies(of [16]byte, ids [][16]byte) {
	delete(f.copies, of)
	for _, id := range ids {
		f.colls[id].copyOf, f.copies[of] = &of, ids
	}
}

// confirm records that a collection is the one that users see, since it is on the database's primary
// shard: it is no copy, and no copy will replace it.
func (f *ChangeFilter) confirm(id [16]byte) {
	delete(f.copies, id)
	c := f.colls[id]
	if c == nil || c.copyOf == nil {
		return
	}
	delete(f.copies, *c.copyOf)
	if was := f.colls[*c.copyOf]; was != nil {
		f.markGone(*c.copyOf)
	}
	if f.names[c.ns] == *c.copyOf {
		f.names[c.ns] = id
	}
	c.copyOf = nil
}

// isNew reports a change that no shard has logged before. It removes indexes that one has logged.
func (f *ChangeFilter) isNew(ch *stream.Change) bool {
	db, coll := mongo.SplitNS(ch.NS)
	if strings.HasPrefix(coll, mongo.ReshardingPrefix) && ch.Kind != stream.ChangeRename {
		return false
	}
	if ch.Kind == stream.ChangeDropDatabase {
		return f.dropDatabase(ch.NS)
	}
	id, ok := ownership.ParseUUID(ch.UUID)
	if ch.Kind == stream.ChangeView {
		delete(f.droppedDBs, db)
	}
	if !ok {
		return true // a view, on one shard only
	}
	c := f.colls[id]
	if ch.Kind == stream.ChangeCreate {
		delete(f.droppedDBs, db)
		return f.create(id, ch.NS)
	}
	if c == nil {
		return f.isNewUnknown(id, ch)
	}
	if c.gone && ch.Kind != stream.ChangeDrop {
		return false
	}
	switch ch.Kind {
	case stream.ChangeDrop:
		return f.drop(id, c, ch)
	case stream.ChangeRename:
		return f.rename(id, c, ch)
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes:
		ch.Indexes = c.newIndexes(ch.Indexes, ch.Kind == stream.ChangeDropIndexes)
		if len(ch.Indexes) > 0 {
			c.lastMod = nil // a repeated collMod may refer to another index now
		}
		return len(ch.Indexes) > 0
	case stream.ChangeCollMod:
		same := bytes.Equal(c.lastMod, ch.Options)
		c.lastMod = ch.Options
		return !same
	}
	return true
}

// create reports false if another shard has the collection, or if it is a copy of an existing one.
func (f *ChangeFilter) create(id [16]byte, ns string) bool {
	if c := f.colls[id]; c != nil && !c.gone {
		f.dropCopies(id)
		return false
	}
	if was, exists := f.names[ns]; exists && was != id {
		f.addCopy(Copy{NS: ns, ID: id, Of: was})
		return false
	}
	f.add(id, ns)
	return true
}

// isNewUnknown reports a new change of an unknown collection. A change is not new if another collection
// has the name: a shard is late, and the stream began in between.
func (f *ChangeFilter) isNewUnknown(id [16]byte, ch *stream.Change) bool {
	if was, exists := f.names[ch.NS]; exists {
		if ch.Command != mongo.CommandMove {
			return false
		}
		f.markGone(was) // a rename between databases, which copies
		delete(f.names, ch.NS)
	}
	if ch.Kind == stream.ChangeRename {
		f.replaceTarget(id, ch)
		f.add(id, ch.To)
	}
	return true
}

// replaceTarget removes the collection that a rename overwrites, although the first shard that logs the
// rename may have had no part of it. After a reshard the renamed collection continues it.
func (f *ChangeFilter) replaceTarget(id [16]byte, ch *stream.Change) {
	// Names stored during a rename between databases contain the copy twice.
	if was, exists := f.names[ch.To]; exists && was != id {
		if ch.Command == mongo.CommandReshard {
			f.successors[was] = id
		}
		f.markGone(was)
		ch.DropTarget = true
	}
}

// drop replaces a collection by movePrimary's copy, if there is one.
func (f *ChangeFilter) drop(id [16]byte, c *collState, ch *stream.Change) bool {
	if c.gone {
		return false
	}
	if c.copyOf != nil { // movePrimary gave up, or restarts
		f.endCopy(id, c)
		f.markGone(id)
		return false
	}
	f.markGone(id)
	f.freeName(id, c.ns)
	if ids := f.copies[id]; len(ids) > 0 { // several if moves came to nothing, or their originals were left behind
		other := ids[len(ids)-1]
		f.setCopies(id, nil)
		f.setCopies(other, ids[:len(ids)-1])
		f.colls[other].copyOf, f.names[c.ns] = nil, other
		ch.Kind, ch.UUID.Data, f.successors[id] = stream.ChangeIdentity, other[:], other
	}
	return true
}

// markGone records that a collection is gone, and forgets the oldest such.
func (f *ChangeFilter) markGone(id [16]byte) {
	c := f.colls[id]
	c.gone, c.indexes, c.lastMod = true, nil, nil
	if f.gone = append(f.gone, id); len(f.gone) > maxGone {
		if oldest := f.colls[f.gone[0]]; oldest != nil && oldest.gone {
			delete(f.colls, f.gone[0])
			delete(f.successors, f.gone[0])
		}
		f.gone = f.gone[1:]
	}
}

func (f *ChangeFilter) rename(id [16]byte, c *collState, ch *stream.Change) bool {
	if c.ns == ch.To {
		f.dropCopies(id)
		return false
	}
	if was, exists := f.names[ch.NS]; exists && was != id && c.ns != ch.NS { // between databases, which copies
		f.markGone(was)
		delete(f.names, ch.NS)
	}
	if c.copyOf != nil { // users cannot rename a copy: it has replaced its original
		f.successors[*c.copyOf] = id
		f.confirm(id)
	}
	f.replaceTarget(id, ch)
	f.freeName(id, c.ns)
	c.ns, f.names[ch.To] = ch.To, id
	return true
}

// freeName frees a name, unless another collection has it.
func (f *ChangeFilter) freeName(id [16]byte, ns string) {
	if f.names[ns] == id {
		delete(f.names, ns)
	}
}

func (f *ChangeFilter) dropDatabase(db string) bool {
	for ns, id := range f.names {
		if in, _ := mongo.SplitNS(ns); in == db {
			f.markGone(id)
			delete(f.names, ns)
		}
	}
	was := f.droppedDBs[db]
	if len(f.droppedDBs) >= maxGone {
		clear(f.droppedDBs)
	}
	f.droppedDBs[db] = true
	return !was
}

// newIndexes returns the indexes that differ from their known state, and unique ones. An index that
// could not be built when the first shard logged it may be built when another does.
func (c *collState) newIndexes(all []stream.Index, dropped bool) (out []stream.Index) {
	for _, ix := range all {
		spec, seen := c.indexes[ix.Name]
		if seen && (dropped && spec == nil || !dropped && bytes.Equal(spec, ix.Spec) && !unique(ix.Spec)) {
			continue
		}
		c.indexes[ix.Name] = nil
		if !dropped {
			c.indexes[ix.Name] = ix.Spec
		}
		out = append(out, ix)
	}
	return out
}

func unique(index bson.Raw) bool {
	is, _ := index.Lookup("unique").BooleanOK()
	return is
}
