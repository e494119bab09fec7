package history

import (
	"fmt"
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
	doc := d("_id", id, "n", g.r.IntN(50), "k", g.r.IntN(1000), "by", g.n, "at", bson.DateTime(4_000_000_000_000+int64(g.n)),
		"loc", a(g.r.IntN(90), g.r.IntN(90)), "text", pick(g, "one two", "three", ""))
	switch g.r.IntN(5) {
	case 0:
		return in(g.db(), updating(c, d("_id", id), doc[1:], "upsert", true))
	case 1:
		return in(g.db(), updating(c, d("_id", id), d("$set", d("n", g.r.IntN(50), "by", g.n))))
	case 2:
		return in(g.db(), deleting(c, d("_id", id), 1))
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
		return in(db, run(d("dropIndexes", c, "index", pick[any](g, "*", "n_1", "k_1", d("by", 1)))))
	case 1:
		if g.since(4, 4) {
			return in(db, run(d("collMod", c, "index", d("name", pick(g, "n_1", "k_1", "by_1"), "hidden", g.one(2)))))
		}
	case 2:
		return in(db, run(d("collMod", c, "index", d("name", "at_1", "expireAfterSeconds", 3600+g.r.IntN(1000)))))
	case 3:
		return in(db, run(d("createIndexes", c, "indexes", a(g.indexSpec(c), g.indexSpec(c)))))
	}
	return in(db, run(d("createIndexes", c, "indexes", a(g.indexSpec(c)))))
}

// indexSpec is an index that every document can be in, so that it can be built
// after the copy, whatever was written since it was dropped.
func (g *Generator) indexSpec(coll string) bson.D {
	n := g.r.IntN(12)
	if n == 2 && !g.since(6, 0) && (coll == "capped" || strings.HasPrefix(coll, "extra")) {
		n = 11 // a server of 6.0 refuses it in a capped collection, older ones do not
	}
	switch n {
	case 0:
		return d("key", d("k", 1), "name", "k_1", "unique", true)
	case 1:
		return d("key", d("k", -1), "name", "k_-1", "sparse", true)
	case 2:
		return d("key", d("at", 1), "name", "at_1", "expireAfterSeconds", g.r.IntN(5000))
	case 3:
		return d("key", d("by", 1, "n", -1), "name", "by_n", "partialFilterExpression", d("n", d("$gt", 10)))
	case 4:
		return d("key", d("$**", 1), "name", "all")
	case 5:
		return d("key", d("_id", "hashed"), "name", "hashed")
	case 6:
		return d("key", d("text", "text"), "name", "text")
	case 7:
		return d("key", d("text", 1), "name", "text_1", "collation", d("locale", pick(g, "en", "fr")))
	case 8:
		return d("key", d("k", 1, "by", 1), "name", "k_by", "unique", true)
	case 9:
		return d("key", d("by", 1), "name", "by_1")
	}
	return d("key", d("n", 1), "name", "n_1")
}

// schema changes collections.
func (g *Generator) schema() []Step {
	db, c := g.db(), g.spare()
	switch g.r.IntN(15) {
	case 0, 1:
		return in(db, run(d("drop", pick(g, c, c, "v0", "v1"))))
	case 2:
		return list(run(d("renameCollection", full(db, c), "to", full(db, g.spare()), "dropTarget", g.one(2))))
	case 3:
		return list(run(d("renameCollection", full(db, c), "to", full(g.db(), g.spare()), "dropTarget", true)))
	case 4:
		return list(run(d("renameCollection", full("", "moving"), "to", full("", "moved"), "dropTarget", true)))
	case 5:
		return list(run(d("renameCollection", full("", "moved"), "to", full("", "moving"), "dropTarget", true)))
	case 6:
		return in(db, run(d("collMod", c, "validator", pick[any](g, d(), d("n", d("$gte", 25))), "validationLevel", pick(g, "off", "strict", "moderate"))))
	case 7:
		return list(run(d("aggregate", pick(g, "txn1", "unique", "hot"), "pipeline", a(d("$match", d("n", d("$lt", 40))), d("$out", g.spare())), "cursor", d())))
	case 8:
		to := any(g.spare())
		if g.since(4, 4) && g.one(2) {
			to = d("db", "DB-"+other, "coll", to)
		}
		return list(run(d("aggregate", pick(g, "txn1", "unique"), "pipeline", a(d("$project", d("n", 1, "by", 1)), d("$merge", d("into", to))), "cursor", d())))
	case 9:
		return in(db, run(d("create", pick(g, "v0", "v1"), "viewOn", pick(g, c, "plain", "v0"), "pipeline", a(d("$match", d("n", d("$gt", g.r.IntN(50))))))))
	case 10:
		return in(db, run(d("collMod", pick(g, "v0", "v1"), "viewOn", pick(g, c, "plain"), "pipeline", a(d("$project", d("n", g.n))))))
	case 11:
		if g.one(3) {
			return in(other, run(d("dropDatabase", 1)))
		}
		return in(db, run(d("drop", c)))
	}
	return in(db, g.creation(c)...)
}

// creation makes a collection of some kind.
func (g *Generator) creation(c string) []Step {
	switch g.r.IntN(8) {
	case 0:
		if !g.o.NoCapped {
			return list(run(d("create", c, "capped", true, "size", 4096)))
		}
	case 1:
		if !g.o.NoCapped {
			return list(run(d("convertToCapped", c, "size", 4096+g.r.IntN(8192))))
		}
	case 2:
		return list(run(d("create", c, "collation", d("locale", "fr"))))
	case 3:
		return list(run(d("create", c, "validator", d("n", d("$gte", 10)), "validationAction", pick(g, "warn", "error"))))
	case 4:
		if g.since(5, 3) {
			return list(run(d("create", c, "clusteredIndex", d("key", d("_id", 1), "unique", true))))
		}
	case 5:
		if g.since(6, 0) {
			return list(run(d("create", c, "changeStreamPreAndPostImages", d("enabled", true))))
		}
	case 6:
		if g.since(5, 0) {
			return list(run(d("create", c, "timeseries", d("timeField", "at", "metaField", "n"))))
		}
	}
	return list(run(d("create", c)))
}

// odd makes documents with names that are hard to write: they have dots or
// dollar signs, or are empty.
func (g *Generator) odd() []Step {
	names := []string{"a.b", "", "a.", ".", "0.1"}
	if g.since(5, 0) {
		names = append(names, "$x", "$set", "a.$b", "$", "$v")
	}
	n, id := pick(g, names...), g.r.IntN(15)
	inner := d(pick(g, names...), g.value(1), "a", g.scalar())
	switch g.r.IntN(5) {
	case 0:
		return list(inserting("odd", withID(id, d("a", inner, n, inner, "by", g.n))))
	case 1:
		if g.since(5, 0) {
			return list(updating("odd", d("_id", id), a(d("$replaceWith", d("$setField", d("field", d("$literal", n), "input", "$$ROOT", "value", d("$literal", g.value(2))))))))
		}
	case 2:
		return list(updating("odd", d("_id", id), d("$set", d("a", inner, "v", a(inner, g.n)))))
	case 3:
		return list(deleting("odd", d("_id", id), 1))
	case 4:
		return list(updating("odd", d("_id", id), g.change()))
	}
	return list(updating("odd", d("_id", id), d("$set", d("a.a", g.n, "v.0.a", g.n, "by", g.n))))
}
