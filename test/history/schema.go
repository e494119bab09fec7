package history

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// other is another database of the history.
const other = "x"

// in puts steps into a database.
func in(db string, steps ...Step) []Step {
	for i := range steps {
		steps[i].DB = db
	}
	return steps
}

// spare is the name of a collection that comes and goes.
func (g *Generator) spare() string { return fmt.Sprint("extra", g.r.IntN(3)) }

// db is mostly the history's own.
func (g *Generator) db() string {
	if g.one(4) {
		return other
	}
	return ""
}

// full is a namespace in a command.
func full(db, coll string) string {
	if db == "" {
		return "DB." + coll
	}
	return "DB-" + db + "." + coll
}

// extra writes to collections that schema changes are made of.
func (g *Generator) extra() []Step {
	c, id := g.spare(), g.r.IntN(20)
	doc := D("_id", id, "n", g.r.IntN(50), "k", g.r.IntN(1000), "by", g.n, "at",
		bson.DateTime(4_000_000_000_000+int64(g.n)),
		"loc", A(g.r.IntN(90), g.r.IntN(90)), "text", pick(g, "one two", "three", ""))
	switch g.r.IntN(5) {
	case 0:
		return in(g.db(), updating(c, D("_id", id), doc[1:], "upsert", true))
	case 1:
		return in(g.db(), updating(c, D("_id", id), D("$set", D("n", g.r.IntN(50), "by", g.n))))
	case 2:
		return in(g.db(), deleting(c, D("_id", id), 1))
	}
	return in(g.db(), inserting(c, doc))
}

// index makes, drops and changes indexes.
func (g *Generator) index() []Step {
	db, c := g.db(), g.spare()
	if g.one(3) {
		db, c = "", pick(g, "plain", "hot", "unique", "keys", "moving", "txn1", "folded", "capped")
	}
	switch g.r.IntN(6) {
	case 0:
		return in(db, run(D("dropIndexes", c, "index", pick[any](g, "*", "n_1", "k_1", D("by", 1)))))
	case 1:
		if g.since(4, 4) {
			return in(db, run(D("collMod", c, "index", D("name", pick(g, "n_1", "k_1", "by_1"), "hidden", g.one(2)))))
		}
	case 2:
		return in(db, run(D("collMod", c, "index", D("name", "at_1", "expireAfterSeconds", 3600+g.r.IntN(1000)))))
	case 3:
		return in(db, run(D("createIndexes", c, "indexes", A(g.indexSpec(c), g.indexSpec(c)))))
	}
	return in(db, run(D("createIndexes", c, "indexes", A(g.indexSpec(c)))))
}

// indexSpec is an index that every document can be in, so that it can be built
// after the copy, whatever was written since it was dropped.
func (g *Generator) indexSpec(coll string) bson.D {
	n := g.r.IntN(12)
	if n == 2 && !g.since(6, 0) && (coll == "capped" || strings.HasPrefix(coll, "extra")) {
		n = 11 // a server of 6.0 refuses it in a capped collection, older ones do not
	}
	if (n == 0 || n == 8) && slices.Contains(g.marked, "DB."+coll+"=gone_at") {
		n = 11 // what is deleted on the source keeps its keys on the target: a conflict that must be reported
	}
	switch n {
	case 0:
		return D("key", D("k", 1), "name", "k_1", "unique", true)
	case 1:
		return D("key", D("k", -1), "name", "k_-1", "sparse", true)
	case 2:
		return D("key", D("at", 1), "name", "at_1", "expireAfterSeconds", g.r.IntN(5000))
	case 3:
		return D("key", D("by", 1, "n", -1), "name", "by_n", "partialFilterExpression", D("n", D("$gt", 10)))
	case 4:
		return D("key", D("$**", 1), "name", "all")
	case 5:
		return D("key", D("_id", "hashed"), "name", "hashed")
	case 6:
		return D("key", D("text", "text"), "name", "text")
	case 7:
		return D("key", D("text", 1), "name", "text_1", "collation", D("locale", pick(g, "en", "fr")))
	case 8:
		return D("key", D("k", 1, "by", 1), "name", "k_by", "unique", true)
	case 9:
		return D("key", D("by", 1), "name", "by_1")
	}
	return D("key", D("n", 1), "name", "n_1")
}

// schema changes collections.
func (g *Generator) schema() []Step {
	db, c := g.db(), g.spare()
	switch g.r.IntN(15) {
	case 0, 1:
		return in(db, run(D("drop", pick(g, c, c, "v0", "v1"))))
	case 2:
		return list(run(D("renameCollection", full(db, c), "to", full(db, g.spare()), "dropTarget", g.one(2))))
	case 3:
		return list(run(D("renameCollection", full(db, c), "to", full(g.db(), g.spare()), "dropTarget", true)))
	case 4:
		return list(run(D("renameCollection", full("", "moving"), "to", full("", "moved"), "dropTarget", true)))
	case 5:
		return list(run(D("renameCollection", full("", "moved"), "to", full("", "moving"), "dropTarget", true)))
	case 6:
		return in(db, run(D("collMod", c, "validator", pick[any](g, D(), D("n", D("$gte", 25))), "validationLevel",
			pick(g, "off", "strict", "moderate"))))
	case 7:
		return list(run(D("aggregate", pick(g, "txn1", "unique", "hot"), "pipeline",
			A(D("$match", D("n", D("$lt", 40))), D("$out", g.spare())), "cursor", D())))
	case 8:
		to := any(g.spare())
		if g.since(4, 4) && g.one(2) {
			to = D("db", "DB-"+other, "coll", to)
		}
		return list(run(D("aggregate", pick(g, "txn1", "unique"), "pipeline",
			A(D("$project", D("n", 1, "by", 1)), D("$merge", D("into", to))), "cursor", D())))
	case 9:
		return in(db, run(D("create", pick(g, "v0", "v1"), "viewOn", pick(g, c, "plain", "v0"), "pipeline",
			A(D("$match", D("n", D("$gt", g.r.IntN(50))))))))
	case 10:
		return in(db,
			run(D("collMod", pick(g, "v0", "v1"), "viewOn", pick(g, c, "plain"), "pipeline", A(D("$project", D("n", g.n))))))
	case 11:
		if g.one(3) {
			return in(other, run(D("dropDatabase", 1)))
		}
		return in(db, run(D("drop", c)))
	}
	return in(db, g.creation(c)...)
}

// creation makes a collection of some kind.
func (g *Generator) creation(c string) []Step {
	switch g.r.IntN(8) {
	case 0:
		if !g.o.NoCapped && g.since(5, 0) { // see logged
			return list(run(D("create", c, "capped", true, "size", 4096)))
		}
	case 1:
		if !g.o.NoCapped && g.since(5, 0) {
			return list(run(D("convertToCapped", c, "size", 4096+g.r.IntN(8192))))
		}
	case 2:
		return list(run(D("create", c, "collation", D("locale", "fr"))))
	case 3:
		return list(run(D("create", c, "validator", D("n", D("$gte", 10)), "validationAction", pick(g, "warn", "error"))))
	case 4:
		if g.since(5, 3) {
			return list(run(D("create", c, "clusteredIndex", D("key", D("_id", 1), "unique", true))))
		}
	case 5:
		if g.since(6, 0) {
			return list(run(D("create", c, "changeStreamPreAndPostImages", D("enabled", true))))
		}
	case 6:
		if g.since(5, 0) {
			return list(run(D("create", c, "timeseries", D("timeField", "at", "metaField", "n"))))
		}
	}
	return list(run(D("create", c)))
}

// odd makes documents with names that are hard to write: they have dots or
// dollar signs, or are empty.
func (g *Generator) odd() []Step {
	names := []string{"a.b", "", "a.", ".", "0.1"}
	if g.since(5, 0) {
		names = append(names, "$x", "$set", "a.$b", "$")
	}
	if g.since(5, 0) && !g.o.Streamed { // a server's change stream ends at a replacement that has it
		names = append(names, "$v")
	}
	n, id := pick(g, names...), g.r.IntN(15)
	inner := D(pick(g, names...), g.value(1), "a", g.scalar())
	switch g.r.IntN(5) {
	case 0:
		return list(inserting("odd", withID(id, D("a", inner, n, inner, "by", g.n))))
	case 1:
		if g.since(5, 0) {
			return list(updating("odd", D("_id", id),
				A(D("$replaceWith",
					D("$setField", D("field", D("$literal", n), "input", "$$ROOT", "value", D("$literal", g.value(2))))))))
		}
	case 2:
		return list(updating("odd", D("_id", id), D("$set", D("a", inner, "v", A(inner, g.n)))))
	case 3:
		return list(deleting("odd", D("_id", id), 1))
	case 4:
		return list(updating("odd", D("_id", id), g.change()))
	}
	return list(updating("odd", D("_id", id), D("$set", D("a.a", g.n, "v.0.a", g.n, "by", g.n))))
}
