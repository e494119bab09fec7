package origin

import (
	"context"
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestStreamedSet reads a replica set by change streams: its catalog, its changes from there on, and single
// documents.
func TestStreamedSet(t *testing.T) {
	for _, version := range lab.Versions("6.0", "5.0", "4.4") {
		t.Run(version, func(t *testing.T) {
			t.Parallel()
			testStreamedSet(t, version)
		})
	}
}

func testStreamedSet(t *testing.T, version string) {
	ctx := t.Context()
	c := dial.Cluster(t, lab.ForTest(t, lab.Options{Version: version}).URI(), mongo.Options{})
	b := bed{t, c.Client.Database("d")}
	b.insert("c", 1)
	b.insert("other", 1)
	s := &Streamed{Cluster: c}
	snap, from, err := s.Snapshot(ctx, scopeOf("d"))
	b.ok(err)
	if len(snap.Collections) != 2 || from.At != snap.At || from.Mark == "" {
		t.Fatalf("%+v from %+v", snap, from)
	}
	b.insert("c", 2)
	end, err := s.Newest(ctx, "d.c")
	b.ok(err)
	var got []int64
	src := s.Changes(oplog.Options{Keep: func(ns string) bool { return ns == "d.c" }}, nil, mongo.OpTime{})
	done := errors.New("done")
	var last stream.Position
	err = src.Run(ctx, from, func(_ context.Context, batch *stream.Batch) error {
		for _, ev := range batch.Events {
			got = append(got, ev.Key.ID.AsInt64())
		}
		if batch.Partial || batch.End.Before(end) {
			return nil
		}
		last = batch.Resume()
		return done
	})
	if !errors.Is(err, done) || !slices.Equal(got, []int64{2}) {
		t.Fatalf("read %v, %v", got, err)
	}
	if first, err := s.ReadFrom(last); err != nil || first != last.At {
		t.Errorf("%v, %v", first, err)
	}
	if _, err := s.ReadFrom(oplog.Position(end, end)); mongo.HintOf(err) == "" {
		t.Errorf("a position in oplogs: %v", err)
	}
	docs, err := s.Find(ctx, lookup.Collection{DB: "d", UUID: b.uuid("c")}, lookup.Question{At: end,
		IDs: []bson.RawValue{kit.Value(2), kit.Value(3)}})
	if err != nil || docs[0] == nil || docs[1] != nil {
		t.Errorf("%v, %v", docs, err)
	}
	if _, found, err := s.ListOne(ctx, "d", b.uuid("c")); !found || err != nil {
		t.Errorf("found %v, %v", found, err)
	}
	uuid := b.uuid("c")
	at, found, err := s.FindInsertion(ctx, func(ctx context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
		reply, err := c.Command(ctx, db, cmd)
		return bsoncore.Document(reply), err
	}, stream.Insertion{UUID: uuid, ID: kit.Value(2), After: from.At, Until: end})
	known := c.Info.Version.AtLeast(6, 0)
	if err != nil || found != known || known && (at.Before(from.At) || end.Before(at)) {
		t.Errorf("inserted at %v, %v, %v, between %v and %v", at, found, err, from.At, end)
	}
	b.ok(b.db.Collection("c").Drop(ctx))
	if gone, err := s.Vanished(ctx, "d", uuid); !gone || err != nil {
		t.Errorf("gone %v, %v", gone, err)
	}
	var seen []stream.ChangeKind
	end, err = s.Newest(ctx, "d.c")
	b.ok(err)
	b.ok(s.Look(ctx, []string{"d.c"}, oplog.Span{After: from.At, Until: end}, func(ev *stream.Event) error {
		if ev.Kind == stream.SchemaChange {
			seen = append(seen, ev.Change.Kind)
		}
		return nil
	}))
	if !slices.Contains(seen, stream.ChangeDrop) {
		t.Errorf("%v", seen)
	}
}
