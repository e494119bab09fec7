package shards

import (
	"context"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/stream"
)

func uuidOf(n byte) bson.Binary { return bson.Binary{Subtype: 4, Data: append(make([]byte, 15), n)} }

func copyOf(id, of byte) Copy {
	return Copy{NS: "d.u", ID: [16]byte{15: id}, Of: [16]byte{15: of}}
}

func opTime(n uint32) mongo.OpTime { return mongo.OpTime{TS: bson.Timestamp{T: n}, Term: -1} }

func ddl(n uint32, kind stream.ChangeKind, id byte) stream.Event {
	return stream.Event{Kind: stream.SchemaChange, NS: "d.u", At: opTime(n),
		Change: &stream.Change{Kind: kind, NS: "d.u", UUID: uuidOf(id)}}
}

// TestCopiesAtEnd: the mark of a batch has the copies of its end, though the batch, or
// one before it, has brought events of later positions.
func TestCopiesAtEnd(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
	o.SetCopies(nil)
	all := []stream.Event{ddl(10, stream.ChangeCreate, 2), ddl(20, stream.ChangeDrop, 1),
		ddl(30, stream.ChangeCreate, 3)}
	for _, step := range []struct {
		end    uint32
		events []stream.Event
		copies []Copy
	}{
		{end: 5, events: all[:2]}, {end: 15, copies: []Copy{copyOf(2, 1)}},
		{end: 17, events: all[2:], copies: []Copy{copyOf(2, 1)}},
		{end: 25}, {end: 35, copies: []Copy{copyOf(3, 2)}},
	} {
		got, err := o.filter(t.Context(), &stream.Batch{Events: step.events, End: opTime(step.end)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		if len(got) != len(step.copies) || len(got) > 0 && got[0] != step.copies[0] {
			t.Errorf("at %d: %v, want %v", step.end, got, step.copies)
		}
	}
}

// TestCopiesAtChange: what two shards tell of at one position is in the mark of either
// change, for whoever goes on from there is told nothing of that position.
func TestCopiesAtChange(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}, {NS: "d.v", UUID: uuidOf(5)}})
	all := []stream.Event{ddl(10, stream.ChangeDrop, 5), ddl(10, stream.ChangeCreate, 2), ddl(20, stream.ChangeDrop, 1)}
	all[0].Change.NS = "d.v"
	var got [][]Copy
	if _, err := o.filter(t.Context(), &stream.Batch{Events: all, End: opTime(20)},
		func(_ *stream.Event, copies []Copy) error {
			got = append(got, copies)
			return nil
		}); err != nil {
		t.Fatal(err)
	}
	if len(got) != 2 || len(got[0]) != 1 || got[0][0] != copyOf(2, 1) || len(got[1]) != 0 {
		t.Errorf("%v", got)
	}
}

// TestMovedTwiceAndKept: a database moves on before the shard where it was first drops its
// collection.
func TestMovedTwiceAndKept(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
	o.primary = func(context.Context, string, mongo.OpTime) (string, bool, error) { return "s2", true, nil }
	all := []stream.Event{ddl(10, stream.ChangeCreate, 2), ddl(20, stream.ChangeCreate, 3),
		ddl(30, stream.ChangeDrop, 2), ddl(40, stream.ChangeDrop, 1)}
	for i, shard := range []string{"s1", "s2", "s1", "s0"} {
		all[i].Change.Shard = shard
	}
	b := &stream.Batch{End: opTime(40), Events: all}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 1 || b.Events[0].Change.Kind != stream.ChangeIdentity || b.Events[0].Change.UUID.Data[15] != 3 {
		t.Errorf("%+v", b.Events)
	}
}

// TestSeveralCopies: moves that came to nothing leave copies behind. While one is there, no drop of another one, or of
// the original, is a user's.
func TestSeveralCopies(t *testing.T) {
	for _, drops := range [][]byte{{1, 2, 3}, {1, 3, 2}, {2, 1, 3}, {3, 1, 2}} {
		o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
		o.SetCopies([]Copy{copyOf(2, 1)})
		b := &stream.Batch{End: opTime(40), Events: []stream.Event{ddl(1, stream.ChangeCreate, 3)}}
		for i, id := range drops {
			b.Events = append(b.Events, ddl(uint32(10+i), stream.ChangeDrop, id))
		}
		if _, err := o.filter(t.Context(), b, nil); err != nil {
			t.Fatal(err)
		}
		for i, ev := range b.Events {
			if last := i == len(b.Events)-1; last != (ev.Change.Kind == stream.ChangeDrop) || last && ev.At != opTime(12) {
				t.Errorf("%v: %+v", drops, ev.Change)
			}
		}
	}
}

// TestViewMakesDatabase: a database that has had a view since its drop can be dropped again.
func TestViewMakesDatabase(t *testing.T) {
	o := NewChangeFilter(nil)
	dropped := func(n uint32) stream.Event {
		return stream.Event{Kind: stream.SchemaChange, NS: "d", At: opTime(n),
			Change: &stream.Change{Kind: stream.ChangeDropDatabase, NS: "d"}}
	}
	view := ddl(3, stream.ChangeView, 0)
	view.Change.UUID = bson.Binary{}
	b := &stream.Batch{End: opTime(9), Events: []stream.Event{dropped(1), dropped(2), view, dropped(4), dropped(5)}}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 3 || b.Events[2].At != opTime(4) {
		t.Errorf("%+v", b.Events)
	}
}

// TestKeptAndRenamed: users rename what has moved, and make another one of its name, before
// the shard where it was drops it. Servers of 4.4 let them.
func TestKeptAndRenamed(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
	o.primary = func(context.Context, string, mongo.OpTime) (string, bool, error) { return "s1", true, nil }
	all := []stream.Event{ddl(10, stream.ChangeCreate, 2), ddl(20, stream.ChangeRename, 2),
		ddl(30, stream.ChangeCreate, 3), ddl(40, stream.ChangeDrop, 1)}
	all[1].Change.To = "d.v"
	for i, shard := range []string{"s1", "s1", "s1", "s0"} {
		all[i].Change.Shard = shard
	}
	b := &stream.Batch{End: opTime(40), Events: all}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 2 || b.Events[0].Change.Kind != stream.ChangeRename ||
		b.Events[1].Change.Kind != stream.ChangeCreate {
		t.Errorf("%+v", b.Events)
	}
	if now, there := o.currentUUID([16]byte{15: 1}); !there || now[15] != 2 {
		t.Error(now, there)
	}
}

// TestNamesAhead: what is known of the names may be of a later position than the one
// where the stream begins: a copy that is collection by then stays that.
func TestNamesAhead(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(2)}})
	o.SetCopies([]Copy{copyOf(2, 1)})
	b := &stream.Batch{End: opTime(40), Events: []stream.Event{ddl(10, stream.ChangeDrop, 1),
		ddl(15, stream.ChangeCollMod, 2),
		ddl(20, stream.ChangeCreate, 3), ddl(30, stream.ChangeDrop, 2)}}
	b.Events[1].Change.Options = bson.Raw{5, 0, 0, 0, 0}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 2 || b.Events[0].Change.Kind != stream.ChangeCollMod ||
		b.Events[1].Change.Kind != stream.ChangeIdentity {
		t.Errorf("%+v", b.Events)
	}
}

// TestNamesFarAhead: a position of millrace before it noted what moves at each change has
// names that are later by several of them.
func TestNamesFarAhead(t *testing.T) {
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(3)}})
	o.primary = func(context.Context, string, mongo.OpTime) (string, bool, error) { return "s1", true, nil }
	o.SetCopies([]Copy{copyOf(2, 1)})
	o.namesAt = opTime(30)
	all := []stream.Event{ddl(10, stream.ChangeDrop, 1), ddl(20, stream.ChangeDrop, 2), ddl(30, stream.ChangeCreate, 3),
		ddl(40, stream.ChangeCreate, 4)}
	for i, shard := range []string{"s0", "s1", "s1", "s2"} {
		all[i].Change.Shard = shard
	}
	b := &stream.Batch{End: opTime(40), Events: all}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	for _, ev := range b.Events {
		if ev.Change.Kind == stream.ChangeCreate {
			t.Errorf("the copy of a collection that exists is reported as new: %+v", ev.Change)
		}
	}
}

// TestGoneAhead: a collection that is made at or before the position, and that the names
// do not have, is gone by then; its name is free.
func TestGoneAhead(t *testing.T) {
	o := NewChangeFilter(nil)
	o.namesAt = opTime(10)
	b := &stream.Batch{End: opTime(20), Events: []stream.Event{ddl(10, stream.ChangeCreate, 1),
		ddl(20, stream.ChangeCreate, 2)}}
	if _, err := o.filter(t.Context(), b, nil); err != nil {
		t.Fatal(err)
	}
	if len(b.Events) != 1 || b.Events[0].Change.UUID.Data[15] != 2 {
		t.Errorf("%+v", b.Events)
	}
}

// TestMarkBeforePosition: a position that is amid a batch has the mark of the batch
// before. The stream goes on from there: a copy that was begun in between is known, and
// what is done is passed over.
func TestMarkBeforePosition(t *testing.T) {
	pos := stream.Position{At: opTime(15), Mark: newToken("[]", opTime(5), nil, nil, nil)}
	from, err := parsePosition(pos)
	if err != nil || from.from.At != opTime(5) || from.from.Mark != "[]" || len(from.copies) > 0 ||
		from.knownUntil != opTime(5) {
		t.Fatal(from, err)
	}
	o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
	o.SetCopies(from.copies)
	var got []stream.Event
	end := opTime(15)
	for _, b := range []stream.Batch{
		{Start: opTime(5), End: opTime(8), Partial: true, Events: []stream.Event{{Kind: stream.Insert, At: opTime(9)}}},
		{Start: opTime(8), End: opTime(12), Events: []stream.Event{ddl(10, stream.ChangeCreate, 2)}},
		{Start: opTime(12), End: opTime(20), Events: []stream.Event{{Kind: stream.Insert, At: opTime(14)},
			{Kind: stream.Insert, At: opTime(16)}, ddl(20, stream.ChangeDrop, 1)}},
		{Start: opTime(20), End: opTime(22), Events: []stream.Event{{Kind: stream.Insert, At: opTime(21)}}},
	} {
		if _, err := o.filter(t.Context(), &b, nil); err != nil {
			t.Fatal(err)
		}
		skipApplied(&b, pos.At, true)
		if b.Start != end || b.End.Before(end) || b.Partial {
			t.Errorf("%+v after %s", b, end)
		}
		end, got = b.End, append(got, b.Events...)
	}
	if len(got) != 3 || got[0].At != opTime(16) || got[1].Change.Kind != stream.ChangeIdentity || got[2].At != opTime(21) {
		t.Errorf("%+v", got)
	}
}

// TestMarkKnowsShards: which shards a position was of survives in its mark, and which times
// they had.
func TestMarkKnowsShards(t *testing.T) {
	at := mongo.OpTime{TS: bson.Timestamp{T: 7, I: 9}, Term: -1}
	pos := merge.Joined(at, map[string]stream.Position{"s0": {At: at}, "s1": {At: at}})
	pos.Mark = newToken(pos.Mark, at, nil, topology{"s0": {T: 3, I: 1}, "s1": {T: 3, I: 2}},
		hosts{"s0": "rs0/a:1", "s1": "rs1/b:1,c:1"})
	needed, err := neededBy(pos)
	if err != nil || len(needed.parts) != 2 || needed.parts["s1"].At != at {
		t.Fatal(needed, err)
	}
	if gone := needed.missingFrom([]shardEntry{{Name: "s0"}, {Name: "s2"}}); len(gone) != 1 ||
		gone[0] != (shardEntry{Name: "s1", Host: "rs1/b:1,c:1"}) {
		t.Errorf("%+v", gone)
	}
	known := needed.topology
	there := []shardEntry{{Name: "s0", Since: bson.Timestamp{T: 3, I: 1}}, {Name: "s1", Since: bson.Timestamp{T: 3, I: 2}}}
	if joined := append(there, shardEntry{Name: "s2", Since: bson.Timestamp{T: 5}}); known.shardRemoved(there) ||
		known.shardRemoved(joined) {
		t.Error("a shard that has joined is taken for one that has left")
	}
	there[0].Since.T = 6
	if !known.shardRemoved(there) {
		t.Error("a removal is not noticed")
	}
}

// TestMark: copies survive in a mark.
func TestMark(t *testing.T) {
	at := mongo.OpTime{TS: bson.Timestamp{T: 7, I: 9}, Term: -1}
	pos := stream.Position{At: at, Mark: newToken("[1]", at, []Copy{copyOf(2, 1)}, nil, nil)}
	b, err := parsePosition(pos)
	if err != nil || b.from.At != at || b.from.Mark != "[1]" || len(b.copies) != 1 || b.copies[0] != copyOf(2, 1) ||
		b.knownUntil != at {
		t.Error(b, err)
	}
	later := mongo.OpTime{TS: bson.Timestamp{T: 8}, Term: -1}
	if pos.Mark, err = tokenWithCopies(pos, later, []Copy{copyOf(3, 2)}); err != nil {
		t.Fatal(err)
	}
	pos.At = later
	b, err = parsePosition(pos)
	if err != nil || b.from.At != at || b.from.Mark != "[1]" || len(b.copies) != 1 || b.copies[0] != copyOf(3, 2) ||
		b.knownUntil != later {
		t.Error(b, err)
	}
}

// TestNamesAmidAMove: a job was killed between the two changes of a rename between databases.
// The copy has the wanted name then, and its own still.
func TestNamesAmidAMove(t *testing.T) {
	const staged = "d.tmpAbCdE.renameCollection"
	for _, names := range [][]string{{"d.u", staged}, {staged, "d.u"}} {
		var there []Collection
		for _, ns := range names {
			there = append(there, Collection{NS: ns, UUID: uuidOf(2)})
		}
		o := NewChangeFilter(there)
		rename := func(n uint32, from, to string, c mongo.Command) stream.Event {
			ev := ddl(n, stream.ChangeRename, 2)
			ev.NS, ev.Change.NS, ev.Change.To, ev.Change.Command = from, from, to, c
			return ev
		}
		all := []stream.Event{rename(10, "x.u", "d.u", mongo.CommandMove), rename(20, "d.u", "d.v", 0),
			rename(30, "d.v", "d.w", 0)}
		b := &stream.Batch{Events: all, End: opTime(30)}
		if _, err := o.filter(t.Context(), b, nil); err != nil {
			t.Fatal(err)
		}
		if n := len(b.Events); n < 2 || b.Events[n-2].Change.To != "d.v" || b.Events[n-1].Change.To != "d.w" {
			t.Errorf("%v: of three renames %d pass", names, n)
		}
	}
}

// TestReadAgain: what is read again, up to the position that the names are of, takes nothing from
// them: later changes of the collections that they have pass.
func TestReadAgain(t *testing.T) {
	change := func(at uint32, kind stream.ChangeKind, ns, to string, id byte) stream.Event {
		ev := ddl(at, kind, id)
		ev.NS, ev.Change.NS, ev.Change.To = ns, ns, to
		if kind == stream.ChangeDropDatabase {
			ev.Change.UUID = bson.Binary{}
		}
		return ev
	}
	for name, again := range map[string][]stream.Event{
		"the database was dropped": {change(1, stream.ChangeDropDatabase, "d", "", 0),
			change(2, stream.ChangeCreate, "d.u", "", 1)},
		"the name was another's": {change(1, stream.ChangeCreate, "d.u", "", 2),
			change(2, stream.ChangeDrop, "d.u", "", 2), change(3, stream.ChangeCreate, "d.u", "", 1)},
		"it was renamed there": {change(1, stream.ChangeRename, "d.v", "d.u", 2),
			change(2, stream.ChangeRename, "d.u", "d.w", 2), change(3, stream.ChangeCreate, "d.u", "", 1)},
		"it was renamed to and fro": {change(1, stream.ChangeRename, "d.u", "d.v", 1),
			change(2, stream.ChangeCreate, "d.u", "", 2), change(3, stream.ChangeDrop, "d.u", "", 2),
			change(4, stream.ChangeRename, "d.v", "d.u", 1)},
		"a copy came to nothing": {change(1, stream.ChangeCreate, "d.u", "", 2),
			change(2, stream.ChangeDrop, "d.u", "", 2)},
	} {
		o := NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}, {NS: "d.w", UUID: uuidOf(2)}})
		if name != "it was renamed there" {
			o = NewChangeFilter([]Collection{{NS: "d.u", UUID: uuidOf(1)}})
		}
		o.namesAt = opTime(9)
		o.primary = func(context.Context, string, mongo.OpTime) (string, bool, error) { return "s0", true, nil }
		later := []stream.Event{change(10, stream.ChangeCreateIndexes, "d.u", "", 1),
			change(11, stream.ChangeDrop, "d.u", "", 1)}
		later[0].Change.Indexes = []stream.Index{{Name: "v_1", Spec: bson.Raw{5, 0, 0, 0, 0}}}
		b := &stream.Batch{End: opTime(20), Events: append(again, later...)}
		for i := range b.Events {
			b.Events[i].Change.Shard = "s0"
		}
		if _, err := o.filter(t.Context(), b, nil); err != nil {
			t.Fatal(err)
		}
		if len(b.Events) != 2 || b.Events[0].At != opTime(10) || b.Events[1].Change.Kind != stream.ChangeDrop {
			t.Errorf("%s: %d changes pass: %+v", name, len(b.Events), b.Events)
		}
	}
}
