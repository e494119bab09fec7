package follow

import (
	"errors"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/source/lookup"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

var errDropped = driver.CommandError{Code: mongo.CodeNamespaceNotFound}

// TestReread: a document is read when the source has committed the position, by the UUID that the
// job knows, and as the rules leave it. One whose collection is dropped for good is gone; one that
// may be back is asked for again.
func TestReread(t *testing.T) {
	r := newRig(t, transform.Config{Filter: []string{`d.c={"v":"a"}`}})
	s := r.options.Source
	r.docs[1], r.docs[2] = kit.Raw(kit.D("_id", 1, "v", "a")), kit.Raw(kit.D("_id", 2, "v", "b"))
	from := stream.Origin{NS: "d.c"}
	read := func(id int32) resolve.Reread {
		t.Helper()
		got, err := s.Reread(t.Context(), from, bsonraw.IDOf(kit.Raw(kit.D("_id", id))), at(30))
		if err != nil {
			t.Fatal(err)
		}
		return got
	}
	if got := read(1); got.Doc == nil || got.From != at(30) || got.Until != at(1000) {
		t.Errorf("%+v", got)
	}
	if q := r.reading[0]; q.At != at(30) || q.Exact || q.OnlyIDs {
		t.Errorf("asked %+v", q)
	}
	r.want("commit 30")
	if read(2).Doc != nil || read(3).Doc != nil {
		t.Error("what the rules leave out, or the source does not have, is read")
	}
	r.findErrs = []error{errDropped, errDropped, nil}
	r.log = nil
	if got := read(1); got.Gone || got.Doc == nil {
		t.Errorf("%+v of a collection that is there", got)
	}
	r.want("commit 30", "vanished", "vanished")
	r.findErrs, r.vanished = []error{errDropped}, true
	if got := read(1); !got.Gone {
		t.Errorf("%+v of a collection that is gone", got)
	}
	if _, err := s.Reread(t.Context(), stream.Origin{NS: "d.x"}, bsonraw.ID{}, at(30)); mongo.HintOf(err) == "" {
		t.Errorf("of a collection that is not known: %v", err)
	}
	h := newRig(t, transform.Config{History: []string{"d.c"}}).options.Source
	if _, err := h.Reread(t.Context(), from, bsonraw.ID{}, at(30)); mongo.HintOf(err) == "" {
		t.Errorf("of a history: %v", err)
	}
}

// TestReadForRules: documents are as of the very position where the source remembers it. Else they
// are as they are, and it is said until where that may be.
func TestReadForRules(t *testing.T) {
	r := newRig(t, transform.Config{})
	s := r.options.Source
	r.docs[1] = kit.Raw(kit.D("_id", 1))
	ev := put("d.c", 1, "a")
	ev.Route = &stream.Route{Target: "d.c"}
	ids := []bson.RawValue{kit.Value(int32(1))}
	read := func(want mongo.OpTime, n int, wantErr error) {
		t.Helper()
		docs, until, err := s.Read(t.Context(), &ev, ids, at(30), 100)
		if !errors.Is(err, wantErr) || until != want || len(docs) != n {
			t.Errorf("%d documents as of %v: %v", len(docs), until, err)
		}
	}
	read(at(30), 1, nil)
	if q := r.reading[0]; !q.Exact || q.Most != 100 || q.At != at(30) {
		t.Errorf("asked %+v", q)
	}
	r.want()
	r.findErrs = []error{lookup.ErrForgotten}
	read(at(1000), 1, nil)
	if q := r.reading[2]; q.Exact {
		t.Errorf("asked %+v", q)
	}
	r.want("commit 30")
	r.findErrs, r.vanished = []error{lookup.ErrForgotten, errDropped}, true
	read(at(30), 0, nil)
	r.findErrs = []error{lookup.ErrTooMuch}
	read(at(30), 0, transform.ErrTooMuch)
	full := errors.New("disk full")
	r.findErrs = []error{full}
	read(at(30), 0, full)
}

// TestOnSource: of documents that rules may leave out it does not do that the source has them.
func TestOnSource(t *testing.T) {
	for _, filtered := range []bool{false, true} {
		config := transform.Config{}
		if filtered {
			config.Filter = []string{`d.c={"v":"a"}`}
		}
		r := newRig(t, config)
		r.docs[1], r.docs[2] = kit.Raw(kit.D("_id", 1, "v", "a")), kit.Raw(kit.D("_id", 2, "v", "b"))
		ids := []bson.RawValue{kit.Value(int32(1)), kit.Value(int32(2)), kit.Value(int32(3))}
		from := stream.Origin{NS: "d.c"}
		has, err := r.options.Source.OnSource(t.Context(), from, ids, at(30))
		if err != nil || !slices.Equal(has, []bool{true, !filtered, false}) {
			t.Errorf("filtered %t: %v, %v", filtered, has, err)
		}
		if q := r.reading[0]; q.OnlyIDs == filtered || q.At != at(30) {
			t.Errorf("asked %+v", q)
		}
		r.findErrs = []error{errDropped}
		if has, err = r.options.Source.OnSource(t.Context(), from, ids, at(30)); err != nil || slices.Contains(has, true) {
			t.Errorf("of a collection that is gone: %v, %v", has, err)
		}
	}
}

// TestWhichCollection: a collection is the one that the event names; where none does, the one that
// the job has under the name at its position.
func TestWhichCollection(t *testing.T) {
	s := newRig(t, transform.Config{}).options.Source
	s.Names = schema.NewNames([]schema.Name{{NS: "src.c", Target: "d.c", UUID: uuid(1)},
		{NS: "src.t", Target: "d.t", UUID: uuid(3), Type: schema.TypeTimeSeries}})
	for _, c := range []struct {
		from stream.Origin
		want lookup.Collection
	}{
		{stream.Origin{NS: "d.c"}, lookup.Collection{DB: "src", UUID: uuid(1)}},
		{stream.Origin{NS: "d.c", Source: "old.c", UUID: uuid(2)}, lookup.Collection{DB: "old", UUID: uuid(2)}},
		{stream.Origin{NS: "d.system.buckets.t"}, lookup.Collection{DB: "src", UUID: uuid(3)}},
	} {
		got, err := s.identify(c.from)
		if err != nil || got.DB != c.want.DB || !got.UUID.Equal(c.want.UUID) {
			t.Errorf("%+v: %+v, %v", c.from, got, err)
		}
	}
}
