package mongosink_test

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	mongosink "github.com/millrace/millrace/internal/sink/mongo"
	"github.com/millrace/millrace/internal/sink/mongo/write"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/deltatest"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestEquivalence replays random oplogs one operation at a time in one
// partition, and folded in many, onto an empty collection and onto what a copy
// may have read while they were written: all equal the source.
func TestEquivalence(t *testing.T) {
	t.Parallel()
	testseed.Each(t, equivalences)
}

func equivalences(t *testing.T, seed uint64) {
	p := newPair(t)
	usual := 3
	if lab.Brief() {
		usual = 1
	}
	rounds := testseed.Rounds(t, usual)
	batched := int64(0)
	for round := range rounds {
		w := newWild(p, seed+uint64(round), round)
		t.Run(fmt.Sprint("seed ", w.seed), w.run)
		batched += w.batched
	}
	if batched == 0 && rounds > 1 {
		t.Error("no updates were sent in transactions")
	}
}

// wild is one random oplog and its replays.
type wild struct {
	p         pair
	seed      uint64
	g         *deltatest.Gen
	db        string
	copyStart mongo.OpTime
	batched   int64              // updates sent in transactions
	torn      map[int32]bson.Raw // documents as read at different moments after copyStart
}

func newWild(p pair, seed uint64, round int) *wild {
	return &wild{p: p, seed: seed, g: deltatest.New(seed), db: fmt.Sprint("wild", round), torn: map[int32]bson.Raw{}}
}

const (
	wildDocs   = 40
	wildChunks = 30
	wildCopied = 10 // chunks before the copy starts
)

func (w *wild) run(t *testing.T) {
	from := w.p.position(t)
	w.write(t)
	to := w.p.position(t)
	one := mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1, BatchOps: 1, Coalesce: -1}}
	many := mongosink.Options{Sizes: mongosink.Sizes{Partitions: 2 + w.g.IntN(8), BatchOps: 20 + w.g.IntN(300),
		Coalesce: 1 << w.g.IntN(20)},
		Write: write.Options{TransactionOps: 1 + w.g.IntN(4)}}
	few := many // updates folded with each other, and seldom into a whole document
	few.Sizes.BatchOps, few.Sizes.Coalesce = 2+w.g.IntN(6), -1
	for _, c := range []struct {
		name string
		o    mongosink.Options
		torn bool
	}{{"one", one, false}, {"many", many, false}, {"few", few, false}, {"oneTorn", one, true}, {"manyTorn", many, true}} {
		start := from
		if c.torn {
			start, c.o.Overlap.End = w.copyStart, to
			w.load(t, c.name)
		}
		w.p.rules = transform.Config{Include: []string{w.db + ".c"}, Rename: []string{w.db + ".c=" + w.db + "." + c.name}}
		st, err := w.p.replay(t, start, to, c.o)
		if err != nil {
			t.Fatalf("%s: %v", c.name, err)
		}
		w.batched += st.Batched
		t.Logf("%s: %d operations, %d folded, %d statements, %d in transactions, %d rewritten, %d skipped", c.name,
			st.Operations, st.Folded, st.Statements, st.Batched, st.Rewritten, st.Skipped)
		if folds := st.Folded > 0; folds != (c.o.Sizes.Partitions > 1) {
			t.Errorf("%s: %d operations folded", c.name, st.Folded)
		}
		sameContents(t, c.name, contents(t, w.p.src, w.db, "c"), contents(t, w.p.dst, w.db, c.name))
	}
}

// write makes the oplog, and reads each document at some moment of it.
func (w *wild) write(t *testing.T) {
	c := w.p.src.Client.Database(w.db).Collection("c")
	order := w.g.Perm(wildDocs)
	for chunk := range wildChunks {
		var updates, deletes bson.A
		for range 60 {
			w.statement(t, c, &updates, &deletes)
		}
		// Some are refused by the server, and say nothing in the oplog.
		for name, list := range map[string]bson.A{"update": updates, "delete": deletes} {
			var refused driver.WriteException
			err := c.Database().RunCommand(t.Context(),
				bson.D{{Key: name, Value: "c"}, {Key: name + "s", Value: list}, {Key: "ordered", Value: false}}).Err()
			if err != nil && len(list) > 0 && !errors.As(err, &refused) {
				t.Fatal(err)
			}
		}
		if chunk == wildCopied-1 {
			w.copyStart = w.p.position(t)
		}
		if chunk < wildCopied {
			continue
		}
		for i := chunk - wildCopied; i < wildDocs; i += wildChunks - wildCopied {
			w.read(t, c, int32(order[i]))
		}
	}
}

func (w *wild) read(t *testing.T, c *driver.Collection, id int32) {
	doc, err := c.FindOne(t.Context(), bson.D{{Key: "_id", Value: id}}).Raw()
	switch {
	case err == nil:
		w.torn[id] = bytes.Clone(doc)
	case err != driver.ErrNoDocuments: //nolint:errorlint // the driver returns it as it is
		t.Fatal(err)
	}
}

// statement adds a random write that the state of the document may take.
func (w *wild) statement(t *testing.T, c *driver.Collection, updates, deletes *bson.A) {
	id := int32(w.g.IntN(wildDocs))
	if w.g.One(2) {
		id = int32(w.g.IntN(4)) // hot ones
	}
	q := bson.E{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}
	switch w.g.IntN(20) {
	case 0:
		*deletes = append(*deletes, bson.D{q, {Key: "limit", Value: 1}})
		return
	case 1, 2:
		*updates = append(*updates, bson.D{q, {Key: "u", Value: w.g.Document(id)}, {Key: "upsert", Value: true}})
		return
	}
	state := w.g.Document(id)
	if raw, err := c.FindOne(t.Context(), bson.D{q.Value.(bson.D)[0]}).Raw(); err == nil {
		state = nil
		if err := bson.Unmarshal(raw, &state); err != nil {
			t.Fatal(err)
		}
	}
	u, filters := w.g.Update(state)
	stmt := bson.D{q, {Key: "u", Value: u}}
	if len(filters) > 0 {
		stmt = append(stmt, bson.E{Key: "arrayFilters", Value: filters})
	}
	*updates = append(*updates, stmt)
}

// load puts what was read at different moments into a collection.
func (w *wild) load(t *testing.T, coll string) {
	var docs []any
	for _, id := range slices.Sorted(maps.Keys(w.torn)) {
		docs = append(docs, w.torn[id])
	}
	if len(docs) == 0 {
		return
	}
	w.g.Shuffle(len(docs), func(i, j int) { docs[i], docs[j] = docs[j], docs[i] })
	if _, err := w.p.dst.Client.Database(w.db).Collection(coll).InsertMany(t.Context(), docs); err != nil {
		t.Fatal(err)
	}
}

// contents are a collection's documents by _id.
func contents(t *testing.T, c *mongo.Cluster, db, coll string) map[string]bson.Raw {
	t.Helper()
	cur, err := c.Client.Database(db).Collection(coll).Find(t.Context(), bson.D{})
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]bson.Raw{}
	for cur.Next(t.Context()) {
		out[cur.Current.Lookup("_id").String()] = bytes.Clone(cur.Current)
	}
	if cur.Err() != nil {
		t.Fatal(cur.Err())
	}
	return out
}
