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
		return updating(coll, d("_id", id), d("$set", d(f+".$[x]", g.value(1), "by", g.n)), "arrayFilters", a(d("x", d("$gt", g.r.IntN(5)))))
	case 1:
		return updating(coll, d("_id", id), d("$set", d(f+".$[]", g.scalar())))
	case 2:
		return updating(coll, d("_id", id, f, d("$gte", g.r.IntN(5))), d("$set", d(f+".$", g.value(1))))
	case 3:
		return updating(coll, d("_id", id), d("$set", d(f+".$[x]."+g.name(), g.scalar())), "arrayFilters", a(d("x.a", d("$exists", true))))
	case 4:
		return updating(coll, d("_id", id), d("$set", d(f, g.value(2)), "$setOnInsert", d("made", g.n)), "upsert", true)
	}
	return updating(coll, d("_id", id), g.change())
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
			out = append(out, deleting("hot", d("_id", id), 1))
		case 1:
			out = append(out, inserting("hot", withID(pick[any](g, id, id, float64(id), int64(id)), g.document())))
		case 2:
			out = append(out, updating("hot", d("_id", id), g.document(), "upsert", true))
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
	return list(run(d("insert", "plain", "documents", docs, "ordered", g.one(2))))
}

func (g *Generator) delete() []Step { return list(deleting("plain", d("_id", g.id()), 1)) }

func (g *Generator) replace() []Step {
	return list(updating("plain", d("_id", g.id()), g.document(), "upsert", true))
}

func (g *Generator) bulk() []Step {
	coll, id, n := pick(g, "plain", "moving"), g.id, 1+g.r.IntN(12)
	if g.one(2) {
		coll, id, n = "hot", func() any { return g.r.IntN(g.hot) }, 1+g.r.IntN(40)
	}
	var docs, updates, deletes bson.A
	for range n {
		docs = append(docs, withID(id(), g.document()))
		updates = append(updates, d("q", d("_id", id()), "u", g.change(), "upsert", g.one(4)))
		deletes = append(deletes, d("q", d("_id", id()), "limit", 1))
	}
	switch g.r.IntN(3) {
	case 0:
		return list(run(d("insert", coll, "documents", docs, "ordered", false)))
	case 1:
		return list(run(d("delete", coll, "deletes", deletes, "ordered", false)))
	}
	return list(run(d("update", coll, "updates", updates, "ordered", false)))
}

func (g *Generator) multi() []Step {
	filter := d("n", g.r.IntN(50))
	if g.one(4) {
		return list(deleting("plain", d("n", g.r.IntN(200)), 0))
	}
	update := g.change()
	if doc, isDoc := update.(bson.D); isDoc && (len(doc) == 0 || doc[0].Key[:1] != "$") {
		update = d("$set", d(g.path(), g.value(2)))
	}
	return list(updating("plain", filter, update, "multi", true))
}

func (g *Generator) findAndModify() []Step {
	cmd := d("findAndModify", pick(g, "plain", "hot"), "query", d("_id", g.id()))
	switch g.r.IntN(4) {
	case 0:
		cmd = append(cmd, d("remove", true)...)
	case 1:
		cmd = append(cmd, d("update", g.document(), "upsert", true, "new", true)...)
	default:
		cmd = append(cmd, d("update", g.change())...)
	}
	return list(run(cmd))
}

// unique moves the keys of a unique index between documents.
func (g *Generator) unique() []Step {
	i, j := g.r.IntN(45), g.r.IntN(45)
	tmp := fmt.Sprint("tmp", g.r.IntN(1000))
	set := func(id int, k any) Step { return updating("unique", d("_id", id), d("$set", d("k", k, "by", g.n))) }
	switch g.r.IntN(7) {
	case 0:
		return list(deleting("unique", d("_id", i), 1), updating("unique", d("_id", j), d("$set", d("k", i)), "upsert", true))
	case 1:
		return list(set(i, tmp), set(j, i), set(i, j))
	case 2:
		return list(inserting("unique", d("_id", i, "k", j)))
	case 3: // in one transaction, which an oplog shows as a circle
		return g.inTransaction(deleting("unique", d("k", d("$in", a(i, j))), 0),
			updating("unique", d("_id", i), d("k", j), "upsert", true), updating("unique", d("_id", j), d("k", i), "upsert", true))
	case 4:
		l := g.r.IntN(45)
		return g.inTransaction(set(i, tmp), set(j, i), set(l, j), set(i, l))
	case 5:
		return list(updating("unique", d("_id", i), a(d("$set", d("k", d("$ifNull", a("$by", j)), "o", d("$literal", g.value(2)))))))
	}
	return list(deleting("unique", d("k", i), 1))
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
			set = append(set, bson.E{Key: f, Value: a(d("k", g.r.IntN(30)), d("k", g.r.IntN(30)))})
		default:
			set = append(set, bson.E{Key: f, Value: g.r.IntN(8)})
		}
	}
	set = append(set, bson.E{Key: "by", Value: g.n})
	unset := updating("keys", d("_id", id), d("$unset", d(pick(g, "x", "y", "w", "z", "q"), 1), "$set", d("by", g.n)))
	switch g.r.IntN(6) {
	case 0:
		return list(deleting("keys", d("_id", id), 1))
	case 1:
		return list(unset)
	case 2:
		return list(updating("keys", d("_id", id), set, "upsert", true))
	case 3:
		return g.inTransaction(unset, updating("keys", d("_id", n), d("$set", set)), updating("keys", d("_id", id), d("$set", d("x", n, "w", n)), "upsert", true))
	}
	return list(updating("keys", d("_id", id), d("$set", set), "upsert", g.one(2)))
}

// folded writes to a collection that ignores the case of an _id.
func (g *Generator) folded() []Step {
	id := fmt.Sprintf(pick(g, "KEY%d", "key%d", "Key%d"), g.r.IntN(12))
	switch g.r.IntN(4) {
	case 0:
		return list(deleting("folded", d("_id", id), 1))
	case 1:
		return list(updating("folded", d("_id", id), d("$set", d(g.path(), g.value(2))), "upsert", true))
	case 2:
		return list(updating("folded", d("_id", id), g.change()))
	}
	return list(inserting("folded", withID(id, g.document())))
}

func (g *Generator) moving() []Step {
	return list(updating(pick(g, "moving", "moving", "moved"), d("_id", g.r.IntN(g.size)), g.change(), "upsert", g.one(2)))
}

// capped writes to a capped collection; it rolls off.
func (g *Generator) capped() []Step {
	switch g.r.IntN(6) {
	case 0:
		return list(updating("capped", d("_id", g.r.IntN(60)), d("$inc", d("n", 1))))
	case 1:
		return g.inTransaction(updating("capped", d("n", d("$gte", g.r.IntN(50))), d("$inc", d("by", 1)), "multi", true))
	case 2:
		var docs bson.A
		for i := range 30 {
			docs = append(docs, d("_id", fmt.Sprint(g.n, "-", i), "n", g.r.IntN(50), "by", g.n))
		}
		return list(inserting("capped", docs...))
	}
	return list(inserting("capped", d("_id", fmt.Sprint("c", g.n), "n", g.r.IntN(50), "by", g.n, "pad", strings.Repeat("c", g.r.IntN(900)))))
}

func (g *Generator) series() []Step {
	if g.since(6, 0) && g.one(8) {
		return list(deleting("series", d("m", g.r.IntN(4)), 0))
	}
	var docs bson.A
	for range 1 + g.r.IntN(20) {
		docs = append(docs, d("t", bson.DateTime(1700000000000+int64(g.r.IntN(100_000_000))), "m", g.r.IntN(4), "v", g.value(1), "_id", g.n))
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
			steps = append(steps, updating(c, d("_id", id), g.document(), "upsert", true))
		case 1:
			steps = append(steps, deleting(c, d("_id", id), 1))
		case 2:
			steps = append(steps, inserting(c, withID(id, g.document())))
		case 3:
			steps = append(steps, g.updateOf("hot", g.r.IntN(g.hot)))
		default:
			steps = append(steps, updating(c, d("_id", id), d("$inc", d("n", 1), "$push", d("x", g.n))))
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
