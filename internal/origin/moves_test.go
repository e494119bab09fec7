package origin

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

func indexOn(field string) driver.IndexModel { return driver.IndexModel{Keys: kit.D(field, 1)} }

func at(t, i uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: t, I: i}, Term: -1} }

// TestNotMoved: a collection that users drop and make again does not continue the former one, even if that happens
// in the second at which the stream stands.
func TestNotMoved(t *testing.T) {
	lab.NeedServers(t)
	ctx := t.Context()
	s := &Streamed{Cluster: dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})}
	b := bed{t, s.Client.Database("d")}
	begin := func() mongo.OpTime {
		p, err := s.Newest(ctx, "d.c")
		b.ok(err)
		return p
	}
	b.insert("c", 1)
	was, start := b.uuid("c"), begin()
	b.ok(b.db.Collection("c").Drop(ctx))
	b.insert("c", 2)
	var dropped mongo.OpTime
	b.ok(s.Look(ctx, nil, oplog.Span{After: start, Until: begin()}, func(ev *stream.Event) error {
		if ev.Change != nil && ev.Change.Kind == stream.ChangeDrop {
			dropped = ev.At
		}
		return nil
	}))
	names := []schema.Name{{NS: "d.c", UUID: was}}
	for _, pos := range []mongo.OpTime{start, dropped, at(dropped.TS.T, 0)} {
		m := newMoves(s, names, stream.Position{At: pos}, mongo.OpTime{})
		if now, err := m.successor(ctx, was); err != nil || len(now.Data) > 0 {
			t.Errorf("from %s: continued as %x, %v", pos, now.Data, err)
		}
		if now, err := m.successor(ctx, uuid(7)); err != nil || len(now.Data) > 0 {
			t.Errorf("of an unknown collection: %x, %v", now.Data, err)
		}
	}
	b.ok(b.db.Collection("c").Drop(ctx)) // nothing has the name
	m := newMoves(s, names, stream.Position{At: start}, mongo.OpTime{})
	if now, err := m.successor(ctx, was); err != nil || len(now.Data) > 0 {
		t.Errorf("continued as %x, %v", now.Data, err)
	}
}

// TestContinues: copies of a move continue a collection, what users make under its name does not. In a step, a is the
// collection that is asked for.
func TestContinues(t *testing.T) {
	for _, tc := range []struct {
		history, now string
		want         bool
	}{
		{"", "b", true}, {"-a", "b", true}, // the copy was made before
		{"+b -a", "b", true}, {"-a +b", "b", false},
		{"+b -a +c -b", "c", true}, {"+b -a -b +c", "c", false}, {"-a +c -b", "c", true},
		{"+b -b +c -a", "c", true}, {"+b -a +c -c", "b", true}, // moves that were given up
		{"-a +b +c -c", "b", false}, {"-a +b +c -b", "c", false},
		{"=b", "b", false}, {"-a =b +c -b", "c", false}, {"+b -a =c", "c", false},
	} {
		var changes []stream.Change
		for _, one := range strings.Fields(tc.history) {
			ch := stream.Change{NS: "d.c", UUID: uuid(one[1])}
			switch one[0] {
			case '+':
				ch.Kind = stream.ChangeCreate
			case '-':
				ch.Kind = stream.ChangeDrop
			default:
				ch.Kind, ch.NS, ch.To = stream.ChangeRename, "d.other", "d.c"
			}
			changes = append(changes, ch)
		}
		now := [16]byte{15: tc.now[0]}
		f := fate{ns: "d.c", latest: &[16]byte{15: 'a'}}
		f.follow(pastsOf(changes), [][16]byte{now})
		if got := f.latest != nil && *f.latest == now; got != tc.want {
			t.Errorf("%q, now %s: continues %t", tc.history, tc.now, got)
		}
	}
}

func pastsOf(changes []stream.Change) (all []pastChange) {
	for i := range changes {
		all = append(all, pastOf(&changes[i], mongo.OpTime{}))
	}
	return all
}

// TestChangesOnce: what each shard reports passes once, and the names of a run follow it.
func TestChangesOnce(t *testing.T) {
	s := &Streamed{}
	m := newMoves(s, []schema.Name{{NS: "d.a", UUID: uuid(1)}}, stream.Position{At: at(1, 0)}, mongo.OpTime{})
	var got []string
	emit := m.wrap(func(_ context.Context, b *stream.Batch) error {
		got = append(got, changes(b.Events)...)
		return nil
	})
	event := func(ch stream.Change, i uint32) stream.Event {
		return stream.Event{Kind: stream.SchemaChange, NS: ch.NS, Change: &ch, At: at(2, i)}
	}
	made := stream.Change{Kind: stream.ChangeCreate, NS: "d.b", UUID: uuid(2)}
	index := stream.Change{Kind: stream.ChangeCreateIndexes, NS: "d.b", UUID: uuid(2),
		Indexes: []stream.Index{{Name: "n_1", Spec: kit.Raw(kit.D("name", "n_1"))}}}
	renamed := stream.Change{Kind: stream.ChangeRename, NS: "d.b", To: "d.z", UUID: uuid(2)}
	var events []stream.Event
	for _, ch := range []stream.Change{made, index, renamed} {
		for range 2 {
			events = append(events, event(ch, uint32(len(events)+1)))
		}
	}
	view := stream.Change{Kind: stream.ChangeView, NS: "d.v"}
	events = append(events, event(view, 20), event(view, 21)) // views have no UUID, and are on one shard
	last := at(2, 30)
	if err := emit(t.Context(), &stream.Batch{Events: events, End: last}); err != nil {
		t.Fatal(err)
	}
	want := []string{"create d.b", "createIndexes d.b", "renameCollection d.b", "view d.v", "view d.v"}
	if !slices.Equal(got, want) {
		t.Errorf("passed %q, want %q", got, want)
	}
	if m.at != last || m.colls[[16]byte{15: 2}].ns != "d.z" || m.colls[[16]byte{15: 1}].ns != "d.a" {
		t.Errorf("at %s, collections %v", m.at, m.colls)
	}
	stop := errors.New("stop")
	err := m.wrap(func(context.Context, *stream.Batch) error { return stop })(t.Context(), &stream.Batch{End: at(3, 1)})
	if !errors.Is(err, stop) || m.at != last {
		t.Errorf("%v, at %s: the consumer does not have it", err, m.at)
	}
}

// TestKnownCopies: where the stream has seen who had a name, the servers are not asked where a dropped collection has
// moved. All of it may come in one batch.
func TestKnownCopies(t *testing.T) {
	created := stream.Change{Kind: stream.ChangeCreate, NS: "d.b", UUID: uuid(2)}
	dropped := stream.Change{Kind: stream.ChangeDrop, NS: "d.b", UUID: uuid(2)}
	for _, tc := range []struct {
		name    string
		changes []stream.Change
		want    []string
		next    bson.Binary // of d.b
	}{
		{"replaced before this run", []stream.Change{{Kind: stream.ChangeDrop, NS: "d.a", UUID: uuid(9)}}, nil,
			bson.Binary{}},
		{"dropped by a user", []stream.Change{created, dropped, dropped}, []string{"create d.b", "drop d.b"}, bson.Binary{}},
		{"moved", []stream.Change{created, {Kind: stream.ChangeCreate, NS: "d.b", UUID: uuid(3)}, dropped},
			[]string{"create d.b", "identity d.b"}, uuid(3)},
		// A shard that has nothing of the renamed collection drops the replaced one later.
		{"replaced", []stream.Change{{Kind: stream.ChangeCreate, NS: "d.x", UUID: uuid(4)},
			{Kind: stream.ChangeRename, NS: "d.x", To: "d.a", UUID: uuid(4), Replaced: uuid(1)},
			{Kind: stream.ChangeDrop, NS: "d.a", UUID: uuid(1)}}, []string{"create d.x", "renameCollection d.x"}, bson.Binary{}},
	} {
		m := newMoves(&Streamed{}, []schema.Name{{NS: "d.a", UUID: uuid(1)}}, stream.Position{At: at(1, 0)}, mongo.OpTime{})
		var events []stream.Event
		for i, ch := range tc.changes {
			events = append(events, stream.Event{Kind: stream.SchemaChange, NS: ch.NS, Change: &ch, At: at(2, uint32(i))})
		}
		var got []string
		err := m.wrap(func(_ context.Context, b *stream.Batch) error {
			got = changes(b.Events)
			return nil
		})(t.Context(), &stream.Batch{Events: events, End: at(2, 9)})
		if err != nil || !slices.Equal(got, tc.want) {
			t.Errorf("%s: passed %q, want %q, %v", tc.name, got, tc.want, err)
		}
		if now, err := m.successor(t.Context(), uuid(2)); err != nil || !bytes.Equal(now.Data, tc.next.Data) {
			t.Errorf("%s: continues as %x, %v", tc.name, now.Data, err)
		}
	}
}

// TestPast: what the stream reports is read once, whoever asks, and what comes meanwhile is read on.
func TestPast(t *testing.T) {
	var happened []stream.Change // a change in each second
	calls, reported := 0, 0
	read := func(_ context.Context, after, until mongo.OpTime, fn func(*stream.Change, mongo.OpTime) error) error {
		calls++
		for i := range happened {
			if now := at(uint32(i+1), 1); after.Before(now) && !until.Before(now) {
				reported++
				if err := fn(&happened[i], now); err != nil {
					return err
				}
			}
		}
		return nil
	}
	add := func(n int, names ...string) {
		for i := range n {
			happened = append(happened, stream.Change{Kind: stream.ChangeCreate, NS: names[i%len(names)], UUID: uuid(byte(i))})
		}
	}
	add(1000, "d.a", "d.b")
	var p past
	ask := func(ns string, after, until uint32, want int) {
		t.Helper()
		got, err := p.of(t.Context(), ns, oplog.Span{After: at(after, 1), Until: at(until, 1)}, read)
		if err != nil || len(got) != want {
			t.Errorf("%d changes of %s in (%d, %d], want %d: %v", len(got), ns, after, until, want, err)
		}
	}
	ask("d.a", 100, 1000, 450)
	ask("d.b", 100, 1000, 450)
	ask("d.b", 900, 1000, 50)
	if calls != 1 {
		t.Errorf("read %d times", calls)
	}
	add(10, "d.a")
	ask("d.a", 990, 1010, 15)
	ask("d.a", 990, 1005, 15) // of who asked earlier, and waited
	if calls != 2 || reported > 915 {
		t.Errorf("read %d times, %d changes", calls, reported)
	}
	ask("d.a", 0, 1010, 510)
	add(mostChanges, "d.b") // too many to keep
	ask("d.a", 0, mostChanges, 510)
	ask("d.a", 1000, mostChanges, 10)
	add(mostChanges, "d.b")
	if _, err := p.of(t.Context(), "d.b", oplog.Span{Until: at(1<<30, 1)}, read); mongo.HintOf(err) == "" {
		t.Errorf("too many of one name: %v", err)
	}
}

// TestStands: a second listing agrees with the first but for what the stream reports. Support of the oldest servers
// reports drops, and neither creations nor indexes.
func TestStands(t *testing.T) {
	lab.NeedServers(t)
	ctx := t.Context()
	s := &Streamed{Cluster: dial.Cluster(t, lab.ForTest(t, lab.Options{}).URI(), mongo.Options{})}
	b := bed{t, s.Client.Database("d")}
	for _, name := range []string{"c", "gone", "kept"} {
		b.insert(name, 1)
	}
	old := changestream.Support{}
	for _, step := range []struct {
		name   string
		change func() error
		stands bool
	}{
		{"nothing", func() error { return nil }, true},
		{"documents", func() error { b.insert("c", 2); return nil }, true},
		{"drop", func() error { return b.db.Collection("gone").Drop(ctx) }, true},
		{"rename", func() error {
			return s.Client.Database("admin").RunCommand(ctx, kit.D("renameCollection", "d.kept", "to", "d.moved")).Err()
		}, true},
		{"creation", func() error { return b.db.CreateCollection(ctx, "new") }, false},
		{"index", func() error {
			_, err := b.db.Collection("c").Indexes().CreateOne(ctx, indexOn("n"))
			return err
		}, false},
		{"other database", func() error { return s.Client.Database("e").CreateCollection(ctx, "c") }, true},
		{"database", func() error { return b.db.Drop(ctx) }, true},
	} {
		was, _, err := s.list(ctx, scopeOf("d"), old)
		b.ok(err)
		b.ok(step.change())
		if stands, err := s.stands(ctx, scopeOf("d"), was, old); err != nil || stands != step.stands {
			t.Errorf("%s: stands %t, %v", step.name, stands, err)
		}
	}
}

// TestInsertions: a document is inserted at a position only if the span has one insertion of it. The stream is read to
// the end of the span, and its cursor is closed.
func TestInsertions(t *testing.T) {
	in := stream.Insertion{UUID: uuid(1), ID: kit.Value(2), After: at(10, 0), Until: at(20, 0)}
	event := func(t uint32) bson.D { return kit.D("clusterTime", bson.Timestamp{T: t, I: 1}) }
	for name, tc := range map[string]struct {
		replies [][]bson.D
		ends    bool // the server closes the cursor
		want    int
	}{
		"one":            {[][]bson.D{{}, {event(11)}, {}}, false, 1},
		"two":            {[][]bson.D{{event(11)}, {event(12)}}, false, 2},
		"around":         {[][]bson.D{{event(9)}, {event(19), event(21)}}, false, 1},
		"none":           {[][]bson.D{{}, {}}, false, 0},
		"ended by other": {[][]bson.D{{}, {event(15)}}, true, 1},
	} {
		t.Run(name, func(t *testing.T) {
			var commands []string
			n := 0
			times, err := insertions(t.Context(), func(_ context.Context, db string, cmd bson.D) (bsoncore.Document, error) {
				commands = append(commands, cmd[0].Key)
				if db != "admin" || cmd[0].Key == "killCursors" {
					return nil, nil
				}
				last := n == len(tc.replies)-1
				time := "820000000F" // the stream has come to second 15
				if last && !tc.ends {
					time = "8200000015"
				}
				id := int64(77)
				if last && tc.ends {
					id = 0
				}
				docs := tc.replies[n]
				batch := []string{"firstBatch", "nextBatch"}[min(n, 1)]
				n++
				return bsoncore.Document(kit.Raw(kit.D("cursor", kit.D("id", id, batch, docs, "postBatchResumeToken",
					kit.D("_data", time+"00000001"))))), nil
			}, in)
			closed := slices.Contains(commands, "killCursors")
			if err != nil || len(times) != tc.want || n != len(tc.replies) || closed == tc.ends {
				t.Errorf("%v after %q, %v", times, commands, err)
			}
		})
	}
	broken := errors.New("broken")
	_, err := insertions(t.Context(), func(context.Context, string, bson.D) (bsoncore.Document, error) {
		return nil, broken
	}, in)
	if !errors.Is(err, broken) {
		t.Errorf("%v, want %v", err, broken)
	}
}

// TestSameCollection: each part of a collection that a copy needs.
func TestSameCollection(t *testing.T) {
	base := func() schema.Collection {
		return schema.Collection{NS: "d.c", Type: "collection", UUID: uuid(1), Options: kit.Raw(kit.D("capped", true)),
			Indexes: []stream.Index{{Name: "a", Spec: kit.Raw(kit.D("name", "a"))}}}
	}
	if !sameCollection(base(), base()) {
		t.Error("equal ones differ")
	}
	for name, change := range map[string]func(*schema.Collection){
		"name":    func(c *schema.Collection) { c.NS = "d.e" },
		"type":    func(c *schema.Collection) { c.Type = "view" },
		"uuid":    func(c *schema.Collection) { c.UUID = uuid(2) },
		"options": func(c *schema.Collection) { c.Options = nil },
		"index":   func(c *schema.Collection) { c.Indexes[0].Spec = bytes.Clone(kit.Raw(kit.D("name", "b"))) },
		"fewer":   func(c *schema.Collection) { c.Indexes = nil },
	} {
		other := base()
		if change(&other); sameCollection(base(), other) {
			t.Errorf("%s: no difference", name)
		}
	}
}

// TestOtherCapture: a job does not go on at a position that the other capture has made.
func TestOtherCapture(t *testing.T) {
	token := stream.Position{At: at(5, 1), Mark: "8200000005000000012B0229296E04"}
	mark := oplog.Position(at(5, 1), at(4, 1))
	if _, err := (&Streamed{}).ReadFrom(mark); mongo.HintOf(err) == "" {
		t.Errorf("a position in oplogs: %v", err)
	}
	if first, err := (&Streamed{}).ReadFrom(token); err != nil || first != token.At {
		t.Errorf("%s, %v", first, err)
	}
	if _, err := (Set{}).ReadFrom(token); err == nil {
		t.Error("an oplog reads from a resume token")
	}
	if first, err := (Set{}).ReadFrom(mark); err != nil || first != at(4, 1) {
		t.Errorf("%s, %v", first, err)
	}
	run := (&Streamed{}).Changes(oplog.Options{}, nil, mongo.OpTime{})
	err := run.Run(t.Context(), mark, nil)
	if mongo.HintOf(err) == "" || run.Stats().Entries != 0 {
		t.Errorf("%v, %+v", err, run.Stats())
	}
}
