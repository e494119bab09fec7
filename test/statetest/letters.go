package statetest

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
)

// OpenLetters opens a job's dead letters, with nothing in memory.
type OpenLetters func(job string) *deadletter.Store

// LettersProperty is one promise about dead letters.
type LettersProperty struct {
	Name  string
	Check func(T, OpenLetters)
}

// RunLetters tries all properties.
func RunLetters(t *testing.T, open OpenLetters) {
	for _, p := range LettersProperties() {
		t.Run(p.Name, func(t *testing.T) { p.Check(t, open) })
	}
}

// LettersProperties are what a keeper of dead letters promises.
func LettersProperties() []LettersProperty {
	return []LettersProperty{
		{"an undecided letter waits, then is open, settled or about nothing", undecided},
		{"an open letter is tried again", openAgain},
		{"a letter is replaced whole", replaced},
		{"documents and _ids of every form are kept", everyForm},
		{"what was removed is kept for ever", removed},
		{"letters follow a rename", moved},
		{"letters end with their collection", dropped},
		{"what cannot be mapped is known until it is mended, renamed and dropped", leftOut},
	}
}

// lettersBench is a job of its own with its letters.
type lettersBench struct {
	T
	open OpenLetters
	job  string
	*deadletter.Store
}

func lettersOf(t T, open OpenLetters) lettersBench {
	t.Helper()
	b := lettersBench{T: t, open: open, job: newJob()}
	b.Store = open(b.job)
	b.ok(b.Load(t.Context(), true))
	return b
}

func (b lettersBench) ok(err error) {
	b.Helper()
	if err != nil {
		b.Fatalf("%v", err)
	}
}

// reopened are the letters as the next attempt finds them.
func (b lettersBench) reopened() lettersBench {
	b.Helper()
	b.Store = b.open(b.job)
	b.ok(b.Load(b.Context(), false))
	return b
}

// has wants so many letters by state, now and for the next attempt.
func (b lettersBench) has(when string, want deadletter.Stats) {
	b.Helper()
	if got, later := b.Stats(), b.reopened().Stats(); got != want || later != want {
		b.Errorf("%s: %+v, opened again %+v, want %+v", when, got, later, want)
	}
}

func (b lettersBench) due(applied mongo.OpTime) (ids []string) {
	b.Helper()
	letters, err := b.Due(b.Context(), applied, 100)
	b.ok(err)
	for _, l := range letters {
		ids = append(ids, l.DocID.String())
	}
	if b.AnyDue(applied) != (len(ids) > 0) {
		b.Errorf("any due: %t, but %v", b.AnyDue(applied), ids)
	}
	return ids
}

// letter is about a document {_id, v}.
func letter(ns string, id, v any, state deadletter.State) deadletter.Letter {
	raw, err := bson.Marshal(bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}})
	if err != nil {
		panic(err)
	}
	uuid := bson.Binary{Subtype: bson.TypeBinaryUUID, Data: []byte{1, 2, 3, 15: 0}}
	other := bson.RawValue{Type: bson.TypeBoolean, Value: []byte{1}}
	return deadletter.Letter{Origin: stream.Origin{NS: ns, Source: "s." + ns, UUID: uuid}, State: state,
		Cause: deadletter.CauseKey, DocID: bsoncore.Document(raw).Lookup("_id"),
		Doc: raw, At: at(5), Until: at(9),
		Reason: "no room", Code: 11000, Index: "v_1", Other: other}
}

func same(a, b deadletter.Letter) bool {
	return a.NS == b.NS && a.State == b.State && a.Cause == b.Cause && a.DocID.Equal(b.DocID) &&
		bytes.Equal(a.Doc, b.Doc) && a.At == b.At && a.Until == b.Until &&
		a.Source == b.Source && a.UUID.Equal(b.UUID) &&
		a.Reason == b.Reason && a.Code == b.Code && a.Index == b.Index && a.Other.Equal(b.Other)
}

// brief is what can be printed of a letter.
func brief(l deadletter.Letter) string {
	id, size := l.DocID.String(), len(l.Doc)
	l.DocID, l.Doc = bsoncore.Value{}, nil
	return fmt.Sprintf("%+v of %.100s, %d bytes", l, id, size)
}

// read wants the letter of a document in dispute.
func (b lettersBench) read(when string, want deadletter.Letter) deadletter.Letter {
	b.Helper()
	var got deadletter.Letter
	for _, one := range []lettersBench{b, b.reopened()} {
		l, disputed, err := one.Read(b.Context(), want.NS, want.DocID)
		if err != nil || !disputed || !one.Disputed(want.NS, want.DocID) || !same(l, want) {
			b.Errorf("%s: %s, in dispute %t, %v, want %s", when, brief(l), disputed, err, brief(want))
		}
		got = l
	}
	return got
}

func undecided(t T, open OpenLetters) {
	b := lettersOf(t, open)
	if l := letter("d.c", 1, "x", deadletter.Undecided); b.Disputed(l.NS, l.DocID) || !b.Until().IsZero() ||
		b.AnyDue(at(100)) {
		t.Errorf("in dispute without a letter")
	}
	for id := range 3 {
		b.ok(b.Write(t.Context(), letter("d.c", id, "x", deadletter.Undecided)))
	}
	missing := letter("d.c", 3, "x", deadletter.Undecided)
	missing.Cause = deadletter.CauseMissing
	b.ok(b.Write(t.Context(), missing))
	b.has("written", deadletter.Stats{Undecided: 4})
	for _, one := range []lettersBench{b, b.reopened()} {
		if early, late := one.due(at(8)), one.due(at(9)); len(early) != 0 || len(late) != 4 || one.Until() != at(9) {
			t.Errorf("due %v before, %v at %s", early, late, one.Until())
		}
	}
	b.ok(b.Write(t.Context(), letter("d.c", 0, "y", deadletter.Open)))
	b.ok(b.Settle(t.Context(), b.read("undecided", letter("d.c", 1, "x", deadletter.Undecided)), "nothing was wrong"))
	b.ok(b.Settle(t.Context(), b.read("missing", missing), "written"))
	b.has("decided", deadletter.Stats{Undecided: 1, Open: 1, Settled: 1})
	if l := letter("d.c", 1, "x", deadletter.Undecided); b.Disputed(l.NS, l.DocID) ||
		b.reopened().Disputed(l.NS, l.DocID) || b.Disputed(l.NS, missing.DocID) {
		t.Errorf("in dispute after it was settled")
	}
	again := letter("d.c", 3, "z", deadletter.Open)
	again.At = at(20)
	b.ok(b.Write(t.Context(), again))
	b.has("in dispute again", deadletter.Stats{Undecided: 1, Open: 2, Settled: 1})
	if other := lettersOf(t, open); other.Disputed("d.c", again.DocID) || other.Stats() != (deadletter.Stats{}) {
		t.Errorf("another job has letters: %+v", other.Stats())
	}
}

func openAgain(t T, open OpenLetters) {
	b := lettersOf(t, open)
	l := letter("d.c", 1, "x", deadletter.Open)
	b.ok(b.Write(t.Context(), l))
	if b.AnyDue(at(100)) {
		t.Errorf("due though it was just refused")
	}
	again := b.reopened()
	if len(again.due(at(8))) != 0 || len(again.due(at(9))) != 1 || again.Until() != at(9) {
		t.Errorf("not tried by the next attempt")
	}
	b.RetryAll()
	if len(b.due(at(9))) != 1 {
		t.Errorf("not tried again")
	}
	b.ok(b.Write(t.Context(), l)) // refused once more, for another reason
	if len(b.due(at(9))) != 1 {
		t.Errorf("a new state of it is not tried")
	}
	b.Tried(l.NS, l.DocID)
	if len(b.due(at(9))) != 0 || !b.Until().IsZero() {
		t.Errorf("tried without end")
	}
	b.ok(b.Settle(t.Context(), b.read("open", l), "written"))
	b.has("written", deadletter.Stats{Settled: 1})
}

func replaced(t T, open OpenLetters) {
	b := lettersOf(t, open)
	long := strings.Repeat("x", 15<<20) // in parts
	first := letter("d.c", 1, long, deadletter.Undecided)
	b.ok(b.Write(t.Context(), first))
	id := b.read("in parts", first).ID
	for n, v := range []any{"short", long + "y", bson.D{{Key: "$v", Value: 1}}, nil} {
		l := letter("d.c", 1, v, deadletter.Open)
		if l.At = at(uint32(10 + n)); n == 3 {
			l.Doc, l.Index, l.Source, l.UUID, l.Other = nil, "", "", bson.Binary{}, bson.RawValue{}
		}
		b.ok(b.Write(t.Context(), l))
		if got := b.read("replaced", l); got.ID != id {
			t.Errorf("replaced under another id: %s, %s", id, got.ID)
		}
	}
	b.has("replaced", deadletter.Stats{Open: 1})
}

func everyForm(t T, open OpenLetters) {
	b := lettersOf(t, open)
	deep := bson.D{}
	for range 100 {
		deep = bson.D{{Key: "d", Value: deep}}
	}
	values := []any{int32(1), int64(1), 1.0, "1", nil, bson.D{{Key: "$a", Value: 1}}, bson.D{{Key: "a", Value: 1}},
		strings.Repeat("x", 2<<20), bson.MinKey{},
		bson.Timestamp{}, deep, bson.D{{Key: "a.b", Value: 1}, {Key: "", Value: 2}, {Key: "a.b", Value: 3}}, bson.Symbol("s"),
		bson.Undefined{},
		bson.CodeWithScope{Code: "c", Scope: bson.D{{Key: "$x", Value: 1}}}}
	var letters []deadletter.Letter
	for _, v := range values {
		l := letter("d.c", v, v, deadletter.Open)
		letters = append(letters, l)
		b.ok(b.Write(t.Context(), l))
	}
	for _, l := range letters {
		b.read("kept", l)
	}
	b.has("kept", deadletter.Stats{Open: int64(len(values))})
}

func removed(t T, open OpenLetters) {
	b := lettersOf(t, open)
	gone, l := letter("d.c", 1, "theirs", deadletter.Removed), letter("d.c", 1, "ours", deadletter.Open)
	b.ok(b.Write(t.Context(), gone))
	if b.Disputed("d.c", gone.DocID) || b.reopened().Disputed("d.c", gone.DocID) {
		t.Errorf("what was removed is in dispute")
	}
	b.ok(b.Write(t.Context(), l))
	b.ok(b.Write(t.Context(), gone)) // beside the letter of the same document
	b.read("beside a removed one", l)
	other := lettersOf(t, open)
	b.ok(other.Write(t.Context(), l))
	b.ok(b.Reset(t.Context()))
	b.ok(b.Load(t.Context(), false))
	b.has("after a restart", deadletter.Stats{Removed: 1})
	other.has("of another job", deadletter.Stats{Open: 1})
}

func moved(t T, open OpenLetters) {
	b := lettersOf(t, open)
	ours, theirs, elsewhere := letter("d.from", 1, "x", deadletter.Open), letter("d.to", 1, "y", deadletter.Undecided),
		letter("d.else", 1, "z", deadletter.Open)
	for _, l := range []deadletter.Letter{ours, theirs, elsewhere} {
		b.ok(b.Write(t.Context(), l))
	}
	ours.NS = "d.to"
	for n := range 2 { // once more after a crash
		b.ok(b.Moved(t.Context(), "d.from", "d.to", at(30)))
		b.has("renamed", deadletter.Stats{Open: 2, Settled: 1})
		l := b.read("renamed", ours)
		if b.Disputed("d.from", ours.DocID) {
			t.Errorf("in dispute under the old name")
		}
		if n == 0 { // a change after the rename, before the crash
			ours = letter("d.to", 1, "x2", deadletter.Open)
			b.ok(b.Write(t.Context(), ours))
			if now := b.read("changed", ours); now.ID != l.ID {
				t.Errorf("another letter: %s, %s", l.ID, now.ID)
			}
		}
	}
	b.read("elsewhere", elsewhere)
}

func dropped(t T, open OpenLetters) {
	b := lettersOf(t, open)
	states := []deadletter.State{deadletter.Undecided, deadletter.Open, deadletter.Removed}
	for i, state := range states {
		b.ok(b.Write(t.Context(), letter("d.c", i, "x", state)))
		b.ok(b.Write(t.Context(), letter("d.other", i, "x", state)))
	}
	b.ok(b.Dropped(t.Context(), "d.c"))
	b.has("dropped", deadletter.Stats{Undecided: 1, Open: 1, Settled: 2, Removed: 2})
	for i := range states[:2] {
		id := letter("d.c", i, "x", "").DocID
		if still := []bool{b.Disputed("d.c", id), b.reopened().Disputed("d.c", id)}; slices.Contains(still, true) ||
			!b.Disputed("d.other", id) {
			t.Errorf("%d: in dispute %v; of the other collection %t", i, still, b.Disputed("d.other", id))
		}
	}
}

func leftOut(t T, open OpenLetters) {
	b := lettersOf(t, open)
	id := func(n int) bsoncore.Value { return letter("", n, 0, "").DocID }
	out := func(ns string, n int, v any, isNew bool) {
		t.Helper()
		l := letter(ns, n, v, "")
		if got, err := b.LeaveOut(t.Context(), l); err != nil || got != isNew {
			t.Errorf("%s %d: new %t, %v", ns, n, got, err)
		}
	}
	known := func(when, ns string, want ...int) {
		t.Helper()
		for _, one := range []lettersBench{b, b.reopened()} {
			for n := range 4 {
				if got := one.IsUnmapped(ns, id(n)); got != slices.Contains(want, n) || one.Disputed(ns, id(n)) && n > 0 {
					t.Errorf("%s: %s %d is left out: %t, in dispute: %t", when, ns, n, got, one.Disputed(ns, id(n)))
				}
			}
		}
	}
	known("nothing", "d.c")
	b.ok(b.SettleUnmapped(t.Context(), "d.c", id(1), "no letter"))
	b.ok(b.Write(t.Context(), letter("d.c", 0, "refused", deadletter.Open))) // beside another letter of it
	for n := range 3 {
		out("d.c", n, "x", true)
	}
	out("d.c", 1, "y", false)
	b = b.reopened()
	out("d.c", 1, "z", false)
	out("d.else", 1, "x", true)
	known("left out", "d.c", 0, 1, 2)
	b.has("left out", deadletter.Stats{Open: 1, Unmapped: 4})
	b.ok(b.SettleUnmapped(t.Context(), "d.c", id(0), "mended"))
	b.ok(b.SettleUnmapped(t.Context(), "d.c", id(0), "once more"))
	known("mended", "d.c", 1, 2)
	b.has("mended", deadletter.Stats{Open: 1, Unmapped: 3, Settled: 1})
	out("d.to", 3, "of one that the rename drops", true)
	b.ok(b.Moved(t.Context(), "d.c", "d.to", at(30)))
	known("renamed", "d.c")
	known("renamed", "d.to", 1, 2)
	b.ok(b.Moved(t.Context(), "d.c", "d.to", at(30))) // after a crash
	known("renamed once more", "d.to", 1, 2)
	b.ok(b.Dropped(t.Context(), "d.to"))
	known("dropped", "d.to")
	known("another is dropped", "d.else", 1)
	b.has("dropped", deadletter.Stats{Unmapped: 1, Settled: 5})
}
