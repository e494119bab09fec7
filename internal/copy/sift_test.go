package copy

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
)

// sifted has the source leave out most documents of mixedDocs.
func sifted(t *testing.T, task Task) Task {
	t.Helper()
	var kept []string // what keepsFew keeps
	for n := 3; n < int(task.Source.Count); n += 20 {
		kept = append(kept, strconv.Itoa(n))
	}
	filter := task.Source.NS + `={"n": {"$in": [` + strings.Join(kept, ",") + `]}}`
	rules, err := transform.New(transform.Config{Filter: []string{filter}})
	if err != nil {
		t.Fatal(err)
	}
	route := rules.Route(task.Source.NS)
	if route.Sent() == nil {
		t.Fatal("the source leaves out nothing by such a filter")
	}
	task.Route = route.To(task.Route.Target)
	return task
}

func keepsFew(doc []byte) bool {
	n, ok := bson.Raw(doc).Lookup("n").AsInt64OK()
	return ok && n%20 == 3
}

func few(docs [][]byte) (out [][]byte) {
	for _, doc := range docs {
		if keepsFew(doc) {
			out = append(out, doc)
		}
	}
	return out
}

// TestSiftedCrashes is TestCrashes of documents that the source leaves out for the most
// part, while some are deleted at which slices end.
func TestSiftedCrashes(t *testing.T) {
	rnd := seeded(t)
	dst := server(t, "6.0")
	for _, version := range lab.Versions("4.4", "5.0") {
		src := server(t, version)
		db := "sifted" + strings.ReplaceAll(version, ".", "")
		insert(t, src, db, "c", mixedDocs(8000))
		task := sifted(t, taskOf(source(t, src, db, "c"), db+"_t.c"))
		store := newStore()
		plan := planned(t, src, dst, store, task)
		for i, st := range plan[:len(plan)-1] {
			if i%3 == 0 {
				must(t, src, db, bson.D{{Key: "delete", Value: "c"}, {Key: "deletes", Value: bson.A{bson.D{
					{Key: "q", Value: bson.D{{Key: "_id", Value: bson.D{{Key: "$eq", Value: st.Upper.Lookup("_id")}}}}}, {Key: "limit",
						Value: 1}}}}})
			}
		}
		passed := int64(0)
		rounds := store.crashing(t, rnd, 20, func(ctx context.Context) error {
			e := New(src, dst, store, small(t, src))
			err := e.Run(ctx, []Task{task})
			passed = e.Stats().Docs
			return err
		})
		t.Logf("%s: done after %d crashes, %d slices, %d documents passed of %d", version, rounds, len(plan), passed,
			task.Source.Count)
		same(t, few(dump(t, src, db, "c")), dump(t, dst, db+"_t", "c"))
		for _, st := range store.states {
			if st.Plan != plan[0].Plan {
				t.Fatal("the collection was read again")
			}
		}
	}
}
