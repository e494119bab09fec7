package mongosink_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/testseed"
)

// serialRun is a collection that is applied in order, on both sides.
type serialRun struct {
	pair
	t      *testing.T
	db     string
	traits mongosink.Traits
	c      *driver.Collection
	from   mongo.OpTime
	again  mongo.OpTime   // where a restart begins
	alias  map[string]any // other _ids for these
}

// id is an _id or its alias.
func (s *serialRun) id(id any) any {
	if name, ok := id.(string); ok && s.alias[name] != nil {
		return s.alias[name]
	}
	return id
}

// folded is a collation under which 'a' and 'A' are one _id.
var folded = bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}

func (p pair) serial(t *testing.T, db string, traits mongosink.Traits, create bson.D, unique bool) *serialRun {
	t.Helper()
	for _, c := range []*mongo.Cluster{p.src, p.dst} {
		cmds := []bson.D{append(bson.D{{Key: "create", Value: "c"}}, create...)}
		if unique {
			cmds = append(cmds, bson.D{{Key: "createIndexes", Value: "c"}, {Key: "indexes", Value: bson.A{
				bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true},
					{Key: "sparse", Value: true}}}}})
		}
		for _, cmd := range cmds {
			if err := c.Client.Database(db).RunCommand(t.Context(), cmd).Err(); err != nil {
				t.Fatal(err)
			}
		}
	}
	at := p.position(t)
	return &serialRun{pair: p, t: t, db: db, traits: traits, c: p.src.Client.Database(db).Collection("c"), from: at,
		again: at}
}

func (s *serialRun) insert(id any, fields ...bson.E) {
	s.t.Helper()
	if _, err := s.c.InsertOne(s.t.Context(), append(bson.D{{Key: "_id", Value: s.id(id)}}, fields...)); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serialRun) set(id any, name string, v any) {
	s.t.Helper()
	if _, err := s.c.UpdateOne(s.t.Context(), bson.D{{Key: "_id", Value: s.id(id)}},
		bson.D{{Key: "$set", Value: bson.D{{Key: name, Value: v}}}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serialRun) replace(id any, fields ...bson.E) {
	s.t.Helper()
	if _, err := s.c.ReplaceOne(s.t.Context(), bson.D{{Key: "_id", Value: s.id(id)}}, fields); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serialRun) remove(id any) {
	s.t.Helper()
	if _, err := s.c.DeleteOne(s.t.Context(), bson.D{{Key: "_id", Value: s.id(id)}}); err != nil {
		s.t.Fatal(err)
	}
}

func (s *serialRun) now() mongo.OpTime { s.t.Helper(); return s.position(s.t) }

// apply replays a part of the log onto the target.
func (s *serialRun) apply(from, to, window mongo.OpTime, o mongosink.Options) (stats, error) {
	s.t.Helper()
	o.Overlap.End = window
	s.rules = transform.Config{Include: []string{s.db + ".c"}}
	o.Targets = alike{s.traits}
	return s.replay(s.t, from, to, o)
}

// checkpoint is what a restart begins at.
func (s *serialRun) checkpoint() { s.t.Helper(); s.again = s.now() }

// killed applies everything up to kill, then starts again from the checkpoint
// and goes on to now; the target has to be as the source is.
func (s *serialRun) killed(kill mongo.OpTime, o mongosink.Options) {
	s.t.Helper()
	if _, err := s.apply(s.from, kill, mongo.OpTime{}, o); err != nil {
		s.t.Fatal(err)
	}
	st, err := s.apply(s.again, s.now(), kill, o)
	if err != nil {
		s.t.Errorf("after the restart: %v", err)
	}
	s.t.Logf("%+v", st)
	s.same(s.t, s.db, "c")
}

func k(v any) bson.E { return bson.E{Key: "k", Value: v} }

// TestSerialParked: in a collection that is applied in order, nothing overtakes
// an operation that waits, and what only seems to be a conflict is none.
func TestSerialParked(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	collated := mongosink.Traits{Collated: true}
	collation := bson.D{{Key: "collation", Value: folded}}
	ring := bson.D{{Key: "capped", Value: true}, {Key: "size", Value: 1 << 20}}
	cases := []struct {
		name   string
		traits mongosink.Traits
		create bson.D
		unique bool
		ops    func(s *serialRun) (kill mongo.OpTime)
	}{
		{"key", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("x")
			s.insert("z")
			s.checkpoint()
			s.set("x", "k", 1)
			s.set("x", "k", 2)
			s.set("z", "k", 1)
			kill := s.now()
			s.set("z", "k", 3)
			return kill
		}},
		{"key_inserted", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(1))
			s.set("x", "k", 2)
			s.insert("z", k(1))
			kill := s.now()
			s.set("z", "k", 3)
			return kill
		}},
		{"key_stays", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(1))
			s.set("x", "k", 2)
			s.insert("z", k(1))
			return s.now()
		}},
		{"key_of_deleted", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(1))
			s.remove("x")
			s.insert("z", k(1))
			return s.now()
		}},
		{"key_replaced", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(1))
			s.replace("x", k(2))
			s.insert("X1", k(1))
			kill := s.now()
			s.remove("x")
			s.insert("X", k(2))
			return kill
		}},
		{"other_case", collated, collation, false, func(s *serialRun) mongo.OpTime {
			s.insert("a", k(1))
			s.checkpoint()
			s.replace("a", k(2))
			s.remove("a")
			s.insert("A", k(3))
			kill := s.now()
			s.remove("A")
			return kill
		}},
		{"other_case_stays", collated, collation, false, func(s *serialRun) mongo.OpTime {
			s.insert("a", k(1))
			s.checkpoint()
			s.replace("a", k(2))
			s.set("a", "n", 1)
			s.remove("a")
			s.insert("A", k(3))
			return s.now()
		}},
		{"there_and_back", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("a", k(1))
			s.replace("a", k(2))
			s.remove("a")
			s.insert("A", k(3))
			s.replace("A", k(4))
			s.insert("z", k(2))
			kill := s.now()
			s.remove("A")
			s.insert("a", k(5))
			s.set("a", "n", 1)
			s.set("z", "k", 1)
			return kill
		}},
		{"keys_traded", collated, collation, true, func(s *serialRun) mongo.OpTime {
			s.insert("a", k(1))
			s.insert("b", k(2))
			s.checkpoint()
			s.set("a", "k", 3)
			s.set("b", "k", 1)
			s.set("a", "k", 2)
			kill := s.now()
			s.set("a", "k", 3)
			s.set("b", "k", 2)
			s.set("a", "k", 1)
			return kill
		}},
		{"capped_key", mongosink.Traits{Capped: true}, ring, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(10))
			s.insert("z", k(20))
			s.checkpoint()
			s.set("x", "k", 1)
			s.set("x", "k", 2)
			s.set("z", "k", 1)
			kill := s.now()
			s.set("z", "k", 3)
			return kill
		}},
		{"capped_key_stays", mongosink.Traits{Capped: true}, ring, true, func(s *serialRun) mongo.OpTime {
			s.insert("x", k(10))
			s.insert("z", k(20))
			s.checkpoint()
			s.set("x", "k", 1)
			s.set("x", "k", 2)
			s.set("z", "k", 1)
			return s.now()
		}},
	}
	for _, c := range cases {
		for variant, o := range map[string]mongosink.Options{
			"whole":   {},
			"single":  {Sizes: mongosink.Sizes{BatchOps: 1}},
			"letters": {Policy: resolve.Policy{Letters: deadletter.New(p.dst, "serial", nil), OnConflict: deadletter.Stop}},
			"skip": {Policy: resolve.Policy{Letters: deadletter.New(p.dst, "serial_skip", nil),
				OnConflict: deadletter.Skip}},
		} {
			t.Run(c.name+"/"+variant, func(t *testing.T) {
				s := p.serial(t, c.name+"_"+variant, c.traits, c.create, c.unique)
				kill := c.ops(s)
				s.killed(kill, o)
				if st := o.Policy.Letters; st != nil && st.Stats().Open+st.Stats().Undecided > 0 {
					t.Errorf("letters: %+v", st.Stats())
				}
			})
		}
	}
}

// TestHistoriesOfEqualIDs: random histories of few _ids that are equal for the
// server, and few keys, killed anywhere and started again anywhere before.
func TestHistoriesOfEqualIDs(t *testing.T) {
	t.Parallel()
	t.Run("collated", func(t *testing.T) {
		t.Parallel()
		ids := []any{"a", "A", "b", "B", "\u00e9", 1, 1.0, bson.D{{Key: "x", Value: "q"}}, bson.D{{Key: "x", Value: "Q"}},
			"z"}
		equalIDs(t, mongosink.Traits{Collated: true}, bson.D{{Key: "collation", Value: folded}}, ids)
	})
	t.Run("numbers", func(t *testing.T) {
		t.Parallel()
		dec := func(s string) bson.Decimal128 {
			d, err := bson.ParseDecimal128(s)
			if err != nil {
				t.Fatal(err)
			}
			return d
		}
		ids := []any{1, int64(1), 1.0, dec("1.0"), 0, math.Copysign(0, -1), math.NaN(),
			math.Float64frombits(0xfff8000000000001), dec("NaN"),
			0.1, dec("0.1"), dec("0.10"), dec("0.1000000000000000000000000000000001"), "a", bson.Symbol("a"),
			bson.D{{Key: "x", Value: 1}}, bson.D{{Key: "x", Value: 1.0}}}
		equalIDs(t, mongosink.Traits{}, nil, ids)
	})
}

func equalIDs(t *testing.T, traits mongosink.Traits, create bson.D, ids []any) {
	p := newPair(t)
	seed := testseed.Of(t)
	r := rand.New(rand.NewPCG(seed, 13))
	letters := deadletter.New(p.dst, "histories", nil)
	for round := range 9 {
		s := p.serial(t, fmt.Sprintf("h%d", round), traits, create, true)
		at := []mongo.OpTime{s.from}
		for range 120 {
			s.random(r, ids)
			at = append(at, s.now())
		}
		last := 0 // the target's state
		o := mongosink.Options{Sizes: mongosink.Sizes{BatchOps: 1 + r.IntN(20)}}
		s.batch = 300 + r.IntN(10_000)
		if round%3 == 1 {
			o.Sizes.InFlight = 1 // one batch at a time: what waits is decided by its letter
		}
		if round%3 > 0 {
			o.Policy.Letters, o.Policy.OnConflict = letters, deadletter.Stop
		}
		for begin := 0; last < len(at)-1; {
			kill := min(last+1+r.IntN(60), len(at)-1)
			if _, err := s.apply(at[begin], at[kill], at[last], o); err != nil {
				t.Fatalf("seed %d, round %d, from %d to %d with the target at %d: %v", seed, round, begin, kill, last, err)
			}
			last = kill
			begin = max(begin, last-r.IntN(50))
		}
		s.same(t, s.db, "c")
		if t.Failed() {
			t.Fatalf("seed %d, round %d", seed, round)
		}
	}
	if st := letters.Stats(); st.Open+st.Undecided > 0 {
		t.Errorf("letters: %+v", st)
	}
}

// random does one of the operations; the source may refuse it.
func (s *serialRun) random(r *rand.Rand, ids []any) {
	id := bson.D{{Key: "_id", Value: ids[r.IntN(len(ids))]}}
	key := k(r.IntN(5))
	ctx := s.t.Context()
	switch r.IntN(6) {
	case 0, 1:
		_, _ = s.c.InsertOne(ctx, append(id, key))
	case 2:
		_, _ = s.c.DeleteOne(ctx, id)
	case 3:
		_, _ = s.c.ReplaceOne(ctx, id, bson.D{key, {Key: "r", Value: r.IntN(100)}})
	case 4:
		_, _ = s.c.UpdateOne(ctx, id, bson.D{{Key: "$set", Value: bson.D{key}}})
	default:
		_, _ = s.c.UpdateOne(ctx, id, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
	}
}

// TestParkedInFullLedger: what waits for later operations while there is no
// room for these is decided by its letter, and does not stop the stream.
func TestParkedInFullLedger(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	for name, traits := range map[string]mongosink.Traits{"plain": {}, "collated": {Collated: true}} {
		t.Run(name, func(t *testing.T) {
			var create bson.D
			if traits.Collated {
				create = bson.D{{Key: "collation", Value: folded}}
			}
			s := p.serial(t, "full_"+name, traits, create, true)
			s.batch = 300
			s.insert("x")
			s.insert("z")
			s.checkpoint()
			s.set("x", "k", 1)
			s.set("x", "k", 2)
			s.set("z", "k", 1)
			kill := s.now()
			for i := range 20 {
				s.insert(i, bson.E{Key: "pad", Value: make([]byte, 500)})
			}
			s.set("z", "k", 3)
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
			defer cancel()
			s.ctx = ctx
			letters := deadletter.New(p.dst, name, nil)
			s.killed(kill, mongosink.Options{Sizes: mongosink.Sizes{InFlight: 1, BatchOps: 1},
				Policy: resolve.Policy{Letters: letters, OnConflict: deadletter.Stop}})
			if st := letters.Stats(); st.Open+st.Undecided > 0 {
				t.Errorf("letters: %+v", st)
			}
		})
	}
}

// TestClusteredIDs: a 6.0 server does not name a duplicate _id of a clustered
// collection that is no plain number; it is one all the same.
func TestClusteredIDs(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	dec := func(s string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(s)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	ids := []any{math.NaN(), 1e300, -1e300, math.Inf(1), math.Inf(-1), dec("1E+400"), dec("1E-400"), 5e-324,
		math.Copysign(0, -1), 7, "s",
		bson.D{{Key: "x", Value: math.NaN()}}, bson.D{{Key: "x", Value: 1e300}}}
	clustered := bson.D{{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}},
		{Key: "unique", Value: true}}}}
	for i, id := range ids {
		for variant, o := range map[string]mongosink.Options{"whole": {},
			"single": {Sizes: mongosink.Sizes{BatchOps: 1},
				Policy: resolve.Policy{Letters: deadletter.New(p.dst, "clustered", nil), OnConflict: deadletter.Stop}}} {
			t.Run(fmt.Sprint(id, "/", variant), func(t *testing.T) {
				s := p.serial(t, fmt.Sprintf("clustered_%d_%s", i, variant), mongosink.Traits{}, clustered, true)
				s.insert(id, k(1))
				s.set(id, "n", 1)
				s.replace(id, k(2))
				s.insert("z", k(1))
				s.set(id, "n", bson.A{1, 2, 3})
				s.remove(id)
				s.insert(id, k(4), bson.E{Key: "t", Value: bson.Timestamp{T: 1}})
				s.set(id, "n", bson.A{1, 2, 3})
				kill := s.now()
				s.set(id, "k", 5)
				s.killed(kill, o)
				// Inserted during the overlap, and outside it by somebody else.
				before := s.now()
				if _, err := s.apply(s.from, before, before, o); err != nil {
					t.Errorf("once more: %v", err)
				}
				s.same(t, s.db, "c")
				s.from = before
				s.remove(id)
				mid := s.now()
				s.insert(id, k(6))
				var conflict *resolve.ConflictError
				if _, err := s.apply(mid, s.now(), mongo.OpTime{}, o); !errors.As(err, &conflict) {
					t.Errorf("an insert of what is there: %v", err)
				}
				if _, err := s.apply(before, s.now(), s.now(), o); err != nil {
					t.Errorf("at the end: %v", err)
				}
				s.same(t, s.db, "c")
			})
		}
	}
}

// TestLettersOfEqualIDs: a letter is about the document of one spelling of an
// _id, also where the target takes another spelling for the same.
func TestLettersOfEqualIDs(t *testing.T) {
	t.Parallel()
	p := newPair(t)
	t.Run("collated", func(t *testing.T) {
		lettersOfEqualIDs(t, p, mongosink.Traits{Collated: true}, bson.D{{Key: "collation", Value: folded}}, nil)
	})
	t.Run("numbers", func(t *testing.T) {
		lettersOfEqualIDs(t, p, mongosink.Traits{}, nil, map[string]any{"a": int32(1), "A": 1.0, "b": int64(2), "B": 2.0})
	})
}

func lettersOfEqualIDs(t *testing.T, p pair, traits mongosink.Traits, create bson.D, alias map[string]any) {
	doc := func(id string, v int) bson.D {
		return bson.D{{Key: "_id", Value: (&serialRun{alias: alias}).id(id)}, k(v)}
	}
	cases := []struct {
		name    string
		policy  deadletter.Policy
		foreign bson.D
		steps   []func(s *serialRun)
		want    []bson.D // on the target
		letters deadletter.Stats
	}{
		{"key", deadletter.Skip, doc("z", 1), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.insert("b", k(2)) },
			func(s *serialRun) { s.remove("a"); s.insert("A", k(3)); s.set("b", "n", 1) },
		}, []bson.D{doc("A", 3), append(doc("b", 2), bson.E{Key: "n", Value: 1}), doc("z", 1)}, deadletter.Stats{Settled: 1}},
		{"key_again", deadletter.Skip, doc("z", 1), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.remove("a"); s.insert("A", k(1)) },
			func(s *serialRun) { s.set("A", "n", 1) },
		}, []bson.D{doc("z", 1)}, deadletter.Stats{Open: 1, Settled: 0}},
		{"key_of_changed", deadletter.Skip, doc("z", 1), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(5)) },
			func(s *serialRun) { s.set("a", "k", 1) },
			func(s *serialRun) { s.remove("a"); s.insert("A", k(4)); s.set("A", "k", 6) },
		}, []bson.D{doc("A", 6), doc("z", 1)}, deadletter.Stats{Settled: 1}},
		{"id", deadletter.Skip, doc("A", 9), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.set("a", "n", 1) },
			func(s *serialRun) { s.set("a", "n", 2) },
			func(s *serialRun) { s.remove("a"); s.insert("c", k(3)) },
		}, []bson.D{doc("A", 9), doc("c", 3)}, deadletter.Stats{Settled: 1}},
		{"id_of_both", deadletter.Skip, doc("A", 9), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.remove("a"); s.insert("A", k(2)) },
			func(s *serialRun) { s.remove("A"); s.insert("a", k(3)) },
		}, []bson.D{doc("A", 9)}, deadletter.Stats{Open: 1, Settled: 1}},
		{"id_taken_over", deadletter.Overwrite, doc("A", 9), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.set("a", "n", 1) },
			func(s *serialRun) { s.set("a", "n", 2); s.remove("a"); s.insert("A", k(7)) },
		}, []bson.D{doc("A", 7)}, deadletter.Stats{Removed: 1}},
		{"key_taken_over", deadletter.Overwrite, doc("z", 1), []func(s *serialRun){
			func(s *serialRun) { s.insert("a", k(1)); s.insert("B", k(2)); s.insert("y") },
			func(s *serialRun) { s.remove("a"); s.insert("A", k(1)); s.remove("B"); s.insert("b", k(3)) },
		}, []bson.D{doc("A", 1), doc("b", 3), {{Key: "_id", Value: "y"}}}, deadletter.Stats{Removed: 1}},
	}
	for _, c := range cases {
		if alias != nil && c.name == "id_of_both" {
			continue // insert and delete are folded into a delete, which no letter knows
		}
		for _, single := range []bool{false, true} {
			name := fmt.Sprintf("%s_%v", c.name, single)
			t.Run(name, func(t *testing.T) {
				db := "letters_" + name
				if alias != nil {
					db += "_numbers"
				}
				s := p.serial(t, db, traits, create, true)
				s.alias = alias
				target := p.dst.Client.Database(s.db).Collection("c")
				if _, err := target.InsertOne(t.Context(), c.foreign); err != nil {
					t.Fatal(err)
				}
				letters := deadletter.New(p.dst, db, nil)
				o := mongosink.Options{Policy: resolve.Policy{Letters: letters, OnConflict: c.policy}}
				if single {
					o.Sizes.BatchOps, s.batch = 1, 300
				}
				o.Source.Reread = func(ctx context.Context, _ stream.Origin, id bsoncore.Value,
					_ mongo.OpTime) (resolve.Reread, error) {
					d, err := s.c.FindOne(ctx, bson.D{{Key: "_id",
						Value: bson.RawValue{Type: bson.Type(id.Type), Value: id.Data}}}).Raw()
					if errors.Is(err, driver.ErrNoDocuments) {
						err = nil
					}
					return resolve.Reread{Doc: d, From: s.now(), Until: s.now()}, err
				}
				at := s.from
				for i, step := range c.steps {
					step(s)
					to := s.now()
					if _, err := s.apply(at, to, mongo.OpTime{}, o); err != nil {
						t.Fatalf("step %d: %v", i, err)
					}
					at = to
				}
				want := map[string]bson.Raw{}
				for _, d := range c.want {
					raw, err := bson.Marshal(d)
					if err != nil {
						t.Fatal(err)
					}
					want[bson.Raw(raw).Lookup("_id").String()] = raw
				}
				sameContents(t, "target", want, contents(t, p.dst, s.db, "c"))
				st := letters.Stats()
				// One that was gone again before a barrier left none, on a fast machine.
				st.Settled = min(st.Settled, c.letters.Settled)
				if st != c.letters {
					t.Errorf("letters: %+v", st)
				}
			})
		}
	}
}
