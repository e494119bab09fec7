package shards_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// stop is where a consumer may stand when it is broken off.
type stop struct {
	pos   stream.Position
	noted mongo.OpTime           // the change that it was to apply, if it was
	there map[string]bson.Binary // the collections that it has
	rest  int                    // of the changes, what comes after
}

// TestBegunAgain: a consumer that is broken off at a schema change amid a batch gets the
// rest of them when it begins again, and nothing twice, whether it has stored what the
// change did to the collections or not. So it is also when all that is long ago, and the
// config servers have forgotten where the database was.
func TestBegunAgain(t *testing.T) {
	lab.NeedServers(t)
	t.Run("soon", func(t *testing.T) { begunAgain(t, "300") })
	t.Run("long after", func(t *testing.T) { begunAgain(t, "0") })
}

func begunAgain(t *testing.T, remember string) {
	b := newBed(t, sharded.Options{Options: lab.Options{Topology: "sharded:3x1",
		SetParameters: map[string]string{"orphanCleanupDelaySecs": "0", "minSnapshotHistoryWindowInSeconds": remember}}})
	b.ok(b.lab.CreateDatabase(t.Context(), "d", b.lab.ShardNames()[0]))
	c := b.open()
	start, err := c.Start(t.Context())
	b.ok(err)
	b.ok(b.movesAndDrops())
	until, err := c.Start(t.Context())
	b.ok(err)

	var stops []stop
	var all []string
	there, pos, atOnce := map[string]bson.Binary{}, start, 0
	b.changesFrom(c, stop{pos: start}, until.At, func(batch *stream.Batch) {
		n := 0
		for _, ev := range batch.Events {
			if ev.Kind != stream.SchemaChange {
				continue
			}
			n++
			ahead := have(there, ev.Change)
			between := pos
			if at := (bson.Timestamp{T: ev.At.TS.T, I: ev.At.TS.I - 1}); pos.At.TS.Before(at) {
				between.At.TS = at
			}
			for _, p := range []stream.Position{pos, between} {
				stops = append(stops, stop{p, mongo.OpTime{}, there, len(all)}, stop{p, ev.At, there, len(all)},
					stop{p, ev.At, ahead, len(all)})
			}
			pos, there = pos.Past(&ev), ahead
			all = append(all, nameOf(&ev))
			stops = append(stops, stop{pos, mongo.OpTime{}, there, len(all)})
		}
		atOnce = max(atOnce, n)
		pos = batch.Resume()
	})
	t.Logf("%d changes, up to %d at once", len(all), atOnce)
	if atOnce < 20 {
		t.Fatal("hardly any change is amid a batch")
	}
	b.has(there)
	for _, s := range stops {
		var got []string
		b.changesFrom(c, s, until.At, func(batch *stream.Batch) {
			for _, ev := range batch.Events {
				if ev.Kind == stream.SchemaChange {
					got = append(got, nameOf(&ev))
				}
			}
		})
		// What was applied already may come once more, and what a shard tells of
		// indexes that another one has told of.
		want, next := all[s.rest:], all[s.rest:min(len(all), s.rest+1)]
		got, want = slices.DeleteFunc(got, indexes), slices.DeleteFunc(slices.Clone(want), indexes)
		if !slices.Equal(got, want) && !slices.Equal(slices.Concat(slices.DeleteFunc(slices.Clone(next), indexes), got),
			want) {
			t.Errorf("from %s, %s, with %v:\n%s\nwant\n%s", s.pos.At, s.pos.Mark, s.there, strings.Join(got, "\n"),
				strings.Join(want, "\n"))
		}
		if t.Failed() {
			return
		}
	}
}

// has compares collections and their UUIDs with those of the database.
func (b *bed) has(want map[string]bson.Binary) {
	b.Helper()
	specs, err := b.router.Client.Database("d").ListCollectionSpecifications(b.Context(), bson.D{})
	b.ok(err)
	for _, s := range specs {
		if id := want["d."+s.Name]; !slices.Equal(id.Data, s.UUID.Data) {
			b.Errorf("d.%s is %x, the stream says %x", s.Name, s.UUID.Data, id.Data)
		}
	}
	if len(specs) != len(want) {
		b.Errorf("%d collections, the stream says %v", len(specs), want)
	}
}

// movesAndDrops makes, moves, renames and drops collections.
func (b *bed) movesAndDrops() error {
	all, db, n := b.lab.ShardNames(), b.router.Client.Database("d"), 0
	move := func() error {
		n++
		return b.lab.MovePrimary(b.Context(), "d", all[n%len(all)])
	}
	run := func(cmd ...bson.E) func() error {
		return func() error { return db.RunCommand(b.Context(), bson.D(cmd)).Err() }
	}
	create, drop := run(bson.E{Key: "create", Value: "u"}), run(bson.E{Key: "drop", Value: "u"})
	shard := func() error {
		return b.lab.ShardCollection(b.Context(), "d.u", sharded.Sharding{Key: bson.D{{Key: "_id", Value: "hashed"}},
			Chunks: 3})
	}
	rename := func() error {
		return b.router.Client.Database("admin").RunCommand(b.Context(),
			bson.D{{Key: "renameCollection", Value: "d.u"}, {Key: "to", Value: "d.v"}, {Key: "dropTarget", Value: true}}).Err()
	}
	for _, do := range []func() error{
		create, move, drop, create, move, drop, shard, move, drop, create, move, move, rename, create, move, drop, create,
		move,
		rename, shard, drop, create, move, rename, create, move,
	} {
		if err := do(); err != nil {
			return err
		}
	}
	return nil
}

// changesFrom reads the stream of a consumer that has some collections.
func (b *bed) changesFrom(c *shards.Cluster, from stop, until mongo.OpTime, got func(*stream.Batch)) {
	b.Helper()
	var known []shards.Collection
	for ns, uuid := range from.there {
		known = append(known, shards.Collection{NS: ns, UUID: uuid})
	}
	s := c.Stream(oplog.Options{Keep: func(ns string) bool { return strings.HasPrefix(ns, "d.") }}, merge.Options{},
		func() []shards.Collection { return known }, from.noted)
	err := s.Run(b.Context(), from.pos, func(_ context.Context, batch *stream.Batch) error {
		got(batch)
		if batch.End.Before(until) {
			return nil
		}
		return errReached
	})
	if !errors.Is(err, errReached) {
		b.Fatal(err)
	}
}

// have is what there is after a change.
func have(before map[string]bson.Binary, ch *stream.Change) map[string]bson.Binary {
	after := maps.Clone(before)
	switch ch.Kind {
	case stream.ChangeCreate, stream.ChangeIdentity:
		after[ch.NS] = ch.UUID
	case stream.ChangeDrop:
		delete(after, ch.NS)
	case stream.ChangeRename:
		after[ch.To] = after[ch.NS]
		delete(after, ch.NS)
	}
	return after
}

func nameOf(ev *stream.Event) string {
	return fmt.Sprintf("%s %s %s %s %x", ev.At, ev.Change.Kind, ev.Change.NS, ev.Change.To, ev.Change.UUID.Data)
}

func indexes(name string) bool { return strings.Contains(name, string(stream.ChangeCreateIndexes)) }
