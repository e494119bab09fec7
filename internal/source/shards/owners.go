package shards

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

// Owner is the name of a shard, or one of these.
const (
	ownerUnknown = ""  // it is not known who owned the key
	ownerAny     = "*" // the collection was not sharded: whoever has it
)

// ownership says which shard owned which keys of a collection, and when. It is made of
// the writes to the chunk map after a time, its floor, in their order, and then of the
// map itself. What no such write concerns has the same owner since the floor.
//
// Chunks as such do not matter to it: splits and merges change no owner.
type ownership struct {
	floor bson.Timestamp
	spans []span // in the order of keys; the first has everything below the second
}

// span is a range of keys, up to the next span, that had the same owners all the time.
type span struct {
	low  []bson.RawValue
	held []holding // the oldest first
}

// holding says who owns something from a time on.
type holding struct {
	since bson.Timestamp
	shard string
}

// chunkWrite is a chunk as it was written to the chunk map.
type chunkWrite struct {
	low, high []bson.RawValue
	shard     string
	// at is the time of the write. From then on the shard owns the chunk: it takes no
	// routed writes before it has heard of this one. What it wrote before comes with the
	// chunk. The chunk's own history names an earlier time, which nobody can know of
	// until this one.
	at     bson.Timestamp
	since  bson.Timestamp // from when the shard owns it by the chunk's history, a little before a move is written
	before string         // who owned it before, if the history tells
	made   bool           // with the collection
	moved  bool           // the write may be that of a move; no other gives a chunk to another shard
	begun  bool           // a move of the chunk to the shard was under way
}

// old reports a write that tells of no move, or of one before a time.
func (w *chunkWrite) old(floor bson.Timestamp) bool { return !floor.Before(w.since) && !w.begun }

func newOwnership(floor bson.Timestamp) *ownership {
	return &ownership{floor: floor, spans: []span{{held: []holding{{since: floor}}}}}
}

// owner is who owned a key at a time.
func (o *ownership) owner(key []bson.RawValue, at bson.Timestamp) string {
	held := o.spans[o.find(key)].held
	for i := len(held) - 1; i >= 0; i-- {
		if !at.Before(held[i].since) {
			return held[i].shard
		}
	}
	return ownerUnknown
}

// find is the index of the span that has a key.
func (o *ownership) find(key []bson.RawValue) int {
	low, high := 0, len(o.spans) // the span is in [low, high)
	for high-low > 1 {
		if mid := (low + high) / 2; shardkey.CompareKeys(o.spans[mid].low, key) <= 0 {
			low = mid
		} else {
			high = mid
		}
	}
	return low
}

// write takes a write to the chunk map. Writes come in order.
func (o *ownership) write(w chunkWrite) {
	o.change(w.low, w.high, func(last holding) bool { return last.shard != w.shard }, func(held []holding) []holding {
		first := &held[0]
		if len(held) > 1 || first.shard != ownerUnknown {
			return append(held, holding{w.at, w.shard})
		}
		switch {
		case w.old(o.floor), !w.made && !w.moved:
			first.shard = w.shard // since before the floor
			return held
		case w.made:
			first.shard = ownerAny
		default:
			first.shard = w.before
		}
		if first.shard == w.shard {
			return held
		}
		return append(held, holding{w.at, w.shard})
	})
}

// asks reports that a write is that of a move from a shard that is not known, and has
// to be: the chunk's history does not tell, and no earlier write does.
func (o *ownership) asks(w chunkWrite) bool {
	if w.made || !w.moved || w.before != ownerUnknown || w.old(o.floor) {
		return false
	}
	for i := o.find(w.low); i < len(o.spans) && (i == 0 || shardkey.CompareKeys(o.spans[i].low, w.high) < 0); i++ {
		if held := o.spans[i].held; len(held) == 1 && held[0].shard == ownerUnknown {
			return true
		}
	}
	return false
}

// fill says who owns a chunk by the chunk map: what was never written since the floor
// has that owner since then.
func (o *ownership) fill(low, high []bson.RawValue, shard string) {
	o.change(low, high, func(last holding) bool { return last.shard == ownerUnknown }, func(held []holding) []holding {
		if len(held) == 1 {
			held[0].shard = shard
		}
		return held
	})
}

// change gives the spans of a range new holdings, where their last one makes it necessary.
func (o *ownership) change(low, high []bson.RawValue, concerns func(last holding) bool, to func([]holding) []holding) {
	first := o.find(low)
	i := first
	for ; i < len(o.spans) && (i == first || shardkey.CompareKeys(o.spans[i].low, high) < 0); i++ {
		if held := o.spans[i].held; !concerns(held[len(held)-1]) {
			continue
		}
		if shardkey.CompareKeys(o.spans[i].low, low) < 0 {
			o.cut(i, low)
			i++
		}
		if i+1 == len(o.spans) && !highest(high) || i+1 < len(o.spans) && shardkey.CompareKeys(high, o.spans[i+1].low) < 0 {
			o.cut(i, high)
		}
		o.spans[i].held = to(o.spans[i].held)
	}
	o.join(max(first, 1), min(i, len(o.spans)-1))
}

// cut makes two spans of one.
func (o *ownership) cut(i int, at []bson.RawValue) {
	o.spans = slices.Insert(o.spans, i+1, span{low: at, held: slices.Clone(o.spans[i].held)})
}

// join makes one of spans that are alike, each with the one before it.
func (o *ownership) join(from, to int) {
	for i := to; i >= from; i-- {
		if slices.Equal(o.spans[i-1].held, o.spans[i].held) {
			o.spans = slices.Delete(o.spans, i, i+1)
		}
	}
}

// forget drops what was over at a time; nobody will ask for it.
func (o *ownership) forget(at bson.Timestamp) {
	for i := range o.spans {
		held := o.spans[i].held
		n := 0
		for n+1 < len(held) && !at.Before(held[n+1].since) {
			n++
		}
		o.spans[i].held = slices.Delete(held, 0, n)
		if first := &o.spans[i].held[0]; first.since.Before(at) {
			first.since = at // the same for all: they may join
		}
	}
	if o.floor.Before(at) {
		o.floor = at
	}
	o.join(1, len(o.spans)-1)
}

// highest reports the bound above all keys.
func highest(bound []bson.RawValue) bool {
	for _, v := range bound {
		if v.Type != bson.TypeMaxKey {
			return false
		}
	}
	return true
}

// gained is when a shard came to own a key, after a time.
func (o *ownership) gained(key []bson.RawValue, shard string, after bson.Timestamp) (bson.Timestamp, bool) {
	for _, h := range o.spans[o.find(key)].held {
		if h.shard == shard && after.Before(h.since) {
			return h.since, true
		}
	}
	return bson.Timestamp{}, false
}
