package shards

import (
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// twoShards is what two shards log of commands on database d, in the order of time.
type twoShards struct {
	*rand.Rand
	at        uint32
	ids       uint32
	primary   int
	primaries []int                  // by time: the primary shard
	colls     map[string]*collOfUser // by name
	events    []stream.Event
}

type collOfUser struct {
	id      bson.Binary
	sharded bool
	indexes int
}

func (s *twoShards) newID() bson.Binary {
	s.ids++
	return bson.Binary{Subtype: bson.TypeBinaryUUID, Data: binary.BigEndian.AppendUint32(make([]byte, 12), s.ids)}
}

// log has a shard log a change at a time of its own.
func (s *twoShards) log(shard int, ch stream.Change) {
	s.at++
	for len(s.primaries) <= int(s.at) {
		s.primaries = append(s.primaries, s.primary)
	}
	ch.Shard = fmt.Sprint("s", shard)
	s.events = append(s.events, stream.Event{Kind: stream.SchemaChange, NS: ch.NS, At: opTime(s.at), Change: &ch})
}

// both has the shards log a change of a collection that have a part of it.
func (s *twoShards) both(c *collOfUser, ch stream.Change) {
	ch.UUID = c.id
	if c.sharded { // the database's own shard comes last, as with drops
		s.log(1-s.primary, ch)
	}
	s.log(s.primary, ch)
}

// step runs a command of a user.
func (s *twoShards) step() {
	ns := "d." + string(rune('a'+s.IntN(3)))
	c := s.colls[ns]
	switch what := s.IntN(12); {
	case what == 0:
		for _, name := range slices.Sorted(maps.Keys(s.colls)) {
			s.both(s.colls[name], stream.Change{Kind: stream.ChangeDrop, NS: name})
		}
		clear(s.colls)
		s.log(s.primary, stream.Change{Kind: stream.ChangeDropDatabase, NS: "d"})
		s.log(1-s.primary, stream.Change{Kind: stream.ChangeDropDatabase, NS: "d"})
	case what == 1:
		s.move()
	case c == nil:
		c = &collOfUser{id: s.newID(), sharded: s.IntN(3) == 0}
		s.colls[ns] = c
		s.both(c, stream.Change{Kind: stream.ChangeCreate, NS: ns, Options: bson.Raw{5, 0, 0, 0, 0}})
	case what < 4:
		s.both(c, stream.Change{Kind: stream.ChangeDrop, NS: ns})
		delete(s.colls, ns)
	case what < 7:
		to := "d." + string(rune('a'+s.IntN(3)))
		if to == ns {
			return
		}
		s.both(c, stream.Change{Kind: stream.ChangeRename, NS: ns, To: to, DropTarget: s.colls[to] != nil})
		s.colls[to] = c
		delete(s.colls, ns)
	default:
		c.indexes++
		s.both(c, stream.Change{Kind: stream.ChangeCreateIndexes, NS: ns,
			Indexes: []stream.Index{{Name: fmt.Sprint("i", c.indexes),
				Spec: kit.Raw(bson.D{{Key: "name", Value: fmt.Sprint("i", c.indexes)}})}}})
	}
}

// move has the other shard copy what is not sharded, and the one before drop it.
func (s *twoShards) move() {
	from, was := s.primary, map[string]bson.Binary{}
	for _, ns := range slices.Sorted(maps.Keys(s.colls)) {
		c := s.colls[ns]
		if c.sharded {
			continue
		}
		was[ns], c.id = c.id, s.newID()
		s.log(1-from, stream.Change{Kind: stream.ChangeCreate, NS: ns, UUID: c.id, Options: bson.Raw{5, 0, 0, 0, 0}})
	}
	s.primary = 1 - from
	for _, ns := range slices.Sorted(maps.Keys(was)) {
		s.log(from, stream.Change{Kind: stream.ChangeDrop, NS: ns, UUID: was[ns]})
	}
}

// home is the database's shard at a time.
func (s *twoShards) home(_ context.Context, _ string, at mongo.OpTime) (string, bool, error) {
	return fmt.Sprint("s", s.primaries[at.TS.T]), true, nil
}

// batch is what comes after a time, in memory of its own.
func (s *twoShards) batch(after uint32) *stream.Batch {
	b := &stream.Batch{Start: opTime(after), End: opTime(s.at)}
	for _, ev := range s.events {
		if ev.At.TS.T > after {
			ch := *ev.Change
			ch.UUID.Data, ch.Indexes = slices.Clone(ch.UUID.Data), slices.Clone(ch.Indexes)
			ev.Change = &ch
			b.Events = append(b.Events, ev)
		}
	}
	return b
}

// TestReplays: a consumer that goes on at any position, from a mark at or before it, gets the same
// later changes as one that was never broken off.
func TestReplays(t *testing.T) { testseed.Each(t, replays) }

func replays(t *testing.T, seed uint64) {
	for round := range 120 {
		s := &twoShards{Rand: rand.New(rand.NewPCG(seed, uint64(round))), colls: map[string]*collOfUser{}}
		for range 4 + s.IntN(20) {
			s.step()
		}
		s.primaries = append(s.primaries, s.primary)
		if err := s.check(t.Context()); err != nil {
			t.Fatalf("seed %d round %d: %v", seed, round, err)
		}
	}
}

func (s *twoShards) check(ctx context.Context) error {
	o := NewChangeFilter(nil)
	o.primary = s.home
	copies, names := [][]Copy{nil}, []map[string]bson.Binary{{}} // after each time
	var all []stream.Event
	for i := range s.events {
		b := s.batch(uint32(i))
		b.Events, b.End = b.Events[:1], opTime(uint32(i+1))
		if _, err := o.filter(ctx, b, nil); err != nil {
			return err
		}
		there := maps.Clone(names[i])
		for _, ev := range b.Events {
			apply(there, ev.Change)
		}
		all, copies, names = append(all, b.Events...), append(copies, o.Copies()), append(names, there)
	}
	for pos := range names {
		for mark := max(0, pos-6); mark <= pos; mark++ {
			want := append([]string{}, texts(all, pos, nil)...)
			got, err := s.again(ctx, copies[mark], names[pos], mark, pos, 0, want)
			if err == nil && !slices.Equal(got, want) {
				err = fmt.Errorf("from %d, with the mark of %d and %v:\n%s\nwant\n%s\nof\n%s", pos, mark, names[pos],
					strings.Join(got, "\n"), strings.Join(want, "\n"), strings.Join(texts(s.events, 0, nil), "\n"))
			}
			if err != nil {
				return err
			}
			if len(want) == 0 {
				continue
			}
			// The next change was noted, and may have been applied.
			next := slices.IndexFunc(all, func(ev stream.Event) bool { return ev.At.TS.T > uint32(pos) })
			ahead := int(all[next].At.TS.T)
			for _, there := range []int{ahead - 1, ahead} {
				got, err = s.again(ctx, copies[mark], names[there], mark, pos, ahead, want)
				if err == nil && !slices.Equal(got, want) && !slices.Equal(got, want[1:]) {
					err = fmt.Errorf("from %d, with the mark of %d, %d noted and the names of %d, %v:\n%s\nwant\n%s\nof\n%s", pos,
						mark, ahead, there, names[there],
						strings.Join(got, "\n"), strings.Join(want, "\n"), strings.Join(texts(s.events, 0, nil), "\n"))
				}
				if err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// again is what a consumer gets that goes on at a position.
func (s *twoShards) again(ctx context.Context, copies []Copy, names map[string]bson.Binary, mark, pos, noted int,
	want []string) ([]string, error) {
	var there []Collection
	for ns, id := range names {
		there = append(there, Collection{NS: ns, UUID: id})
	}
	o := NewChangeFilter(there)
	o.primary = s.home
	o.SetCopies(copies)
	o.knownUntil, o.namesAt = opTime(uint32(mark)), opTime(uint32(pos))
	o.notedAt = opTime(uint32(noted))
	b := s.batch(uint32(mark))
	_, err := o.filter(ctx, b, nil)
	skipApplied(b, o.namesAt, true)
	return texts(b.Events, pos, want), err
}

func apply(there map[string]bson.Binary, ch *stream.Change) {
	switch ch.Kind {
	case stream.ChangeCreate, stream.ChangeIdentity:
		there[ch.NS] = ch.UUID
	case stream.ChangeDrop:
		delete(there, ch.NS)
	case stream.ChangeDropDatabase:
		clear(there)
	case stream.ChangeRename:
		there[ch.To] = there[ch.NS]
		delete(there, ch.NS)
	}
}

// texts are changes after a time. Of indexes, and of the end of a database, another shard may
// tell once more: those that are not wanted are left out.
func texts(events []stream.Event, after int, want []string) (out []string) {
	for _, ev := range events {
		text := fmt.Sprintf("%d %s %s %s %x %s", ev.At.TS.T, ev.Change.Kind, ev.Change.NS, ev.Change.To, ev.Change.UUID.Data,
			ev.Change.Shard)
		twice := ev.Change.Kind == stream.ChangeCreateIndexes || ev.Change.Kind == stream.ChangeDropDatabase
		if ev.At.TS.T > uint32(after) && (want == nil || !twice || slices.Contains(want, text)) {
			out = append(out, text)
		}
	}
	return out
}
