package job_test

import (
	"bytes"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestCappedHistories has random histories of small rings replayed from random
// checkpoints onto a target that was killed at a random event, and through
// connections that break.
func TestCappedHistories(t *testing.T) {
	t.Parallel()
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		t.Run(version, func(t *testing.T) {
			o := lab.Options{Version: version, SetParameters: map[string]string{"enableTestCommands": "1"}}
			s := servers{src: lab.ForTest(t, o), dst: lab.ForTest(t, o)}
			s.srcDB, s.targetC = kit.Client(t, s.src.URI()), kit.Client(t, s.dst.URI())
			testseed.Each(t, func(t *testing.T, seed uint64) {
				for n := range uint64(testseed.Rounds(t, 1)) {
					if !randomRings(t, s, version, seed+n) {
						t.Fatalf("MILLRACE_TEST_SEED=%d", seed+n)
					}
				}
			})
		})
	}
}

// history makes changes of rings on a source.
type history struct {
	*rings
	rand    *rand.Rand
	deletes bool // servers before 6.0 refuse them
	padding string
	more    []*options.CreateCollectionOptionsBuilder
}

func randomRings(t *testing.T, s servers, version string, seed uint64) bool {
	r := newRings(t, s, fmt.Sprint("rings", seed))
	r.spec.GiveUpAfter = time.Minute
	h := &history{rings: r, rand: rand.New(rand.NewPCG(seed, 0)), deletes: version == "6.0"}
	if h.rand.IntN(2) == 0 { // five of them fill a ring
		h.padding = strings.Repeat("p", 900)
	}
	if h.rand.IntN(3) == 0 {
		h.more = append(h.more, options.CreateCollection().SetCollation(&options.Collation{Locale: "en", Strength: 2}))
	}
	h.make("a")
	h.make("b")
	h.changes(10)
	if !r.settled("first") {
		return false
	}
	for round := range 4 {
		from := lastOp(t, s.srcDB)
		what := fmt.Sprintf("seed %d, round %d", seed, round)
		fate := h.rand.IntN(5)
		if fate == 0 {
			what += ", copied"
			r.pinned(fmt.Sprint(r.db, round))
		}
		h.changes(5 + h.rand.IntN(40))
		if fate > 1 {
			what += h.crashed(from)
		}
		r.spec.Partitions = 1 + h.rand.IntN(8)
		if h.rand.IntN(2) == 0 {
			what += ", with cuts"
			h.cuts(0.15)
		}
		r.run()
		at := lastOp(t, s.srcDB)
		r.await("caught up, or cut often", func() bool {
			return r.j.Status().Errors["retry"] >= 3 || !job.Applied(r.j).Before(at)
		})
		h.cuts(0)
		r.caughtUp()
		r.end()
		if !r.equal(what) {
			return false
		}
	}
	r.must(nil, s.srcDB.Database(r.db).Drop(t.Context()))
	r.must(nil, s.targetC.Database(r.db).Drop(t.Context()))
	return true
}

// cuts breaks connections of the job over its writes.
func (h *history) cuts(probability float64) {
	h.t.Helper()
	mode := any("off")
	if probability > 0 {
		mode = bson.D{{Key: "activationProbability", Value: probability}}
	}
	h.must(nil, h.s.targetC.Database("admin").RunCommand(h.t.Context(), bson.D{{Key: "configureFailPoint",
		Value: "failCommand"},
		{Key: "mode", Value: mode}, {Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"insert", "update",
			"delete"}},
			{Key: "closeConnection", Value: true}}}}).Err())
}

// make creates a ring of a few documents.
func (h *history) make(name string) {
	h.t.Helper()
	h.create(name, int64(3+h.rand.IntN(3)), h.more...)
}

func (h *history) changes(n int) {
	h.t.Helper()
	for range n {
		h.change()
	}
}

var hostile = []any{1, 2, "1", "A", "a", 3.5, math.NaN(), 1e300, bson.D{{Key: "a", Value: 1}}}

// change makes one change. Inserts that a ring refuses are none: 4.4 would let
// the oldest document go.
func (h *history) change() {
	h.t.Helper()
	ctx := h.t.Context()
	db := h.s.srcDB.Database(h.db)
	names, err := db.ListCollectionNames(ctx, bson.D{})
	h.must(nil, err)
	if len(names) == 0 {
		h.make("a")
		return
	}
	name := names[h.rand.IntN(len(names))]
	docs, err := natural(ctx, db.Collection(name))
	h.must(nil, err)
	switch op := h.rand.IntN(40); {
	case op < 22:
		if d := h.document(docs); d != nil {
			h.must(db.Collection(name).InsertOne(ctx, d))
		}
	case op < 24:
		d := h.document(docs)
		if d == nil || !h.deletes {
			return
		}
		ns := h.db + "." + name
		var ops bson.A
		for _, there := range docs { // nothing rolls off: servers do not tell that of an applyOps
			ops = append(ops, bson.D{{Key: "op", Value: "d"}, {Key: "ns", Value: ns},
				{Key: "o", Value: bson.D{{Key: "_id", Value: there.Lookup("_id")}}}})
		}
		for _, there := range docs[:min(len(docs), 1)] {
			ops = append(ops, bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: ns}, {Key: "o", Value: there}})
		}
		ops = append(ops, bson.D{{Key: "op", Value: "i"}, {Key: "ns", Value: ns}, {Key: "o", Value: d}})
		h.must(nil, h.s.srcDB.Database("admin").RunCommand(ctx, bson.D{{Key: "applyOps", Value: ops}}).Err())
	case op < 30:
		if len(docs) > 0 {
			h.set(db.Collection(name), docs[h.rand.IntN(len(docs))].Lookup("_id"), bson.D{{Key: "n", Value: h.rand.IntN(2)}})
		}
	case op < 36:
		if len(docs) > 0 && h.deletes {
			h.remove(db.Collection(name), docs[h.rand.IntN(len(docs))].Lookup("_id"))
		}
	case op < 38:
		if to := []string{"a", "b", "old"}[h.rand.IntN(3)]; to != name {
			h.rename(name, to, true)
		}
	case op < 39:
		h.must(nil, db.Collection(name).Drop(ctx))
	default:
		if to := []string{"a", "b"}[h.rand.IntN(2)]; !contains(names, to) {
			h.make(to)
		} else if h.deletes {
			h.must(nil, db.RunCommand(ctx, bson.D{{Key: "collMod", Value: name}, {Key: "cappedMax", Value: 2 +
				h.rand.IntN(4)}}).Err())
		}
	}
}

// document makes one that the ring takes, if one comes to mind; equal ones come
// often.
func (h *history) document(docs []bson.Raw) bson.D {
	id := hostile[h.rand.IntN(len(hostile))]
	for _, d := range docs {
		if h.sameID(d.Lookup("_id"), id) {
			return nil
		}
	}
	return bson.D{{Key: "_id", Value: id}, {Key: "n", Value: h.rand.IntN(2)}, {Key: "p", Value: h.padding}}
}

func contains(names []string, name string) bool {
	for _, n := range names {
		if n == name {
			return true
		}
	}
	return false
}

func (h *history) sameID(v bson.RawValue, id any) bool {
	if a, ok := v.StringValueOK(); ok && len(h.more) > 0 {
		b, _ := id.(string)
		return strings.EqualFold(a, b)
	}
	typ, data, err := bson.MarshalValue(id)
	return err == nil && v.Type == typ && bytes.Equal(v.Value, data)
}

// crashed brings the target to a random event after a position, and the
// checkpoint to one before it, as a killed process may leave them.
func (h *history) crashed(from mongo.OpTime) string {
	h.t.Helper()
	ctx := h.t.Context()
	src, err := mongo.Connect(ctx, h.s.src.URI(), mongo.Options{})
	h.must(nil, err)
	defer src.Close()
	var all []stream.Event
	look := oplog.Look{Cluster: src, Collections: []string{h.db + ".a", h.db + ".b", h.db + ".old"}}
	h.must(nil, look.Each(ctx, oplog.Span{After: from, Until: lastOp(h.t, h.s.srcDB)}, func(ev *stream.Event) error {
		if db, _ := mongo.SplitNS(ev.NS); db == h.db {
			ev.Doc, ev.Key.ID.Data = bytes.Clone(ev.Doc), bytes.Clone(ev.Key.ID.Data)
			all = append(all, *ev)
		}
		return nil
	}))
	if len(all) == 0 {
		return ""
	}
	at := h.rand.IntN(len(all))
	least, intent := -1, mongo.OpTime{} // the last schema change, of which nothing before it is pending
	for i, e := range all[:at+1] {
		h.mirror(e)
		if e.Kind == stream.SchemaChange {
			least, intent = i-1, e.At
		}
	}
	saved := least + h.rand.IntN(at-least+1)
	for saved >= 0 && saved < len(all)-1 && all[saved].At == all[saved+1].At {
		saved-- // inside an entry
	}
	if saved >= 0 {
		from = all[saved].At
	}
	if intent.IsZero() {
		h.back(from)
	} else {
		h.back(from, bson.E{Key: "intent", Value: intent})
	}
	return fmt.Sprintf(", %d events, killed after %d, saved at %d", len(all), at, saved)
}

// mirror applies an event to the target.
func (h *history) mirror(e stream.Event) {
	h.t.Helper()
	ctx := h.t.Context()
	_, coll := mongo.SplitNS(e.NS)
	c := h.on(h.s.targetC, coll)
	q := bsoncore.NewDocumentBuilder().AppendDocument("_id", bsoncore.NewDocumentBuilder().AppendValue("$eq",
		e.Key.ID).Build()).Build()
	switch e.Kind {
	case stream.Insert:
		h.must(c.InsertOne(ctx, e.Doc))
	case stream.Delete:
		_, err := c.DeleteOne(ctx, q)
		if h.deletes {
			h.must(nil, err)
		}
	case stream.Update:
		d, err := delta.ParseAs(delta.KindOf(e.Doc), e.Doc)
		h.must(nil, err)
		u, _ := delta.AppendStatement(nil, d)
		h.must(nil, c.Database().RunCommand(ctx, bson.D{{Key: "update", Value: c.Name()},
			{Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: bson.Raw(q)}, {Key: "u", Value: bson.Raw(u)}}}}}).Err())
	case stream.SchemaChange:
		h.apply(e.Change)
	default:
		h.t.Fatalf("no mirror of %+v", e)
	}
}

// apply makes a schema change and notes the names as the job does.
func (h *history) apply(ch *stream.Change) {
	h.t.Helper()
	ctx := h.t.Context()
	var clusters [2]*mongo.Cluster
	for i, uri := range []string{h.s.src.URI(), h.s.dst.URI()} {
		c, err := mongo.Connect(ctx, uri, mongo.Options{})
		h.must(nil, err)
		defer c.Close()
		clusters[i] = c
	}
	rules, err := transform.New(h.spec.Rules)
	h.must(nil, err)
	target := schema.NewTarget(clusters[1], schema.TargetOptions{Job: h.spec.Job})
	target.KeepRoom(schema.TellsRollOff(clusters[0], clusters[1]))
	h.must(target.Changes.Apply(ctx, *ch, schema.ApplyOptions{Rules: rules, Names: schema.NewNames(nil)}))
	store := state.Open(clusters[1], state.Options{Job: h.spec.Job, Run: state.NewRun(), Write: "majority"})
	catalog, err := store.LoadCatalog(ctx)
	h.must(nil, err)
	change, saved := state.Names(catalog).After(*ch, rules), h.s.targetC.Database("millrace").Collection("collections")
	for _, ns := range change.Removed {
		h.must(saved.DeleteOne(ctx, bson.D{{Key: "_id", Value: h.spec.Job + "/" + ns}}))
	}
	for _, one := range change.Put {
		raw, err := bson.Marshal(schema.Collection{NS: one.NS, Type: one.Type, UUID: one.UUID,
			Options: bson.Raw{5, 0, 0, 0, 0}})
		h.must(nil, err)
		id := h.spec.Job + "/" + one.NS
		h.must(saved.ReplaceOne(ctx, bson.D{{Key: "_id", Value: id}}, bson.D{{Key: "_id", Value: id}, {Key: "job",
			Value: h.spec.Job},
			{Key: "target", Value: one.Target}, {Key: "bytes", Value: raw}}, options.Replace().SetUpsert(true)))
	}
}
