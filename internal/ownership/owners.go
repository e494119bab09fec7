package ownership

import (
	"fmt"
	"slices"
	"sort"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

// An owner is the name of a shard, or one of these.
const (
	Unknown = ""  // the owner of the key is not known
	Any     = "*" // the collection was not sharded: the shard that has the document
)

// Owners records which shard owned which keys of a collection, and when. It takes the writes to the chunk map since
// its floor, and then the map itself: a key without a write has had the same owner since the floor. Splits and merges
// change no owner.
type Owners struct {
	floor  bson.Timestamp
	ranges []keyRange // in the order of keys; the first has everything below the second
}

// keyRange is keys, up to the next range, with the same owners at all times.
type keyRange struct {
	low    []bson.RawValue
	owners []ownerSince // the oldest first
}

type ownerSince struct {
	since bson.Timestamp
	shard string
}

func ownerAt(owners []ownerSince, at bson.Timestamp) (shard string, found bool) {
	for _, o := range slices.Backward(owners) {
		if !at.Before(o.since) {
			return o.shard, true
		}
	}
	return Unknown, false
}

// chunkWrite is a write of a chunk to the chunk map.
type chunkWrite struct {
	low, high []bson.RawValue
	shard     string
	// at is when the shard became the owner: it accepts no routed writes before it knows of this write. The chunk's
	// own history has an earlier time, which nobody can know before.
	at         bson.Timestamp
	validAfter bson.Timestamp // when the shard came to own it by the chunk's history, a little before a move is written
	donor      string         // the owner before, if the history records it
	created    bool           // with the collection
	moved      bool           // the write may be that of a move; no other gives a chunk to another shard
	underway   bool           // a move of the chunk to the shard was under way
}

// movedBy reports a write that records no move, or one up to a time.
func (w *chunkWrite) movedBy(floor bson.Timestamp) bool {
	return !floor.Before(w.validAfter) && !w.underway
}

func newOwners(floor bson.Timestamp) *Owners {
	return &Owners{floor: floor, ranges: []keyRange{{owners: []ownerSince{{since: floor}}}}}
}

// At returns the owner of a key at a time.
func (o *Owners) At(key []bson.RawValue, at bson.Timestamp) string {
	shard, _ := ownerAt(o.ranges[o.find(key)].owners, at)
	return shard
}

// find returns the index of the range that has a key.
func (o *Owners) find(key []bson.RawValue) int {
	return sort.Search(len(o.ranges)-1, func(i int) bool { return shardkey.CompareKeys(key, o.ranges[i+1].low) < 0 })
}

// write takes the next write to the chunk map.
func (o *Owners) write(w chunkWrite) {
	differs := func(last ownerSince) bool { return last.shard != w.shard }
	o.update(w.low, w.high, differs, func(owners []ownerSince) []ownerSince {
		first := &owners[0]
		if len(owners) > 1 || first.shard != Unknown {
			return append(owners, ownerSince{w.at, w.shard})
		}
		switch {
		case w.movedBy(o.floor), !w.created && !w.moved:
			first.shard = w.shard // since before the floor
			return owners
		case w.created:
			first.shard = Any
		default:
			first.shard = w.donor
		}
		if first.shard == w.shard {
			return owners
		}
		return append(owners, ownerSince{w.at, w.shard})
	})
}

// needsDonor reports a move whose donor neither the chunk's history nor an earlier write names.
func (o *Owners) needsDonor(w chunkWrite) bool {
	if w.created || !w.moved || w.donor != Unknown || w.movedBy(o.floor) {
		return false
	}
	first := o.find(w.low)
	for i := first; i < len(o.ranges) && (i == first || o.beginsBelow(i, w.high)); i++ {
		if owners := o.ranges[i].owners; len(owners) == 1 && owners[0].shard == Unknown {
			return true
		}
	}
	return false
}

func (o *Owners) beginsBelow(i int, bound []bson.RawValue) bool {
	return shardkey.CompareKeys(o.ranges[i].low, bound) < 0
}

// fill records the owner of a chunk by the chunk map, for keys without a write since the floor.
func (o *Owners) fill(low, high []bson.RawValue, shard string) {
	unknown := func(last ownerSince) bool { return last.shard == Unknown }
	o.update(low, high, unknown, func(owners []ownerSince) []ownerSince {
		if len(owners) == 1 {
			owners[0].shard = shard
		}
		return owners
	})
}

// update changes the owners of ranges between two bounds where applies says so.
func (o *Owners) update(low, high []bson.RawValue, applies func(last ownerSince) bool,
	to func([]ownerSince) []ownerSince) {
	first := o.find(low)
	i := first
	for ; i < len(o.ranges) && (i == first || o.beginsBelow(i, high)); i++ {
		if owners := o.ranges[i].owners; !applies(owners[len(owners)-1]) {
			continue
		}
		if o.beginsBelow(i, low) {
			o.split(i, low)
			i++
		}
		if i+1 == len(o.ranges) && !isMaxKey(high) ||
			i+1 < len(o.ranges) && shardkey.CompareKeys(high, o.ranges[i+1].low) < 0 {
			o.split(i, high)
		}
		o.ranges[i].owners = to(o.ranges[i].owners)
	}
	o.merge(max(first, 1), min(i, len(o.ranges)-1))
}

func (o *Owners) split(i int, at []bson.RawValue) {
	o.ranges = slices.Insert(o.ranges, i+1, keyRange{low: at, owners: slices.Clone(o.ranges[i].owners)})
}

// merge joins each range with equal owners to the one before it.
func (o *Owners) merge(from, to int) {
	for i := to; i >= from; i-- {
		if slices.Equal(o.ranges[i-1].owners, o.ranges[i].owners) {
			o.ranges = slices.Delete(o.ranges, i, i+1)
		}
	}
}

// forget drops owners that ended by a time.
func (o *Owners) forget(at bson.Timestamp) {
	for i := range o.ranges {
		owners := o.ranges[i].owners
		n := 0
		for n+1 < len(owners) && !at.Before(owners[n+1].since) {
			n++
		}
		o.ranges[i].owners = slices.Delete(owners, 0, n)
		if first := &o.ranges[i].owners[0]; first.since.Before(at) {
			first.since = at // the same for all: they may merge
		}
	}
	if o.floor.Before(at) {
		o.floor = at
	}
	o.merge(1, len(o.ranges)-1)
}

// isMaxKey reports the bound above all keys.
func isMaxKey(bound []bson.RawValue) bool {
	return !slices.ContainsFunc(bound, func(v bson.RawValue) bool { return v.Type != bson.TypeMaxKey })
}

// gainedAt is when a shard became the owner of a key, after a time.
func (o *Owners) gainedAt(key []bson.RawValue, shard string, after bson.Timestamp) (bson.Timestamp, bool) {
	for _, h := range o.ranges[o.find(key)].owners {
		if h.shard == shard && after.Before(h.since) {
			return h.since, true
		}
	}
	return bson.Timestamp{}, false
}

// Migration is the move of a chunk to another shard. Only its End changes.
type Migration struct {
	ID, NS    string
	From, To  string
	Start     bson.Timestamp // no document has come before
	End       bson.Timestamp // the chunk has come by then, or never will; zero: under way
	low, high []bson.RawValue
}

// NewMigration returns a move of the chunk between two bounds.
func NewMigration(low, high bson.Raw) *Migration {
	return &Migration{low: shardkey.Bound(low), high: shardkey.Bound(high)}
}

func (m *Migration) Contains(key []bson.RawValue) bool {
	return shardkey.CompareKeys(m.low, key) <= 0 && (shardkey.CompareKeys(key, m.high) < 0 || isMaxKey(m.high))
}

// Underway reports a migration that was under way at a time, after its start.
func (m *Migration) Underway(at bson.Timestamp) bool {
	return m.Start.Before(at) && (m.End.IsZero() || at.Before(m.End))
}

func (m *Migration) ended(by bson.Timestamp) bool { return !m.End.IsZero() && m.End.Before(by) }

func (h *History) applyMigration(e *Entry) error {
	id := e.O.Lookup("_id").String()
	switch e.Op {
	case "d":
		for _, m := range h.migrations {
			if m.ID == id && m.End.IsZero() {
				m.End = e.At
			}
		}
	case "i":
		low, ok1 := e.O.Lookup("min").DocumentOK()
		high, ok2 := e.O.Lookup("max").DocumentOK()
		ns, ok3 := e.O.Lookup("ns").StringValueOK()
		from, ok4 := e.O.Lookup("fromShard").StringValueOK()
		to, ok5 := e.O.Lookup("toShard").StringValueOK()
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return fmt.Errorf("a migration without collection, bounds or shards: %s", e.O)
		}
		h.migrated[ns+" "+from], h.migrated[ns+" "+to] = true, true
		m := NewMigration(low, high)
		m.ID, m.NS, m.From, m.To, m.Start = id, ns, from, to, e.At
		h.migrations = append(h.migrations, m)
	}
	return nil
}

// migrationOf is the migration under way of a chunk to its shard.
func (h *History) migrationOf(ch *chunkDoc) *Migration {
	for _, m := range slices.Backward(h.migrations) {
		_, c := h.named(m.NS)
		if c != nil && c.Owners == h.owners[ch.of] && m.To == ch.shard && m.End.IsZero() &&
			shardkey.CompareKeys(m.low, ch.low) == 0 {
			return m
		}
	}
	return nil
}
