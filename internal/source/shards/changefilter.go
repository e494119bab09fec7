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

// ChangeFilter passes each schema change once. Every shard that has a part of the collection
// logs it, each at its own time. A change that is in effect already changes nothing, and is
// left out. ChangeFilter also leaves out what movePrimary does to collections that are not
// sharded. It makes a copy with another UUID on the new shard, and drops the original where it
// was, both as a user would. Index changes of a copy pass. The indexes that the copy is made
// with are there already, and users make others before the original is dropped.
//
// A drop counts where the database's primary shard logs it, which has a part of everything.
// Other shards clean up what has moved away, or have a part of a sharded collection.
//
// One goroutine uses it. A start in the middle needs the Copies of that position.
type ChangeFilter struct {
	colls      map[[16]byte]*collState
	names      map[string][16]byte   // of the collections that exist
	copies     map[[16]byte][16]byte // the copy that movePrimary makes of a collection
	successors map[[16]byte][16]byte // the copy that has taken the place of a collection that is gone
	droppedDBs map[string]bool       // databases
	gone       [][16]byte            // collections, the oldest first
	history    []copiesFrom          // of copies; the oldest that still matters first

	knownUntil mongo.OpTime // changes up to here are known already; zero: none
	namesAt    mongo.OpTime // the time of the names that it began with; zero: nothing is read again
	notedAt    mongo.OpTime // or the time of a schema change that was stored; all before it was applied

	// primary is the primary shard of a database at a time. sure is false where only
	// that of now is known. Nil: it is never known.
	primary func(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error)
}

// copiesFrom are the copies from a position on. Batches bring events of positions after
// their end.
type copiesFrom struct {
	from   mongo.OpTime
	copies []Copy
}

// maxGone is how many collections that are gone are known still, and databases: another
// shard logs their end seconds later.
const maxGone = 10_000

// collState is what is known of a collection.
type collState struct {
	ns      string
	gone    bool
	indexes map[string]bson.Raw // by name; nil: dropped; none: not seen
	lastMod bson.Raw            // of collMod
	copyOf  *[16]byte           // the collection that movePrimary is copying
}

// NewChangeFilter knows the collections that exist where the stream begins.
func NewChangeFilter(collections []Collection) *ChangeFilter {
	f := &ChangeFilter{colls: map[[16]byte]*collState{}, names: map[string][16]byte{}, droppedDBs: map[string]bool{},
		copies: map[[16]byte][16]byte{}, successors: map[[16]byte][16]byte{}}
	for _, c := range collections {
		if id, ok := ownership.ParseUUID(c.UUID); ok {
			f.add(id, c.NS)
		}
	}
	return f
}

// Copy is a collection that movePrimary has begun to copy.
type Copy struct {
	NS     string
	ID, Of [16]byte // UUIDs, of the copy and of the collection
}

// Copies are those that movePrimary has begun, by name.
func (f *ChangeFilter) Copies() []Copy {
	all := make([]Copy, 0, len(f.copies))
	for of, id := range f.copies {
		all = append(all, Copy{NS: f.colls[id].ns, ID: id, Of: of})
	}
	slices.SortFunc(all, func(a, b Copy) int { return cmp.Compare(a.NS, b.NS) })
	return all
}

// SetCopies adds copies that movePrimary had begun before. The names may be ahead of the
// position: a copy that has taken the collection's place, and may have got another name
// since, is none any more.
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
	f.copies[c.Of] = c.ID
}

func (f *ChangeFilter) add(id [16]byte, ns string) {
	f.colls[id], f.names[ns] = &collState{ns: ns, indexes: map[string]bson.Raw{}}, id
}

// emitFunc takes the next batch of a source.
type emitFunc = func(context.Context, *stream.Batch) error

// Wrap gives what remains of the batches to emit.
func (f *ChangeFilter) Wrap(emit emitFunc) emitFunc {
	return func(ctx context.Context, b *stream.Batch) error {
		if _, err := f.filter(ctx, b, nil); err != nil {
			return err
		}
		return emit(ctx, b)
	}
}

// filter leaves in a batch what is new, and returns the copies at its end. note, which may
// be nil, gets each schema change that stays, and the copies at its position, which several
// shards may log.
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
		isNew, err := f.passes(ctx, ev)
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

// copiesAt are the copies at a position. Later calls are for later positions.
func (f *ChangeFilter) copiesAt(pos mongo.OpTime) []Copy {
	i := f.indexAt(pos)
	if i < 0 {
		return nil
	}
	f.history = slices.Delete(f.history, 0, i)
	return f.history[0].copies
}

// indexAt is the last in the history that is not after a position, -1 for none.
func (f *ChangeFilter) indexAt(pos mongo.OpTime) int {
	i := -1
	for i+1 < len(f.history) && !pos.Before(f.history[i+1].from) {
		i++
	}
	return i
}

// passes reports a new change. A drop that the database's primary shard did not log is none.
func (f *ChangeFilter) passes(ctx context.Context, ev *stream.Event) (bool, error) {
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
	_, moves := f.copies[id]
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

// reapply takes a change that was applied before the filter began. The names are those
// after it: a collection that is not among them is gone by then, and one that is has stayed.
// The change may begin copies, and bring indexes.
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
		} else { // what had its name until now was not its original
			f.dropCopy(f.copies[id])
		}
	case stream.ChangeDrop:
		f.dropCopy(id)
	case stream.ChangeRename:
		f.dropCopy(id)
		f.dropCopy(f.copies[id])
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		if c != nil && !c.gone {
			f.isNew(ch)
		}
	}
}

// dropCopy forgets a copy that movePrimary gave up.
func (f *ChangeFilter) dropCopy(id [16]byte) {
	if c := f.colls[id]; c != nil && c.copyOf != nil {
		f.endCopy(id, c)
		delete(f.colls, id)
	}
}

func (f *ChangeFilter) endCopy(id [16]byte, c *collState) {
	if f.copies[*c.copyOf] == id {
		delete(f.copies, *c.copyOf)
	}
}

// confirm records that no copy of a collection takes its place, nor is it one any more: the
// collection on the database's primary shard is the one that users see.
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

// isNew reports a change that no shard has logged before. It may take out of it parts that
// one has.
func (f *ChangeFilter) isNew(ch *stream.Change) bool {
	db, coll := mongo.SplitNS(ch.NS)
	if strings.HasPrefix(coll, mongo.ReshardingPrefix) && ch.Kind != stream.ChangeRename {
		return false
	}
	if ch.Kind == stream.ChangeDropDatabase {
		return f.dropDatabase(ch.NS)
	}
	id, ok := ownership.ParseUUID(ch.UUID)
	if !ok {
		return true // a view, which one shard has
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
			c.lastMod = nil // the index of a collMod may be another one, to which it is applied again
		}
		return len(ch.Indexes) > 0
	case stream.ChangeCollMod:
		same := bytes.Equal(c.lastMod, ch.Options)
		c.lastMod = ch.Options
		return !same
	}
	return true
}

// create is no news where another shard has the collection, or gets a copy of one that exists.
func (f *ChangeFilter) create(id [16]byte, ns string) bool {
	if c := f.colls[id]; c != nil && !c.gone {
		f.dropCopy(f.copies[id]) // what had the name before was no copy
		return false
	}
	if was, exists := f.names[ns]; exists && was != id {
		f.addCopy(Copy{NS: ns, ID: id, Of: was})
		return false
	}
	f.add(id, ns)
	return true
}

// isNewUnknown reports a new change of a collection that is not known: any, unless its name is
// that of another one by now. Then a shard is late, and the stream began in between.
func (f *ChangeFilter) isNewUnknown(id [16]byte, ch *stream.Change) bool {
	if was, exists := f.names[ch.NS]; exists {
		if ch.Command != mongo.CommandMove {
			return false
		}
		f.markGone(was) // between databases: this is its copy
		delete(f.names, ch.NS)
	}
	if ch.Kind == stream.ChangeRename { // from a name that does not matter
		f.replaceTarget(id, ch)
		f.add(id, ch.To)
	}
	return true
}

// replaceTarget ends the collection that has the new name of a rename, though the first shard
// to log it may have had nothing of it. After a reshard its documents are those of the
// collection that is renamed.
func (f *ChangeFilter) replaceTarget(id [16]byte, ch *stream.Change) {
	// Names that were stored amid a rename between databases have the copy twice.
	if was, exists := f.names[ch.To]; exists && was != id {
		if ch.Command == mongo.CommandReshard {
			f.successors[was] = id
		}
		f.markGone(was)
		ch.DropTarget = true
	}
}

// drop of the collection that movePrimary has copied has the copy take its place.
func (f *ChangeFilter) drop(id [16]byte, c *collState, ch *stream.Change) bool {
	if c.gone {
		return false
	}
	if c.copyOf != nil { // movePrimary gave it up, or began another one
		f.endCopy(id, c)
		f.markGone(id)
		return false
	}
	f.markGone(id)
	f.freeName(id, c.ns)
	if other, ok := f.copies[id]; ok { // the copy is the collection now
		delete(f.copies, id)
		f.colls[other].copyOf, f.names[c.ns] = nil, other
		ch.Kind, ch.UUID.Data, f.successors[id] = stream.ChangeIdentity, other[:], other
	}
	return true
}

// markGone records that a collection is gone, and forgets the oldest of those.
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
		f.dropCopy(f.copies[id])
		return false
	}
	if was, exists := f.names[ch.NS]; exists && was != id && c.ns != ch.NS { // between databases: this is its copy
		f.markGone(was)
		delete(f.names, ch.NS)
	}
	if c.copyOf != nil { // users rename only what has become the collection
		f.successors[*c.copyOf] = id
		f.confirm(id)
	}
	f.replaceTarget(id, ch)
	f.freeName(id, c.ns)
	c.ns, f.names[ch.To] = ch.To, id
	return true
}

// freeName frees a name, unless it is that of another collection.
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

// newIndexes returns the indexes that are not yet as the change has them, and unique ones. An
// index that could not be built when the first shard had logged it may be built when another
// one does.
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
