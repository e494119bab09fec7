package history

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// update changes a document of plain, sometimes by array filters.
func (g *Generator) update() []Step { return list(g.updateOf("plain", g.id())) }

func (g *Generator) updateOf(coll string, id any) Step {
	f := g.name()
	switch g.r.IntN(12) {
	case 0:
		return updating(coll, D("_id", id), D("$set", D(f+".$[x]", g.value(1), "by", g.n)), "arrayFilters",
			A(D("x", D("$gt", g.r.IntN(5)))))
	case 1:
		return updating(coll, D("_id", id), D("$set", D(f+".$[]", g.scalar())))
	case 2:
		return updating(coll, D("_id", id, f, D("$gte", g.r.IntN(5))), D("$set", D(f+".$", g.value(1))))
	case 3:
		return updating(coll, D("_id", id), D("$set", D(f+".$[x]."+g.name(), g.scalar())), "arrayFilters",
			A(D("x.a", D("$exists", true))))
	case 4:
		return updating(coll, D("_id", id), D("$set", D(f, g.value(2)), "$setOnInsert", D("made", g.n)), "upsert", true)
	}
	return updating(coll, D("_id", id), g.change())
}

// hotUpdate changes one of a few documents, so that changes fold.
func (g *Generator) hotUpdate() []Step { return list(g.updateOf("hot", g.r.IntN(g.hot))) }

// reborn removes, inserts and changes one of a few documents.
func (g *Generator) reborn() []Step {
	id := g.r.IntN(g.hot)
	var out []Step
	for range 1 + g.r.IntN(4) {
		switch g.r.IntN(4) {
		case 0:
			out = append(out, deleting("hot", D("_id", id), 1))
		case 1:
			out = append(out, inserting("hot", withID(pick[any](g, id, id, float64(id), int64(id)), g.document())))
		case 2:
			out = append(out, updating("hot", D("_id", id), g.document(), "upsert", true))
		default:
			out = append(out, g.updateOf("hot", id))
		}
	}
	return out
}

func (g *Generator) insert() []Step {
	var docs bson.A
	for range 1 + g.r.IntN(3) {
		docs = append(docs, withID(g.id(), g.document()))
	}
	return list(run(D("insert", "plain", "documents", docs, "ordered", g.one(2))))
}

func (g *Generator) delete() []Step { return list(deleting("plain", D("_id", g.id()), 1)) }

func (g *Generator) replace() []Step {
	return list(updating("plain", D("_id", g.id()), g.document(), "upsert", true))
}

func (g *Generator) bulk() []Step {
	coll, id, n := pick(g, "plain", "moving"), g.id, 1+g.r.IntN(12)
	if g.one(2) {
		coll, id, n = "hot", func() any { return g.r.IntN(g.hot) }, 1+g.r.IntN(40)
	}
	var docs, updates, deletes bson.A
	for range n {
		docs = append(docs, withID(id(), g.document()))
		updates = append(updates, D("q", D("_id", id()), "u", g.change(), "upsert", g.one(4)))
		deletes = append(deletes, D("q", D("_id", id()), "limit", 1))
	}
	switch g.r.IntN(3) {
	case 0:
		return list(run(D("insert", coll, "documents", docs, "ordered", false)))
	case 1:
		return list(run(D("delete", coll, "deletes", deletes, "ordered", false)))
	}
	return list(run(D("update", coll, "updates", updates, "ordered", false)))
}

func (g *Generator) multi() []Step {
	filter := D("n", g.r.IntN(50))
	if g.one(4) {
		return list(deleting("plain", D("n", g.r.IntN(200)), 0))
	}
	update := g.change()
	if doc, isDoc := update.(bson.D); isDoc && (len(doc) == 0 || doc[0].Key[:1] != "$") {
		update = D("$set", D(g.path(), g.value(2)))
	}
	return list(updating("plain", filter, update, "multi", true))
}

func (g *Generator) findAndModify() []Step {
	cmd := D("findAndModify", pick(g, "plain", "hot"), "query", D("_id", g.id()))
	switch g.r.IntN(4) {
	case 0:
		cmd = append(cmd, D("remove", true)...)
	case 1:
		cmd = append(cmd, D("update", g.document(), "upsert", true, "new", true)...)
	default:
		cmd = append(cmd, D("update", g.change())...)
	}
	return list(run(cmd))
}

// unique moves the keys of a unique index between documents.
func (g *Generator) unique() []Step {
	i, j := g.r.IntN(45), g.r.IntN(45)
	tmp := fmt.Sprint("tmp", g.r.IntN(1000))
	set := func(id int, k any) Step { return updating("unique", D("_id", id), D("$set", D("k", k, "by", g.n))) }
	switch g.r.IntN(7) {
	case 0:
		return list(deleting("unique", D("_id", i), 1), updating("unique", D("_id", j), D("$set", D("k", i)), "upsert", true))
	case 1:
		return list(set(i, tmp), set(j, i), set(i, j))
	case 2:
		return list(inserting("unique", D("_id", i, "k", j)))
	case 3: // in one transaction, which an oplog shows as a circle
		return g.inTransaction(deleting("unique", D("k", D("$in", A(i, j))), 0),
			updating("unique", D("_id", i), D("k", j), "upsert", true),
			updating("unique", D("_id", j), D("k", i), "upsert", true))
	case 4:
		l := g.r.IntN(45)
		return g.inTransaction(set(i, tmp), set(j, i), set(l, j), set(i, l))
	case 5:
		return list(updating("unique", D("_id", i),
			A(D("$set", D("k", D("$ifNull", A("$by", j)), "o", D("$literal", g.value(2)))))))
	}
	return list(deleting("unique", D("k", i), 1))
}

// keys writes to a collection whose unique indexes see only some documents.
func (g *Generator) keys() []Step {
	id, n := g.r.IntN(14), g.r.IntN(6)
	var set bson.D
	for _, f := range []string{"x", "y", "w", "z", "q"} {
		switch {
		case g.one(2):
		case f == "z":
			set = append(set, bson.E{Key: f, Value: fmt.Sprintf(pick(g, "Z%d", "z%d"), g.r.IntN(8))})
		case f == "q":
			set = append(set, bson.E{Key: f, Value: A(D("k", g.r.IntN(30)), D("k", g.r.IntN(30)))})
		default:
			set = append(set, bson.E{Key: f, Value: g.r.IntN(8)})
		}
	}
	set = append(set, bson.E{Key: "by", Value: g.n})
	unset := updating("keys", D("_id", id), D("$unset", D(pick(g, "x", "y", "w", "z", "q"), 1), "$set", D("by", g.n)))
	switch g.r.IntN(6) {
	case 0:
		return list(deleting("keys", D("_id", id), 1))
	case 1:
		return list(unset)
	case 2:
		return list(updating("keys", D("_id", id), set, "upsert", true))
	case 3:
		return g.inTransaction(unset, updating("keys", D("_id", n), D("$set", set)),
			updating("keys", D("_id", id), D("$set", D("x", n, "w", n)), "upsert", true))
	}
	return list(updating("keys", D("_id", id), D("$set", set), "upsert", g.one(2)))
}

// folded writes to a collection that ignores the case of an _id.
func (g *Generator) folded() []Step {
	id := fmt.Sprintf(pick(g, "KEY%d", "key%d", "Key%d"), g.r.IntN(12))
	switch g.r.IntN(4) {
	case 0:
		return list(deleting("folded", D("_id", id), 1))
	case 1:
		return list(updating("folded", D("_id", id), D("$set", D(g.path(), g.value(2))), "upsert", true))
	case 2:
		return list(updating("folded", D("_id", id), g.change()))
	}
	return list(inserting("folded", withID(id, g.document())))
}

func (g *Generator) moving() []Step {
	return list(updating(pick(g, "moving", "moving", "moved"), D("_id", g.r.IntN(g.size)), g.change(), "upsert", g.one(2)))
}

// capped writes to a capped collection; it rolls off.
func (g *Generator) capped() []Step {
	switch g.r.IntN(6) {
	case 0:
		return list(updating("capped", D("_id", g.r.IntN(60)), D("$inc", D("n", 1))))
	case 1:
		return g.inTransaction(updating("capped", D("n", D("$gte", g.r.IntN(50))), D("$inc", D("by", 1)), "multi", true))
	case 2:
		var docs bson.A
		for i := range 30 {
			docs = append(docs, D("_id", fmt.Sprint(g.n, "-", i), "n", g.r.IntN(50), "by", g.n))
		}
		return list(inserting("capped", docs...))
	}
	return list(inserting("capped", D("_id", fmt.Sprint("c", g.n), "n", g.r.IntN(50), "by", g.n, "pad",
		strings.Repeat("c", g.r.IntN(900)))))
}

func (g *Generator) series() []Step {
	if g.since(6, 0) && g.one(8) {
		return list(deleting("series", D("m", g.r.IntN(4)), 0))
	}
	var docs bson.A
	for range 1 + g.r.IntN(20) {
		docs = append(docs, D("t", bson.DateTime(1700000000000+int64(g.r.IntN(100_000_000))), "m", g.r.IntN(4), "v",
			g.value(1), "_id", g.n))
	}
	return list(inserting("series", docs...))
}

// transaction changes several documents of several collections, at once or not
// at all. A few are larger than one entry of the oplog.
func (g *Generator) transaction() []Step {
	var steps []Step
	if g.bigTxns > 0 && g.one(3) {
		g.bigTxns--
		steps = append(steps, fillStep("txn1", 1000*g.n, 1000*g.n+3, 6<<20), fillStep("txn2", 1000*g.n, 1000*g.n+2, 1<<20))
	}
	for range 1 + g.r.IntN(7) {
		c := pick(g, "txn1", "txn2", "txn1", "plain", "hot", "extra0")
		id := g.r.IntN(80)
		switch g.r.IntN(5) {
		case 0:
			steps = append(steps, updating(c, D("_id", id), g.document(), "upsert", true))
		case 1:
			steps = append(steps, deleting(c, D("_id", id), 1))
		case 2:
			steps = append(steps, inserting(c, withID(id, g.document())))
		case 3:
			steps = append(steps, g.updateOf("hot", g.r.IntN(g.hot)))
		default:
			steps = append(steps, updating(c, D("_id", id), D("$inc", D("n", 1), "$push", D("x", g.n))))
		}
	}
	return g.inTransaction(steps...)
}

// inTransaction puts steps into one.
func (g *Generator) inTransaction(steps ...Step) []Step {
	g.txns++
	end := Step{Do: Commit}
	if g.one(5) {
		end.Do = Abort
	}
	steps = append(steps, end)
	for i := range steps {
		steps[i].Txn = g.txns
	}
	return steps
}
