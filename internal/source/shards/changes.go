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
	"github.com/millrace/millrace/internal/stream"
)

// Collection is one of the cluster's, as its shards know it.
type Collection struct {
	NS   string
	UUID bson.Binary
}

// Once passes on each schema change once, though every shard that has a part of the
// collection tells of it, each at its own time. What is in effect already changes
// nothing, and is left out. It also leaves out what movePrimary does to collections
// that are not sharded: it makes a copy with another UUID on the new shard, and drops
// the old one there where it was, both as a user would. What is told of indexes of a
// copy passes: those that it is made with are there already, and users make others
// before the old one is dropped.
//
// What is dropped counts where the database's own shard tells of it, which has a part of
// everything: others clean up what has moved away, or have a part of a sharded collection.
//
// It is used by one goroutine. Whoever begins in the middle needs Copies of then.
type Once struct {
	colls   map[[16]byte]*known
	names   map[string][16]byte   // of the collections that there are
	copies  map[[16]byte][16]byte // the copy that movePrimary makes of a collection
	next    map[[16]byte][16]byte // the copy that has taken the place of one that is gone
	dropped map[string]bool       // databases
	gone    [][16]byte            // collections, the oldest first
	moving  []moving              // what copies says, from when on; the oldest that still matters first

	known mongo.OpTime // what was told up to here is known already; zero: nothing
	done  mongo.OpTime // the names that it began with were of this time; zero: nothing is read again
	noted mongo.OpTime // or of that of a schema change which was noted; all before it was applied

	// primary is the shard of a database at a time. sure is false where only that of
	// now is known. Nil: nobody knows.
	primary func(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error)
}

// moving are the copies from a position on. Batches bring events of positions after
// their end.
type moving struct {
	from   mongo.OpTime
	copies []Copy
}

// remembered is how many collections that are gone are known still, and databases:
// another shard tells of their end seconds later.
const remembered = 10_000

// known is what was told of a collection.
type known struct {
	ns      string
	gone    bool
	indexes map[string]bson.Raw // by name; nil: dropped; none: not told of
	last    bson.Raw            // of collMod
	copyOf  *[16]byte           // of the collection that movePrimary is copying
}

// NewOnce knows the collections that there are where the stream begins.
func NewOnce(there []Collection) *Once {
	o := &Once{colls: map[[16]byte]*known{}, names: map[string][16]byte{}, copies: map[[16]byte][16]byte{}, next: map[[16]byte][16]byte{}, dropped: map[string]bool{}}
	for _, c := range there {
		if id, ok := IDOf(c.UUID); ok {
			o.add(id, c.NS)
		}
	}
	return o
}

// Copy is a collection that movePrimary has begun to copy.
type Copy struct {
	NS     string
	ID, Of [16]byte // UUIDs, of the copy and of the collection
}

// Copies are those that were begun, by name.
func (o *Once) Copies() []Copy {
	all := make([]Copy, 0, len(o.copies))
	for of, id := range o.copies {
		all = append(all, Copy{NS: o.colls[id].ns, ID: id, Of: of})
	}
	slices.SortFunc(all, func(a, b Copy) int { return cmp.Compare(a.NS, b.NS) })
	return all
}

// Begun has it know of copies that were begun before. The names may be ahead of the
// position: a copy that has taken the collection's place, and may have got another name
// since, is none any more.
func (o *Once) Begun(all []Copy) {
	for _, c := range all {
		if o.colls[c.ID] != nil {
			continue
		}
		of := c.Of
		o.colls[c.ID] = &known{ns: c.NS, indexes: map[string]bson.Raw{}, copyOf: &of}
		o.copies[of] = c.ID
	}
	o.moving = []moving{{copies: o.Copies()}}
}

// IDOf is a UUID; false for what is none.
func IDOf(u bson.Binary) (id [16]byte, ok bool) {
	if len(u.Data) != len(id) {
		return id, false
	}
	return [16]byte(u.Data), true
}

func (o *Once) add(id [16]byte, ns string) {
	o.colls[id], o.names[ns] = &known{ns: ns, indexes: map[string]bson.Raw{}}, id
}

// Through gives what remains of the batches to emit.
func (o *Once) Through(emit func(context.Context, *stream.Batch) error) func(context.Context, *stream.Batch) error {
	return func(ctx context.Context, b *stream.Batch) error {
		if _, err := o.filter(ctx, b, nil); err != nil {
			return err
		}
		return emit(ctx, b)
	}
}

// filter leaves in a batch what is new, and gives the copies that were begun at its end.
// note, which may be nil, gets each schema change that stays, and the copies at its
// position, of which several shards may tell.
func (o *Once) filter(ctx context.Context, b *stream.Batch, note func(*stream.Event, []Copy) error) (copies []Copy, err error) {
	kept := b.Events[:0]
	for i := range b.Events {
		ev := &b.Events[i]
		if ev.Kind != stream.SchemaChange {
			kept = append(kept, *ev)
			continue
		}
		if !o.known.IsZero() && !o.known.Before(ev.At) {
			continue
		}
		news, err := o.tells(ctx, ev)
		if err != nil {
			return nil, fmt.Errorf("%s of %s at %s, told by shard %s: %w", ev.Change.Kind, ev.Change.NS, ev.At, ev.Change.Shard, err)
		}
		o.moving = append(o.moving, moving{from: ev.At, copies: o.Copies()})
		if news {
			kept = append(kept, *ev)
		}
	}
	clear(b.Events[len(kept):])
	b.Events = kept
	for i := range kept {
		if ev := &kept[i]; note != nil && ev.Kind == stream.SchemaChange {
			if err := note(ev, o.moving[o.until(ev.At)].copies); err != nil {
				return nil, err
			}
		}
	}
	return o.at(b.End), nil
}

// at are the copies at a position, which nobody will ask for again when a later one was.
func (o *Once) at(pos mongo.OpTime) []Copy {
	i := o.until(pos)
	if i < 0 {
		return nil
	}
	o.moving = slices.Delete(o.moving, 0, i)
	return o.moving[0].copies
}

// until is the last of moving that is not after a position, -1 for none.
func (o *Once) until(pos mongo.OpTime) int {
	i := -1
	for i+1 < len(o.moving) && !pos.Before(o.moving[i+1].from) {
		i++
	}
	return i
}

// tells is news, which drops are not that the database's own shard does not tell of.
func (o *Once) tells(ctx context.Context, ev *stream.Event) (bool, error) {
	ch := ev.Change
	if !o.done.IsZero() && !o.done.Before(ev.At) || ev.At.Before(o.noted) {
		o.again(ch)
		return false, nil
	}
	switch ch.Kind {
	case stream.ChangeDrop, stream.ChangeDropView, stream.ChangeDropAllViews:
	default:
		return o.news(ch), nil
	}
	if o.primary == nil || ch.Shard == "" {
		return o.news(ch), nil
	}
	db, _ := mongo.SplitNS(ch.NS)
	shard, sure, err := o.primary(ctx, db, ev.At)
	if err != nil {
		return false, err
	}
	id, known := IDOf(ch.UUID)
	_, moves := o.copies[id]
	if c := o.colls[id]; c != nil && c.copyOf != nil {
		moves = true
	}
	switch own := shard == ch.Shard; {
	case own && (sure || !moves):
		o.stays(id)
		return o.news(ch), nil
	case !own && moves && known:
		return o.news(ch), nil
	case sure:
		return false, nil
	}
	return false, mongo.WithHint(errors.New("the database has moved since, and it cannot be told any more whether this was dropped, or moved"), beginAnew)
}

// again takes a change that was applied before it began. The names are of after it:
// what it does not find in them is gone by then, and what it finds has stayed. It tells of copies
// that were begun, and of indexes.
func (o *Once) again(ch *stream.Change) {
	db, _ := mongo.SplitNS(ch.NS)
	if ch.Kind == stream.ChangeDropDatabase {
		for _, c := range o.Copies() {
			if in, _ := mongo.SplitNS(c.NS); in == db {
				o.noCopy(c.ID)
			}
		}
		o.dropped[db] = true
		return
	}
	id, ok := IDOf(ch.UUID)
	if !ok {
		return
	}
	c := o.colls[id]
	switch ch.Kind {
	case stream.ChangeCreate:
		delete(o.dropped, db)
		if was, there := o.names[ch.NS]; c == nil && there {
			o.colls[id] = &known{ns: ch.NS, indexes: map[string]bson.Raw{}, copyOf: &was}
			o.copies[was] = id
		} else { // what had its name until now was no copy of it
			o.noCopy(o.copies[id])
		}
	case stream.ChangeDrop:
		o.noCopy(id)
	case stream.ChangeRename:
		o.noCopy(id)
		o.noCopy(o.copies[id])
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes, stream.ChangeCollMod:
		if c != nil && !c.gone {
			o.news(ch)
		}
	}
}

// noCopy forgets a copy that has come to nothing.
func (o *Once) noCopy(id [16]byte) {
	if c := o.colls[id]; c != nil && c.copyOf != nil {
		if o.copies[*c.copyOf] == id {
			delete(o.copies, *c.copyOf)
		}
		delete(o.colls, id)
	}
}

// stays notes that no copy of a collection takes its place, nor is it one any more: what
// is on the database's own shard is the collection.
func (o *Once) stays(id [16]byte) {
	delete(o.copies, id)
	c := o.colls[id]
	if c == nil || c.copyOf == nil {
		return
	}
	delete(o.copies, *c.copyOf)
	if was := o.colls[*c.copyOf]; was != nil {
		o.forget(*c.copyOf)
	}
	if o.names[c.ns] == *c.copyOf {
		o.names[c.ns] = id
	}
	c.copyOf = nil
}

// news reports whether a change is one that was not told of before. It may take parts
// out of it that were.
func (o *Once) news(ch *stream.Change) bool {
	db, coll := mongo.SplitNS(ch.NS)
	if strings.HasPrefix(coll, mongo.ReshardingPrefix) && ch.Kind != stream.ChangeRename {
		return false
	}
	if ch.Kind == stream.ChangeDropDatabase {
		return o.dropDatabase(ch.NS)
	}
	id, ok := IDOf(ch.UUID)
	if !ok {
		return true // a view, which one shard has
	}
	c := o.colls[id]
	if ch.Kind == stream.ChangeCreate {
		delete(o.dropped, db)
		return o.create(id, ch.NS)
	}
	if c == nil {
		return o.unknown(id, ch)
	}
	if c.gone && ch.Kind != stream.ChangeDrop {
		return false
	}
	switch ch.Kind {
	case stream.ChangeDrop:
		return o.drop(id, c, ch)
	case stream.ChangeRename:
		return o.rename(id, c, ch)
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes:
		ch.Indexes = c.otherIndexes(ch.Indexes, ch.Kind == stream.ChangeDropIndexes)
		if len(ch.Indexes) > 0 {
			c.last = nil // the index of a collMod may be another one, to which it is done again
		}
		return len(ch.Indexes) > 0
	case stream.ChangeCollMod:
		same := bytes.Equal(c.last, ch.Options)
		c.last = ch.Options
		return !same
	}
	return true
}

// create: another shard has the same collection, or gets a copy of one that is there.
func (o *Once) create(id [16]byte, ns string) bool {
	if c := o.colls[id]; c != nil && !c.gone {
		o.noCopy(o.copies[id]) // what had the name before was none
		return false
	}
	if was, there := o.names[ns]; there && was != id {
		o.colls[id] = &known{ns: ns, indexes: map[string]bson.Raw{}, copyOf: &was}
		o.copies[was] = id
		return false
	}
	o.add(id, ns)
	return true
}

// unknown: what is told of a collection that is not known is new, unless its name is
// that of another one by now. Then a shard is late, and the stream began in between.
func (o *Once) unknown(id [16]byte, ch *stream.Change) bool {
	if was, another := o.names[ch.NS]; another {
		if ch.Command != mongo.CommandMove {
			return false
		}
		o.forget(was) // between databases: this is its copy
		delete(o.names, ch.NS)
	}
	if ch.Kind == stream.ChangeRename { // from a name that does not matter
		o.replaced(id, ch)
		o.add(id, ch.To)
	}
	return true
}

// replaced: what has the new name goes with a rename, though the first shard to tell of
// it may have had nothing of it. After a reshard its documents are those of the collection
// that is renamed.
func (o *Once) replaced(id [16]byte, ch *stream.Change) {
	// Names that were noted amid a rename between databases have the copy twice.
	if was, there := o.names[ch.To]; there && was != id {
		if ch.Command == mongo.CommandReshard {
			o.next[was] = id
		}
		o.forget(was)
		ch.DropTarget = true
	}
}

// drop of the collection that movePrimary has copied tells that the copy takes its place.
func (o *Once) drop(id [16]byte, c *known, ch *stream.Change) bool {
	if c.gone {
		return false
	}
	if c.copyOf != nil { // it came to nothing, or another one was made of it
		if o.copies[*c.copyOf] == id {
			delete(o.copies, *c.copyOf)
		}
		o.forget(id)
		return false
	}
	o.forget(id)
	o.unname(id, c.ns)
	if other, ok := o.copies[id]; ok { // the copy is the collection now
		delete(o.copies, id)
		o.colls[other].copyOf, o.names[c.ns] = nil, other
		ch.Kind, ch.UUID.Data, o.next[id] = stream.ChangeIdentity, other[:], other
	}
	return true
}

// forget notes that a collection is gone, and forgets the oldest of those.
func (o *Once) forget(id [16]byte) {
	c := o.colls[id]
	c.gone, c.indexes, c.last = true, nil, nil
	if o.gone = append(o.gone, id); len(o.gone) > remembered {
		if oldest := o.colls[o.gone[0]]; oldest != nil && oldest.gone {
			delete(o.colls, o.gone[0])
			delete(o.next, o.gone[0])
		}
		o.gone = o.gone[1:]
	}
}

func (o *Once) rename(id [16]byte, c *known, ch *stream.Change) bool {
	if c.ns == ch.To {
		o.noCopy(o.copies[id])
		return false
	}
	if was, there := o.names[ch.NS]; there && was != id && c.ns != ch.NS { // between databases: this is its copy
		o.forget(was)
		delete(o.names, ch.NS)
	}
	if c.copyOf != nil { // users rename what is the collection by now
		o.next[*c.copyOf] = id
		o.stays(id)
	}
	o.replaced(id, ch)
	o.unname(id, c.ns)
	c.ns, o.names[ch.To] = ch.To, id
	return true
}

// unname has a name be free, unless it is that of another collection.
func (o *Once) unname(id [16]byte, ns string) {
	if o.names[ns] == id {
		delete(o.names, ns)
	}
}

func (o *Once) dropDatabase(db string) bool {
	for ns, id := range o.names {
		if in, _ := mongo.SplitNS(ns); in == db {
			o.forget(id)
			delete(o.names, ns)
		}
	}
	was := o.dropped[db]
	if len(o.dropped) >= remembered {
		clear(o.dropped)
	}
	o.dropped[db] = true
	return !was
}

// otherIndexes are those that are not yet as the change says, and unique ones: what could not
// be built when the first shard had told of it may be when another one does.
func (c *known) otherIndexes(all []stream.Index, dropped bool) (other []stream.Index) {
	for _, ix := range all {
		spec, told := c.indexes[ix.Name]
		if told && (dropped && spec == nil || !dropped && bytes.Equal(spec, ix.Spec) && !unique(ix.Spec)) {
			continue
		}
		c.indexes[ix.Name] = nil
		if !dropped {
			c.indexes[ix.Name] = ix.Spec
		}
		other = append(other, ix)
	}
	return other
}

func unique(index bson.Raw) bool {
	is, _ := index.Lookup("unique").BooleanOK()
	return is
}
