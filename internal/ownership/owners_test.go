package ownership

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/test/testseed"
)

// chart is a chunk map of small integers, and what was written to it.
type chart struct {
	*rand.Rand
	chunks []chart1
	clock  uint32
	writes []chunkWrite
	truth  []map[int]string // the owner of each key, by time
}

type chart1 struct {
	low, high int // math.MinInt and MaxInt stand for the ends
	shard     string
	history   []ownerSince // the newest first
	fresh     bool         // version (n, 0): the last write was a move
}

const keys = 40 // 0..39; bounds -1 and keys are the ends

func bound(n int) []bson.RawValue {
	switch n {
	case -1:
		return []bson.RawValue{shardkey.MinKey()}
	case keys:
		return []bson.RawValue{shardkey.MaxKey()}
	}
	t, v, err := bson.MarshalValue(int32(n))
	if err != nil {
		panic(err)
	}
	return []bson.RawValue{{Type: t, Value: v}}
}

func (c *chart) write(ch *chart1, made bool) {
	w := chunkWrite{low: bound(ch.low), high: bound(ch.high), shard: ch.shard, at: bson.Timestamp{T: c.clock},
		validAfter: ch.history[0].since, created: made, moved: ch.fresh}
	w.underway = ch.fresh && w.validAfter.T+1 == c.clock
	if len(ch.history) > 1 {
		w.donor = ch.history[1].shard
	}
	c.writes = append(c.writes, w)
}

// step changes the map, and notes who owns what then. Histories name the time before.
func (c *chart) step() {
	c.clock += 2
	i := c.IntN(len(c.chunks))
	ch := &c.chunks[i]
	switch c.IntN(4) {
	case 0: // split
		if at := ch.low + 1 + c.IntN(max(ch.high-ch.low-1, 1)); ch.low < at && at < ch.high {
			right := *ch
			right.low, ch.high, right.fresh, ch.fresh = at, at, false, false
			c.chunks = append(c.chunks[:i+1], append([]chart1{right}, c.chunks[i+1:]...)...)
			c.write(&c.chunks[i], false)
			c.write(&c.chunks[i+1], false)
		}
	case 1: // merge: the history is gone
		if i+1 < len(c.chunks) && c.chunks[i+1].shard == ch.shard {
			ch.high, ch.fresh = c.chunks[i+1].high, false
			ch.history = []ownerSince{{bson.Timestamp{T: c.clock - 1}, ch.shard}}
			c.chunks = append(c.chunks[:i+1], c.chunks[i+2:]...)
			c.write(ch, false)
		}
	default: // move
		to := fmt.Sprint("s", c.IntN(3))
		if to == ch.shard {
			break
		}
		ch.shard, ch.fresh = to, true
		ch.history = append([]ownerSince{{bson.Timestamp{T: c.clock - 1}, to}}, ch.history...)
		if c.IntN(2) == 0 {
			ch.history = ch.history[:2]
		}
		c.write(ch, false)
	}
	for int(c.clock) >= len(c.truth) {
		c.truth = append(c.truth, nil)
	}
	now := map[int]string{}
	for _, ch := range c.chunks {
		for k := max(ch.low, 0); k < min(ch.high, keys); k++ {
			now[k] = ch.shard
		}
	}
	c.truth[c.clock], c.truth[c.clock-1] = now, c.truth[max(int(c.clock)-2, 0)]
}

func (c *chart) compare(t *testing.T, o *Owners, from, until uint32, seed uint64) {
	t.Helper()
	for at := from; at <= until; at++ {
		for k := range keys {
			if got := o.At(bound(k), bson.Timestamp{T: at}); got != c.truth[at][k] {
				t.Fatalf("seed %d: at %d %q owns %d, the table says %q", seed, at, c.truth[at][k], k, got)
			}
		}
	}
}

// TestOwnership: random splits, merges and moves; whoever begins in the middle, from the
// writes since then and the map of some later time, knows who owned what.
func TestOwnership(t *testing.T) { testseed.Each(t, owns) }

func owns(t *testing.T, seed uint64) {
	for n := range uint64(300) {
		c := &chart{Rand: rand.New(rand.NewPCG(seed, n)), clock: 2}
		c.chunks = []chart1{{low: -1, high: keys, shard: "s0", history: []ownerSince{{bson.Timestamp{T: 1}, "s0"}}}}
		c.truth = make([]map[int]string, 3)
		for range 5 + c.IntN(30) {
			c.step()
		}
		c.writes = nil
		c.step()
		floor := c.clock - 1 // between the time that a history names and the write, where there is one
		if n%2 == 0 {
			floor, c.writes = c.clock, nil
		}
		for range c.IntN(40) {
			c.step()
		}
		loaded := c.clock
		o := newOwners(bson.Timestamp{T: floor})
		take := func() {
			for _, w := range c.writes {
				if w.donor == Unknown && o.needsDonor(w) {
					t.Fatalf("seed %d: asks who had %v before", seed, w)
				}
				o.write(w)
			}
			c.writes = nil
		}
		take()
		for _, ch := range c.chunks {
			o.fill(bound(ch.low), bound(ch.high), ch.shard)
		}
		c.compare(t, o, floor, loaded, seed)
		for range c.IntN(40) {
			c.step()
		}
		take()
		c.compare(t, o, floor, c.clock, seed)
		middle := floor + uint32(c.IntN(int(c.clock-floor)+1))
		o.forget(bson.Timestamp{T: middle})
		c.compare(t, o, middle, c.clock, seed)
		if got := o.At(bound(1), bson.Timestamp{T: middle - 1}); got != Unknown {
			t.Fatalf("seed %d: what was forgotten is known", seed)
		}
		o.forget(bson.Timestamp{T: c.clock})
		changes := 0
		for k := 1; k < keys; k++ {
			if c.truth[c.clock][k] != c.truth[c.clock][k-1] {
				changes++
			}
		}
		if len(o.ranges) > changes+2 { // what is below 0 may be another's
			t.Fatalf("seed %d: %d spans for %d changes of owner", seed, len(o.ranges), changes)
		}
	}
}

// TestOwnershipBegins: what a history does not tell is asked for, a collection that was
// not sharded belonged to whoever had it, and a refined key owns what it did.
func TestOwnershipBegins(t *testing.T) {
	at := func(n uint32) bson.Timestamp { return bson.Timestamp{T: n} }
	all := chunkWrite{low: bound(-1), high: bound(keys), shard: "s1", at: at(20), validAfter: at(19), moved: true}

	o := newOwners(at(10))
	if !o.needsDonor(all) {
		t.Error("a move from nobody is taken")
	}
	o.write(all)
	if got := o.At(bound(1), at(15)); got != Unknown {
		t.Errorf("%q owned what is not known", got)
	}
	if got := o.At(bound(1), at(20)); got != "s1" {
		t.Errorf("%q owns it", got)
	}

	o = newOwners(at(10))
	made := all
	made.created = true
	o.write(made)
	if got := o.At(bound(1), at(19)); got != Any {
		t.Errorf("%q owned what was not sharded", got)
	}

	o = newOwners(at(10))
	first := chunkWrite{low: bound(-1), high: bound(5), shard: "s0", validAfter: at(5)}
	o.write(first)
	o.fill(bound(5), bound(keys), "s1")
	low := append(bound(5), shardkey.MinKey())
	high := append(bound(keys), shardkey.MaxKey())
	o.write(chunkWrite{low: low, high: high, shard: "s1", validAfter: at(5)})
	for k, want := range map[int]string{4: "s0", 5: "s1", 39: "s1"} {
		if got := o.At(bound(k), at(12)); got != want {
			t.Errorf("%q owns %d", got, k)
		}
		if got := o.At(append(bound(k), bound(7)...), at(12)); got != want {
			t.Errorf("%q owns %d, 7", got, k)
		}
	}
}

func TestOwnerAllocatesNothing(t *testing.T) {
	o := newOwners(bson.Timestamp{T: 1})
	for i := range keys - 1 {
		o.fill(bound(i), bound(i+1), fmt.Sprint("s", i%3))
	}
	doc, err := bson.Marshal(bson.D{{Key: "_id", Value: "some text"}, {Key: "a", Value: bson.D{{Key: "b", Value: 7}}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range []bson.D{{{Key: "a.b", Value: 1}}, {{Key: "_id", Value: "hashed"}},
		{{Key: "a.b", Value: 1}, {Key: "none", Value: 1}}} {
		raw, err := bson.Marshal(pattern)
		if err != nil {
			t.Fatal(err)
		}
		p, k := shardkey.Parse(raw), &shardkey.Key{}
		if n := testing.AllocsPerRun(100, func() {
			if !p.Of(k, doc) || o.At(k.Values, bson.Timestamp{T: 5}) == Any {
				t.Fatal("no owner")
			}
		}); n > 0 {
			t.Errorf("%v: %v allocations", pattern, n)
		}
	}
}

func BenchmarkOwner(b *testing.B) {
	o := newOwners(bson.Timestamp{T: 1})
	for i := range keys - 1 {
		o.fill(bound(i), bound(i+1), fmt.Sprint("s", i%3))
	}
	doc, _ := bson.Marshal(bson.D{{Key: "_id", Value: "some text"}, {Key: "k", Value: 7}})
	for _, pattern := range []bson.D{{{Key: "k", Value: 1}}, {{Key: "_id", Value: "hashed"}}} {
		raw, _ := bson.Marshal(pattern)
		p, k := shardkey.Parse(raw), &shardkey.Key{}
		b.Run(pattern[0].Key, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				if !p.Of(k, doc) || o.At(k.Values, bson.Timestamp{T: 5}) == Any {
					b.Fatal("no owner")
				}
			}
		})
	}
}
