package mongosink_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	mongosink "github.com/millrace/millrace/internal/sink/mongo"

	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// userOps runs an applyOps as users do, of random operations on few documents:
// inserts over what is there, updates and deletes of what is not.
func userOps(t *testing.T, c *driver.Collection, r *rand.Rand, n int) {
	t.Helper()
	f := func() string { return string(rune('a' + r.IntN(5))) }
	ops := bson.A{}
	for range n {
		op := bson.D{{Key: "ns", Value: c.Database().Name() + "." + c.Name()}}
		id := bson.E{Key: "_id", Value: r.IntN(60)}
		whole := bson.D{id, {Key: f(), Value: r.IntN(9)}, {Key: "o", Value: bson.D{{Key: "x", Value: r.IntN(9)}}}}
		switch r.IntN(7) {
		case 0, 1:
			op = append(op, bson.E{Key: "op", Value: "i"}, bson.E{Key: "o", Value: whole})
		case 2:
			op = append(op, bson.E{Key: "op", Value: "d"}, bson.E{Key: "o", Value: bson.D{id}})
		case 3:
			op = append(op, bson.E{Key: "op", Value: "u"}, bson.E{Key: "o2", Value: bson.D{id}}, bson.E{Key: "o", Value: whole})
		case 4:
			op = append(op, bson.E{Key: "op", Value: "u"}, bson.E{Key: "o2", Value: bson.D{id}}, bson.E{Key: "b", Value: true},
				bson.E{Key: "o", Value: bson.D{{Key: "$v", Value: 2},
					{Key: "diff", Value: bson.D{{Key: "i", Value: bson.D{{Key: "z" + f(), Value: r.IntN(9)}}}}}}})
		default:
			op = append(op, bson.E{Key: "op", Value: "u"}, bson.E{Key: "o2", Value: bson.D{id}},
				bson.E{Key: "b", Value: r.IntN(2) == 0},
				bson.E{Key: "o", Value: bson.D{{Key: "$set", Value: bson.D{{Key: "z", Value: r.IntN(9)},
					{Key: f(), Value: r.IntN(9)}}}, {Key: "$unset", Value: bson.D{{Key: "n", Value: 1}}}}})
		}
		ops = append(ops, op)
	}
	err := c.Database().Client().Database("admin").RunCommand(t.Context(),
		bson.D{{Key: "applyOps", Value: ops}, {Key: "allowAtomic", Value: r.IntN(4) > 0}}).Err()
	if err != nil {
		t.Fatal(err)
	}
}

// TestUsersApplyOps: what a user's applyOps does is done as the server does it,
// live, where nothing of it is a conflict, and with the target ahead.
func TestUsersApplyOps(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	testseed.Each(t, usersApplyOps)
}

func usersApplyOps(t *testing.T, first uint64) {
	p := newPair(t)
	for round := range uint64(4) {
		seed := first + round
		r := rand.New(rand.NewPCG(seed, 1))
		db := fmt.Sprintf("ops%d", round)
		from := p.position(t)
		c := p.src.Client.Database(db).Collection("c")
		if _, err := c.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "first"}}); err != nil {
			t.Fatal(err)
		}
		mid := from
		for i := range 60 {
			history(t, c, r, 1+r.IntN(30))
			userOps(t, c, r, 1+r.IntN(30))
			if i == 30 {
				mid = p.position(t)
			}
		}
		to := p.position(t)
		o := mongosink.Options{Sizes: mongosink.Sizes{Partitions: 1 + r.IntN(8), BatchOps: 1 + r.IntN(500)}}
		if _, err := p.replay(t, from, to, o); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		p.same(t, db, "c")
		o.Overlap.End = to
		if _, err := p.replay(t, mid, to, o); err != nil {
			t.Fatalf("seed %d, replayed from the middle: %v", seed, err)
		}
		p.sameFields(t, db, "c")
		if _, err := p.replay(t, from, to, o); err != nil {
			t.Fatalf("seed %d, replayed: %v", seed, err)
		}
		p.sameFields(t, db, "c")
	}
}

// sameFields is same, whatever the order of fields: an update by $set does not
// tell which of them were new, and the target was ahead of it.
func (p pair) sameFields(t *testing.T, db, coll string) {
	t.Helper()
	src, dst := contents(t, p.src, db, coll), contents(t, p.dst, db, coll)
	for _, docs := range []map[string]bson.Raw{src, dst} {
		for id, doc := range docs {
			docs[id] = inOrder(t, doc)
		}
	}
	sameContents(t, db+"."+coll, src, dst)
}

// inOrder is a document with its fields in the order of their names.
func inOrder(t *testing.T, doc bson.Raw) bson.Raw {
	t.Helper()
	fields, err := doc.Elements()
	if err != nil {
		t.Fatal(err)
	}
	slices.SortStableFunc(fields, func(a, b bson.RawElement) int { return strings.Compare(a.Key(), b.Key()) })
	sorted := bson.D{}
	for _, f := range fields {
		sorted = append(sorted, bson.E{Key: f.Key(), Value: f.Value()})
	}
	raw, err := bson.Marshal(sorted)
	if err != nil {
		t.Fatal(err)
	}
	return raw
}
