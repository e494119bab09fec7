package test

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// indexScenarios hold every kind and option of an index.
func indexScenarios() []scenario {
	return []scenario{
		{name: "indexes_before", setup: indexesSetup, change: indexedDocs},
		{name: "indexes_on_documents", setup: indexedDocs, change: allIndexes},
		{name: "indexes_on_empty", setup: emptyForIndexes, change: indexesThenDocs},
		{name: "indexes_hidden", since: "4.4", setup: hiddenSetup, change: hiddenChange},
		{name: "indexes_compound_hashed", since: "4.4", setup: compoundHashedSetup, change: compoundHashedChange},
		{name: "indexes_wildcard_everything", setup: wildcardSetup, change: wildcardChange},
		{name: "indexes_compound_wildcard", since: "7.0", setup: compoundWildcardSetup, change: compoundWildcardChange},
		{name: "indexes_odd_keys", setup: oddKeysSetup, change: oddKeysChange},
		{name: "indexes_many", setup: manyIndexesSetup, change: manyIndexesChange},
		{name: "indexes_same_keys", since: "5.0", setup: sameKeysSetup, change: sameKeysChange},
	}
}

// allIndexes creates one index of every kind and option, in collections that
// may exist already.
func allIndexes(s *site) {
	s.index("c", d("a", 1))
	s.index("c", d("a", -1, "b", 1, "c.d", -1))
	s.index("c", d("u", 1), "unique", true)
	s.index("c", d("su", 1), "unique", true, "sparse", true)
	s.index("c", d("sp", 1), "sparse", true)
	s.index("c", d("p", 1), "partialFilterExpression", d("a", d("$gt", 5), "p", d("$exists", true)))
	s.index("c", d("pu", 1), "unique", true, "partialFilterExpression", d("pu", d("$type", "string")))
	s.index("c", d("at", 1), "expireAfterSeconds", 3600)
	s.index("c", d("at2", 1), "expireAfterSeconds", 1<<30, "partialFilterExpression", d("a", 1))
	s.index("c", d("co", 1), "collation", d("locale", "fr", "strength", 2, "backwards", true))
	s.index("c", d("co", 1, "x", 1), "unique", true, "name", "unique with collation", "collation",
		d("locale", "en", "strength", 2), "sparse", true)
	s.index("c", d("h", "hashed"))
	s.index("c", d("bg", 1), "background", true)
	s.index("c", d("list", 1), "name", "a name with spaces, ünï and $")
	s.index("text", d("title", "text", "body", "text", "n", 1), "weights", d("title", 10, "body", 3), "default_language",
		"german", "language_override", "lang")
	s.index("alltext", d("$**", "text"), "name", "all text")
	s.index("flat", d("pos", "2d", "n", 1), "bits", 20, "min", -500, "max", 500.5)
	s.index("flat", d("other", "2d"))
	s.index("geo", d("loc", "2dsphere"))
	s.index("geo", d("n", 1, "loc", "2dsphere"), "2dsphereIndexVersion", 2)
	s.index("wild", d("$**", 1), "wildcardProjection", d("a", 1, "b.c", 1))
	s.index("wild", d("sub.$**", 1), "name", "below sub")
}

func indexesSetup(s *site) {
	allIndexes(s)
	s.insert("c", d("_id", "first"))
}

func indexedDocs(s *site) {
	s.fill("c", 60, func(i int) bson.D {
		doc := d("_id", i, "a", i, "b", fmt.Sprint(i), "c", d("d", i%3), "u", i, "co", "É"+fmt.Sprint(i), "h", i, "bg", i,
			"list", a(i, i+1), "at", bson.DateTime(1e13))
		if i%2 == 0 {
			doc = append(doc, d("su", i, "sp", i, "p", i, "pu", fmt.Sprint(i))...)
		} else {
			doc = append(doc, d("pu", 5)...)
		}
		return doc
	})
	s.insert("text", d("_id", 1, "title", "Äpfel und Birnen", "body", "die Häuser", "n", 1),
		d("_id", 2, "lang", "english", "title", "running"))
	s.insert("alltext", d("_id", 1, "x", d("y", "words here")))
	s.insert("flat", d("_id", 1, "pos", a(1, 2), "n", 1, "other", a(-3.5, 4)), d("_id", 2, "pos", a(-500, 500)))
	s.insert("geo", d("_id", 1, "loc", d("type", "Point", "coordinates", a(13.4, 52.5)), "n", 1),
		d("_id", 2, "loc", d("type", "Polygon", "coordinates", a(a(a(0, 0), a(3, 0), a(3, 3), a(0, 0))))))
	s.insert("wild", d("_id", 1, "a", 1, "b", d("c", 2), "sub", d("x", d("y", a(1, 2)))))
}

func emptyForIndexes(s *site) { s.create("c") }

func indexesThenDocs(s *site) {
	allIndexes(s)
	indexedDocs(s)
}

func hiddenSetup(s *site) {
	s.fill("c", 10, func(i int) bson.D { return d("_id", i, "a", i, "b", i) })
	s.index("c", d("a", 1), "hidden", true)
	s.index("c", d("b", 1))
	s.index("c", d("u", 1), "unique", true, "hidden", true, "sparse", true)
}

func hiddenChange(s *site) {
	s.collMod("c", "index", d("name", "a_1", "hidden", false))
	s.collMod("c", "index", d("keyPattern", d("b", 1), "hidden", true))
	s.collMod("c", "index", d("name", "u_1", "hidden", false))
	s.index("c", d("n", 1), "hidden", true)
}

func compoundHashedSetup(s *site) {
	s.index("c", d("a", 1, "b", "hashed", "c", -1))
	s.fill("c", 10, func(i int) bson.D { return d("_id", i, "a", i, "b", i) })
}

func compoundHashedChange(s *site) {
	s.index("c", d("b", "hashed", "a", 1))
	s.set("c", 1, d("$set", d("b", "x")))
}

func wildcardSetup(s *site) {
	s.index("c", d("$**", 1))
	s.insert("c", d("_id", 1, "a", d("b", a(d("c", 1)))))
	s.index("excluding", d("$**", 1), "wildcardProjection", d("a", 0, "_id", 1))
}

func wildcardChange(s *site) {
	s.set("c", 1, d("$set", d("a.b.0.c", d("deep", 1))))
	s.index("c", d("a.$**", 1))
	s.insert("excluding", d("_id", 1, "a", 1, "z", 1))
}

func compoundWildcardSetup(s *site) {
	s.index("c", d("a", 1, "$**", 1, "b", -1), "wildcardProjection", d("a", 0, "b", 0))
	s.index("c", d("s.$**", 1, "a", 1), "name", "below s")
	s.fill("c", 50, func(i int) bson.D { return d("_id", i, "a", i%3, "b", i, "s", d("x", a(i, i+1))) })
	s.create("empty")
}

func compoundWildcardChange(s *site) {
	s.update("c", d("a", 1), d("$set", d("s.y", a(d("z", 1)))), "multi", true)
	s.index("c", d("a", -1, "t.$**", -1), "partialFilterExpression", d("a", d("$gt", 1)))
	s.dropIndexes("c", "below s")
	s.run(d("collMod", "c", "index", d("keyPattern", d("a", 1, "$**", 1, "b", -1), "hidden", true)))
	s.index("empty", d("$**", -1, "a", 1), "wildcardProjection", d("a", 0))
	s.insert("empty", d("_id", 1, "a", 1, "x", d("y", 1)))
}

// Directions of other types than int, and of other numbers than 1.
func oddKeysSetup(s *site) {
	s.index("c", d("a", 1.0))
	s.index("c", d("b", int64(-1)))
	s.index("c", d("c", 5), "name", "five")
	s.index("c", d("e", -2.5), "name", "minus two and a half")
	s.index("c", d("a", 1, "0", 1), "name", "field 0")
	s.index("c", d("_id", 1, "a", 1))
	s.insert("c", d("_id", 1, "a", a(d("0", 1))))
}

func oddKeysChange(s *site) {
	s.index("c", d("x", 1.0, "y", int64(-1)), "name", "x and y")
	s.index("c", d("ttl", 1), "expireAfterSeconds", 3600.5)
	s.index("c", d("v1", 1), "v", 1)
}

func manyIndexesSetup(s *site) {
	for i := range 50 {
		s.index("c", d(fmt.Sprintf("f%d", i), 1), "unique", i%5 == 0, "sparse", true)
	}
	s.fill("c", 100, func(i int) bson.D { return d("_id", i, "f0", i, "f1", i, "f5", i) })
}

func manyIndexesChange(s *site) {
	for i := range 30 {
		s.dropIndexes("c", fmt.Sprintf("f%d_1", i))
	}
	s.run(d("createIndexes", "c", "indexes",
		a(indexSpec(d("x", 1)), indexSpec(d("y", 1)), indexSpec(d("z", 1), "unique", true, "sparse", true))))
}

// Indexes with the same keys that differ in an option.
func sameKeysSetup(s *site) {
	s.index("c", d("a", 1), "name", "unique", "unique", true)
	s.index("c", d("a", 1), "name", "plain", "collation", d("locale", "en"))
	s.index("c", d("a", 1), "name", "partial", "partialFilterExpression", d("b", 1))
	s.index("c", d("a", 1), "name", "sparse", "sparse", true)
	s.fill("c", 20, func(i int) bson.D { return d("_id", i, "a", i) })
}

func sameKeysChange(s *site) {
	s.rename(s.ns("c"), s.ns("r"))
	s.index("r", d("b", 1), "name", "b plain")
	s.index("r", d("b", 1), "name", "b unique", "unique", true, "sparse", true)
	s.insert("r", d("_id", 100, "a", 100, "b", 1))
	s.dropIndexes("r", "plain")
	s.dropIndexes("r", "unique")
}

// indexChangeScenarios hold what happens to indexes.
func indexChangeScenarios() []scenario {
	return []scenario{
		{name: "indexes_dropped_by_name", setup: dropIndexSetup, change: dropByNameChange},
		{name: "indexes_dropped_all", setup: dropIndexSetup, change: dropAllChange},
		{name: "indexes_recreated", setup: dropIndexSetup, change: recreateIndexChange},
		{name: "index_build_under_writes", setup: buildSetup, change: buildChange},
		{name: "index_build_that_fails", setup: buildFailsSetup, change: buildFailsChange},
		{name: "index_becomes_unique", since: "6.0", setup: becomesUniqueSetup, change: becomesUniqueChange},
		{name: "index_prepare_unique", since: "6.0", setup: becomesUniqueSetup, change: prepareUniqueChange},
		{name: "index_ttl_changed", setup: ttlChangedSetup, change: ttlChangedChange},
		{name: "index_becomes_ttl", since: "6.0", setup: becomesTTLSetup, change: becomesTTLChange},
		{name: "indexes_then_rename_and_drop", setup: dropIndexSetup, change: indexRenameChange},
		{name: "index_dropped_then_misfits", setup: pickySetup, change: dropPickyChange},
		{name: "index_come_and_gone", change: pickyComeAndGone},
		{name: "index_refuses_mixtures", setup: pickySetup, change: mixturesChange},
	}
}

func dropIndexSetup(s *site) {
	s.index("c", d("a", 1))
	s.index("c", d("b", 1), "unique", true)
	s.index("c", d("c", 1), "expireAfterSeconds", 1000)
	s.index("c", d("e", "text"))
	s.fill("c", 30, func(i int) bson.D { return d("_id", i, "a", i, "b", i, "e", "word") })
}

func dropByNameChange(s *site) {
	s.dropIndexes("c", "a_1")
	s.dropIndexes("c", d("b", 1))
	s.insert("c", d("_id", 100, "b", 1)) // a duplicate now
	s.dropIndexes("c", a("c_1", "e_text"))
	s.index("c", d("f", 1))
}

func dropAllChange(s *site) {
	s.dropIndexes("c", "*")
	s.insert("c", d("_id", 100, "b", 1))
	s.index("c", d("g", 1))
}

func recreateIndexChange(s *site) {
	for i := range 4 {
		s.dropIndexes("c", "b_1")
		s.insert("c", d("_id", 100+i, "b", i)) // duplicates while it is away
		s.remove("c", d("_id", 100+i))
		s.index("c", d("b", 1), "unique", true, "sparse", i%2 == 0)
	}
	s.dropIndexes("c", "a_1")
	s.index("c", d("a", 1, "x", 1), "name", "a_1")
	s.dropIndexes("c", "c_1")
	s.index("c", d("c", 1))
}

func buildSetup(s *site) {
	s.fill("c", 5000, func(i int) bson.D { return d("_id", i, "a", i%100, "u", i) })
}

func buildChange(s *site) {
	built := make(chan error, 1)
	go func() {
		built <- attempt(func() {
			s.run(d("createIndexes", "c", "indexes",
				a(indexSpec(d("a", 1)), indexSpec(d("u", 1), "unique", true), indexSpec(d("a", 1, "u", -1)))))
		})
	}()
	for i := range 100 {
		s.insert("c", d("_id", 5000+i, "a", i, "u", 5000+i))
		s.set("c", i, d("$set", d("u", -i)))
		s.remove("c", d("_id", 1000+i))
	}
	check(<-built)
	s.insert("c", d("_id", "after", "u", "after"))
}

func buildFailsSetup(s *site) {
	s.fill("c", 300, func(i int) bson.D { return d("_id", i, "a", i%10) })
}

func buildFailsChange(s *site) {
	if _, err := s.try(d("createIndexes", "c", "indexes", a(indexSpec(d("a", 1), "unique", true)))); err == nil {
		fail("the unique index was built over duplicates")
	}
	s.insert("c", d("_id", "dup", "a", 1))
	s.index("c", d("a", 1))
	s.remove("c", d("_id", d("$gte", 10)))
	s.remove("c", d("_id", "dup"))
	s.dropIndexes("c", "a_1")
	s.index("c", d("a", 1), "unique", true)
}

func becomesUniqueSetup(s *site) {
	s.index("c", d("u", 1))
	s.index("c", d("w", 1))
	s.fill("c", 20, func(i int) bson.D { return d("_id", i, "u", i, "w", i) })
}

func becomesUniqueChange(s *site) {
	s.collMod("c", "index", d("name", "u_1", "prepareUnique", true))
	s.insert("c", d("_id", 20, "u", 20, "w", 20))
	s.collMod("c", "index", d("name", "u_1", "unique", true))
	s.insert("c", d("_id", 21, "u", 21, "w", 21))
}

func prepareUniqueChange(s *site) {
	s.collMod("c", "index", d("name", "u_1", "prepareUnique", true))
	s.collMod("c", "index", d("name", "w_1", "prepareUnique", true))
	s.insert("c", d("_id", 20, "u", 20, "w", 20))
	s.collMod("c", "index", d("name", "w_1", "prepareUnique", false))
	s.insert("c", d("_id", 21, "u", 21, "w", 20))
}

func ttlChangedSetup(s *site) {
	s.index("c", d("at", 1), "expireAfterSeconds", 3600)
	s.index("c", d("at2", 1), "expireAfterSeconds", 3600)
	s.insert("c", d("_id", 1, "at", bson.DateTime(1000), "at2", bson.DateTime(1000)))
}

func ttlChangedChange(s *site) {
	s.collMod("c", "index", d("name", "at_1", "expireAfterSeconds", 7200))
	s.collMod("c", "index", d("keyPattern", d("at2", 1), "expireAfterSeconds", 60))
	s.collMod("c", "index", d("name", "at_1", "expireAfterSeconds", 100))
	s.index("c", d("at3", 1), "expireAfterSeconds", 5)
	s.insert("c", d("_id", 2, "at", bson.DateTime(1000), "at3", bson.DateTime(1000)))
	s.index("dropped", d("at", 1), "expireAfterSeconds", 5)
	s.dropIndexes("dropped", "at_1")
	s.index("dropped", d("at", 1))
}

func becomesTTLSetup(s *site) {
	s.index("c", d("at", 1))
	s.insert("c", d("_id", 1, "at", bson.DateTime(1000)))
}

func becomesTTLChange(s *site) {
	s.collMod("c", "index", d("name", "at_1", "expireAfterSeconds", 3600))
	s.insert("c", d("_id", 2, "at", bson.DateTime(1000)))
}

func indexRenameChange(s *site) {
	s.rename(s.ns("c"), s.ns("r"))
	s.dropIndexes("r", "b_1")
	s.insert("r", d("_id", 100, "b", 1))
	s.remove("r", d("_id", 100))
	s.index("r", d("b", 1), "unique", true, "name", "again")
	s.create("c")
	s.index("c", d("b", 1), "unique", true)
	s.insert("c", d("_id", 1, "b", 1))
}

// Indexes that refuse some documents.
func pickyIndexes(s *site) {
	s.index("c", d("a", 1, "b", 1), "name", "arrays")
	s.index("c", d("geo", "2dsphere"), "name", "geo")
	s.index("c", d("flat", "2d"), "name", "flat")
	s.index("c", d("h", "hashed"), "name", "hashed")
	s.index("c", d("t", "text", "z", 1), "name", "text")
	s.index("c", d("n", 1), "name", "plain")
}

func pickySetup(s *site) {
	pickyIndexes(s)
	s.fill("c", 20, func(i int) bson.D {
		return d("_id", i, "a", i, "b", i, "geo", a(i, i), "h", i, "t", "word", "z", i, "n", i)
	})
}

func misfits(s *site) {
	s.insert("c", d("_id", "arrays", "a", a(1, 2), "b", a(1, 2)), d("_id", "geo", "geo", "nowhere"),
		d("_id", "flat", "flat", a(1000, 1)),
		d("_id", "hashed", "h", a(1, 2)), d("_id", "text", "t", "word", "language", "klingon"),
		d("_id", "text too", "t", "word", "z", a(1, 2)))
}

// A copy finds the misfits when the indexes that it knows of are to be built.
func dropPickyChange(s *site) {
	for _, name := range []string{"arrays", "geo", "flat", "hashed", "text"} {
		s.dropIndexes("c", name)
	}
	misfits(s)
	s.index("c", d("b", 1), "name", "arrays")
}

func pickyComeAndGone(s *site) {
	s.insert("c", d("_id", 0, "n", 5))
	pickyIndexes(s)
	s.dropIndexes("c", "*")
	misfits(s)
	s.index("c", d("n", 1), "name", "plain")
}

// Every state of a document fits, but not the last one with an earlier change
// in it. The schema changes keep the changes from being folded.
func mixturesChange(s *site) {
	for i := range 3 {
		s.set("c", i, d("$set", d("b", a(1, 2), "with", i)))
		s.create(fmt.Sprint("then", i))
		s.set("c", i, d("$set", d("b", 1, "x", i)))
		s.create(fmt.Sprint("later", i))
		s.set("c", i, d("$set", d("a", a(3, 4))))
	}
}
