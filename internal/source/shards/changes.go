package shards

import (
	"bytes"
	"context"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// resharding begins the names of collections that the servers fill while one is
// sharded by another key.
const resharding = "system.resharding."

// Collection is one of the cluster's, as its shards know it.
type Collection struct {
	NS   string
	UUID bson.Binary
}

// Once passes on each schema change once, though every shard that has a part of the
// collection tells of it, each at its own time. What is in effect already changes
// nothing, and is left out. It also leaves out what movePrimary does to collections
// that are not sharded: it makes a copy with another UUID on the new shard, and drops
// the old one there where it was, both as a user would.
//
// It is used by one goroutine.
type Once struct {
	colls   map[[16]byte]*known
	names   map[string][16]byte   // of the collections that there are
	copies  map[[16]byte][16]byte // the copy that movePrimary makes of a collection
	dropped map[string]bool       // databases
	gone    [][16]byte            // collections, the oldest first
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
	o := &Once{colls: map[[16]byte]*known{}, names: map[string][16]byte{}, copies: map[[16]byte][16]byte{}, dropped: map[string]bool{}}
	for _, c := range there {
		if id, ok := idOf(c.UUID); ok {
			o.add(id, c.NS)
		}
	}
	return o
}

func idOf(u bson.Binary) (id [16]byte, ok bool) {
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
		kept := b.Events[:0]
		for i := range b.Events {
			if b.Events[i].Kind != stream.SchemaChange || o.news(b.Events[i].Change) {
				kept = append(kept, b.Events[i])
			}
		}
		clear(b.Events[len(kept):])
		b.Events = kept
		return emit(ctx, b)
	}
}

// news reports whether a change is one that was not told of before. It may take parts
// out of it that were.
func (o *Once) news(ch *stream.Change) bool {
	db, coll := mongo.SplitNS(ch.NS)
	if strings.HasPrefix(coll, resharding) {
		return false
	}
	if ch.Kind == stream.ChangeDropDatabase {
		return o.dropDatabase(ch.NS)
	}
	id, ok := idOf(ch.UUID)
	if !ok {
		return true // a view, which one shard has
	}
	c := o.colls[id]
	if ch.Kind == stream.ChangeCreate {
		delete(o.dropped, db)
		return o.create(id, ch.NS)
	}
	if c == nil {
		return true // nothing is known: whoever applies it knows more
	}
	if c.gone && ch.Kind != stream.ChangeDrop {
		return false
	}
	switch ch.Kind {
	case stream.ChangeDrop:
		return o.drop(id, c)
	case stream.ChangeRename:
		return o.rename(id, c, ch.To)
	case stream.ChangeCreateIndexes, stream.ChangeDropIndexes:
		ch.Indexes = c.otherIndexes(ch.Indexes, ch.Kind == stream.ChangeDropIndexes)
		return len(ch.Indexes) > 0 && c.copyOf == nil
	case stream.ChangeCollMod:
		same := bytes.Equal(c.last, ch.Options)
		c.last = ch.Options
		return !same && c.copyOf == nil
	}
	return true
}

// create: another shard has the same collection, or gets a copy of one that is there.
func (o *Once) create(id [16]byte, ns string) bool {
	if c := o.colls[id]; c != nil && !c.gone {
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

func (o *Once) drop(id [16]byte, c *known) bool {
	if c.gone {
		return false
	}
	if c.copyOf != nil { // it came to nothing
		delete(o.copies, *c.copyOf)
		o.forget(id)
		return false
	}
	o.forget(id)
	delete(o.names, c.ns)
	if other, ok := o.copies[id]; ok { // the copy is the collection now
		delete(o.copies, id)
		o.colls[other].copyOf, o.names[c.ns] = nil, other
		return false
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
		}
		o.gone = o.gone[1:]
	}
}

func (o *Once) rename(id [16]byte, c *known, to string) bool {
	if c.ns == to {
		return false
	}
	if was, there := o.names[to]; there {
		o.forget(was)
	}
	delete(o.names, c.ns)
	c.ns, o.names[to] = to, id
	return true
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

// otherIndexes are those that are not yet as the change says.
func (c *known) otherIndexes(all []stream.Index, dropped bool) (other []stream.Index) {
	for _, ix := range all {
		spec, told := c.indexes[ix.Name]
		if told && (dropped && spec == nil || !dropped && bytes.Equal(spec, ix.Spec)) {
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
