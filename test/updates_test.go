package test

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// updateScenarios hold the ways to change a document.
func updateScenarios() []scenario {
	return []scenario{
		{name: "update_operators", setup: operatorsSetup, change: operatorsChange},
		{name: "update_arrays", setup: arraysSetup, change: arraysChange},
		{name: "update_positional", setup: positionalSetup, change: positionalChange},
		{name: "update_pipelines", setup: pipelinesSetup, change: pipelinesChange},
		{name: "truncation_with_sibling", setup: truncationSetup, change: truncationChange},
		{name: "array_then_scalar", setup: arrayScalarSetup, change: arrayScalarChange},
		{name: "update_field_order", setup: fieldOrderSetup, change: fieldOrderChange},
		{name: "hot_documents", setup: hotSetup, change: hotChange},
	}
}

func operatorsSetup(s *site) {
	for i := range 40 {
		s.insert("c", d("_id", i, "n", i, "f", 1.5, "s", "text", "o", d("p", d("q", 1), "r", 2), "arr", a(1, 2, 3), "l",
			int64(1)<<40, "at", bson.DateTime(0)))
	}
}

func operatorsChange(s *site) {
	dec, err := bson.ParseDecimal128("2.50")
	check(err)
	for i, u := range []bson.D{
		d("$set", d("n", "x", "o.p.q", 2, "new.deep.path", 1)),
		d("$unset", d("s", 1, "o.p", 1)),
		d("$inc", d("n", 5, "o.r", int64(7), "fresh", 1)),
		d("$inc", d("f", 0.25, "l", 1.5)),
		d("$mul", d("n", 3, "f", dec, "absent", 2)),
		d("$min", d("n", -1, "s", 5, "absent", 1)),
		d("$max", d("n", 1000, "o.r", 99)),
		d("$rename", d("s", "renamed", "o.p.q", "moved.q")),
		d("$currentDate", d("at", true, "stamp", d("$type", "timestamp"))),
		d("$bit", d("n", d("xor", 5), "l", d("or", int64(3)))),
		d("$set", d("arr.1", "two", "arr.6", "seven")),
		d("$set", d("arr", d("0", 1))),
		d("$set", d("n", 1.0)),                           // an int to an equal double
		d("$set", d("f", int64(1)), "$unset", d("n", 1)), // and more than one operator
		d("$set", d("o", nil)),
		d("$set", d("o", d())),
		d("$unset", d("arr.1", 1)), // leaves null
		d("$set", d("o.p.0", 1, "o.p.1.2", 2)),
		d("$setOnInsert", d("n", "never"), "$set", d("m", 1)),
		d("$set", d("n", 19)), // no change at all
	} {
		s.set("c", i, u)
		if i < 19 {
			s.set("c", i, d("$set", d("then", 1)))
		}
	}
	s.update("c", d("_id", "upserted", "k", 1), d("$setOnInsert", d("n", 1), "$set", d("m", 1), "$push", d("arr", 1)),
		"upsert", true)
	s.update("c", d("_id", "upserted"), d("$setOnInsert", d("n", 2), "$set", d("m", 2)), "upsert", true)
	s.update("c", d("k", 7, "o.x", 8), d("$set", d("made", true)), "upsert", true)
	s.update("c", d("n", d("$gte", 20)), d("$inc", d("n", 1)), "multi", true)
	s.update("c", d("n", d("$gte", 30)), d("$unset", d("o", 1), "$set", d("arr.0", 0)), "multi", true)
}

func arraysSetup(s *site) {
	for i := range 30 {
		s.insert("c", d("_id", i, "v", a(5, 3, 8, 1), "docs", a(d("k", 1, "w", 5), d("k", 2, "w", 3), d("k", 3, "w", 9)), "x",
			0))
	}
}

func arraysChange(s *site) {
	for i, u := range []bson.D{
		d("$push", d("v", 9)),
		d("$push", d("v", d("$each", a(7, 8)), "new", 1)),
		d("$push", d("v", d("$each", a(0), "$position", 0))),
		d("$push", d("v", d("$each", a(10, 11), "$position", 2))),
		d("$push", d("v", d("$each", a(), "$slice", 2)), "$set", d("x", 1)),
		d("$push", d("v", d("$each", a(6), "$slice", -2)), "$set", d("x", 1)),
		d("$push", d("v", d("$each", a(4), "$sort", 1))),
		d("$push", d("docs", d("$each", a(d("k", 4, "w", 1)), "$sort", d("w", -1), "$slice", 3)), "$inc", d("x", 1)),
		d("$push", d("v", d("$each", a(), "$slice", 0)), "$set", d("x", 1)),
		d("$addToSet", d("v", 3)),
		d("$addToSet", d("v", d("$each", a(3, 99, 100)))),
		d("$pop", d("v", 1), "$set", d("x", 1)),
		d("$pop", d("v", -1)),
		d("$pull", d("v", d("$gt", 4)), "$set", d("x", 1)),
		d("$pull", d("docs", d("k", 2))),
		d("$pullAll", d("v", a(5, 3, 8, 1))),
		d("$set", d("v.0", a(1, 2), "docs.1.w", 100)),
		d("$set", d("v.9", "far")),
		d("$set", d("v", a()), "$push", d("docs", 1)),
		d("$unset", d("v.2", 1, "docs.0.k", 1)),
		d("$set", d("docs.0", 1, "docs.1", a(), "docs.2.deep.deeper", 1)),
		d("$inc", d("v.1", 5, "docs.2.w", -1)),
		d("$push", d("docs.0.list", 1)),
	} {
		s.set("c", i, u)
		s.set("c", i, d("$push", d("log", i)))
	}
	s.update("c", d(), d("$push", d("log", d("$each", a("all"), "$slice", -3))), "multi", true)
}

func positionalSetup(s *site) {
	for i := range 10 {
		s.insert("c", d("_id", i, "v", a(1, 5, 9, 5), "docs",
			a(d("k", 1, "in", a(1, 2)), d("k", 2, "in", a(3, 4)), d("k", 2, "in", a()))))
	}
}

func positionalChange(s *site) {
	s.update("c", d("_id", 0, "v", 5), d("$set", d("v.$", "five")))
	s.update("c", d("_id", 1, "docs.k", 2), d("$set", d("docs.$.hit", true)))
	s.set("c", 2, d("$inc", d("v.$[]", 1, "docs.$[].k", 10)))
	s.update("c", d("_id", 3), d("$set", d("v.$[e]", 0)), "arrayFilters", a(d("e", d("$gt", 4))))
	s.update("c", d("_id", 4), d("$set", d("docs.$[o].in.$[i]", "hit")), "arrayFilters",
		a(d("o.k", 2), d("i", d("$gt", 3))))
	s.update("c", d("_id", 5), d("$push", d("docs.$[o].in", 7), "$unset", d("docs.$[p].k", 1)), "arrayFilters",
		a(d("o.k", 2), d("p.k", 1)))
	s.update("c", d("docs.k", 2, "_id", d("$gt", 5)), d("$set", d("docs.$.many", 1)), "multi", true)
}

func pipelinesSetup(s *site) {
	for i := range 20 {
		s.insert("c", d("_id", i, "n", i, "v", a(1, 2, 3, 4, 5, 6), "o", d("a", 1, "b", d("c", 2)), "s", "text"))
	}
}

func pipelinesChange(s *site) {
	for i, p := range []bson.A{
		a(d("$set", d("sum", d("$sum", "$v"), "o.b.c", "$n"))),
		a(d("$unset", a("o.a", "s"))),
		a(d("$replaceWith", d("n", "$n", "only", "$s"))),
		a(d("$project", d("n", 1, "o.b", 1))),
		a(d("$set", d("v", d("$slice", a("$v", 2))))),
		a(d("$set", d("v", d("$slice", a("$v", -2))))),
		a(d("$set", d("v", d("$concatArrays", a("$v", a(7, 8), "$v"))))),
		a(d("$set", d("v", d("$map", d("input", "$v", "in", d("$add", a("$$this", 1))))))),
		a(d("$set", d("v", d("$filter", d("input", "$v", "cond", d("$gt", a("$$this", 3))))))),
		a(d("$set", d("v", "$n", "n", "$v"))), // swapped
		a(d("$set", d("o", d("$mergeObjects", a("$o", d("z", 1))), "s", "$$REMOVE"))),
		a(d("$set", d("at", "$$NOW", "o", "$$ROOT"))),
		a(d("$set", d("v", d("$arrayToObject", a(a(a("k", 1))))))),
		a(d("$addFields", d("x.y.z", 1)), d("$set", d("x.y", "$$REMOVE"))),
		a(d("$replaceWith", "$$ROOT")),
		a(d("$set", d("o.b", "$$REMOVE", "o.a", d("$literal", "$not a path")))),
	} {
		s.set("c", i, p)
		s.set("c", i, a(d("$set", d("last", d("$add", a("$_id", 1))))))
	}
	s.update("c", d("_id", d("$gte", 10)),
		a(d("$set", d("v", d("$reverseArray", d("$cond", a(d("$isArray", "$v"), "$v", a(1))))))), "multi", true)
	s.update("c", d("_id", 100), a(d("$set", d("made", d("$concat", a("a", "b"))))), "upsert", true)
}

// An array is cut and something beside it changes, in one update.
func truncationSetup(s *site) {
	for i := range 12 {
		s.insert("c", d("_id", i, "v", a(1, 2, 3, d("k", a(1, 2, 3), "x", 1), a(1, 2, 3)), "x", 0, "o",
			d("v", a(1, 2, 3), "y", 0)))
	}
}

func truncationChange(s *site) {
	cut := func(path string, n int) bson.D { return d("$slice", a("$"+path, n)) }
	s.set("c", 0, a(d("$set", d("v", cut("v", 2), "x", 1))))
	s.set("c", 1, a(d("$set", d("v", cut("v", 2), "new", 1, "o.y", 1))))
	s.set("c", 2, a(d("$set", d("o", d("v", cut("o.v", 1), "y", 1), "x", 1))))
	s.set("c", 3, a(d("$set", d("v", d("$concatArrays", a(a("changed"), d("$slice", a("$v", 1, 2)))), "x", 1))))
	s.set("c", 4,
		a(d("$set", d("v", d("$concatArrays", a(d("$slice", a("$v", 3)), a(d("k", a(1), "x", 2)))), "o.v", cut("o.v", 2)))))
	s.set("c", 5, a(d("$set", d("v", d("$concatArrays", a(d("$slice", a("$v", 4)), a(a(1)))), "x", "$$REMOVE"))))
	s.set("c", 6, a(d("$set", d("v", a(), "x", 1))))
	s.set("c", 7, d("$push", d("v", d("$each", a(), "$slice", 1)), "$set", d("x", 1, "o.y", 5)))
	s.set("c", 8, a(d("$set", d("v", cut("v", 1))))) // only that
	for i := range 4 {
		s.set("c", 9, a(d("$set", d("v", cut("v", 4-i), "x", i, "o.v", cut("o.v", 3-i)))))
	}
	s.set("c", 10, a(d("$set", d("v", cut("v", 3)))))
	s.set("c", 10, d("$push", d("v", "after")))
	s.set("c", 10, d("$set", d("v.1", d("a", 1), "v.6", 1)))
	s.set("c", 10, a(d("$set", d("v", cut("v", 2), "x", 2))))
}

// A path changes what it is again and again.
func arrayScalarSetup(s *site) {
	for i := range 6 {
		s.insert("c", d("_id", i, "v", a(1, 2, 3, 4), "o", d("p", d("q", a(d("r", 1))))))
	}
}

func arrayScalarChange(s *site) {
	for i := range 6 {
		for range 3 {
			s.set("c", i, a(d("$set", d("v", d("$slice", a("$v", 2)), "n", i))))
			s.set("c", i, d("$set", d("v", "scalar")))
			s.set("c", i, d("$set", d("v", d("sub", a(1, 2, 3)))))
			s.set("c", i, d("$push", d("v.sub", 4)))
			s.set("c", i, d("$unset", d("v", 1)))
			s.set("c", i, d("$set", d("v", a(a(1), d("x", 1)))))
			s.set("c", i, d("$set", d("v.1.x", d("y", 1), "v.0.3", 1)))
			s.set("c", i, d("$set", d("o.p.q.0.r", 2)))
			s.set("c", i, d("$set", d("o.p", 5)))
			s.set("c", i, d("$set", d("o", d("p", d("q", a(d("r", 1)))))))
			s.set("c", i, d("$set", d("v", a(1, 2, 3, 4))))
		}
	}
	s.set("c", 0, d("$set", d("v", 1)))
	s.set("c", 1, d("$unset", d("v", 1)))
	s.remove("c", d("_id", 2))
	s.set("c", 3, d("gone", true))
}

func fieldOrderSetup(s *site) {
	s.insert("c", d("_id", 1, "b", 1, "a", 1), d("_id", 2, "z", d("b", 1, "a", 2)), d("_id", 3, "a", 1, "b", 2, "c", 3),
		d("_id", 4))
}

func fieldOrderChange(s *site) {
	s.set("c", 1, d("$set", d("d", 1, "c", 1, "0", 1, "10", 1, "9", 1)))
	s.set("c", 2, d("$set", d("z.y", 1, "z.x", 1, "z.0", 1)))
	s.set("c", 3, a(d("$replaceWith", d("_id", 3, "c", "$c", "a", "$a", "b", "$b"))))
	s.set("c", 3, a(d("$set", d("y", 1, "x", 1))))
	s.set("c", 4, d("$set", d("b", 1)))
	s.set("c", 4, d("$set", d("a", 1)))
	s.set("c", 4, d("$unset", d("b", 1)))
	s.set("c", 4, d("$set", d("b", 1, "0", 2)))
}

// Few documents change all the time, so that changes are merged.
func hotSetup(s *site) {
	for i := range 4 {
		s.insert("c", d("_id", i, "n", 0, "v", a(), "o", d()))
	}
}

func hotChange(s *site) {
	for round := range 60 {
		var stmts bson.A
		for i := range 4 {
			for _, u := range []any{
				d("$inc", d("n", 1)), d("$push", d("v", d("$each", a(round, d("k", round)), "$slice", -7))),
				d("$set", d(fmt.Sprintf("o.k%d", round%9), d("r", round))), d("$unset", d(fmt.Sprintf("o.k%d", (round+3)%9), 1)),
				d("$set", d("v.2", round)), a(d("$set", d("v", d("$slice", a("$v", 5)), "last", round))),
			} {
				stmts = append(stmts, d("q", d("_id", i), "u", u))
			}
		}
		s.run(d("update", "c", "updates", stmts))
		if round%20 == 7 {
			s.remove("c", d("_id", 3))
			s.insert("c", d("_id", 3, "n", 0, "v", a(), "o", d()))
		}
	}
}

// writeScenarios hold the commands that write documents.
func writeScenarios() []scenario {
	return []scenario{
		{name: "replacements_and_upserts", setup: replaceSetup, change: replaceChange},
		{name: "find_and_modify", setup: replaceSetup, change: findAndModifyChange},
		{name: "bulk_writes", setup: replaceSetup, change: bulkChange},
		{name: "insert_delete_cycles", setup: replaceSetup, change: cyclesChange},
		{name: "many_documents", setup: manySetup, change: manyChange},
		{name: "gridfs", setup: gridSetup, change: gridChange, only: []string{wayCopy, wayChange}},
		{name: "gridfs_raw", setup: gridRawSetup, change: gridRawChange},
	}
}

func replaceSetup(s *site) {
	s.fill("c", 50, func(i int) bson.D { return d("_id", i, "n", i, "old", "field", "v", a(1, 2)) })
}

func replaceChange(s *site) {
	for i := range 10 {
		s.set("c", i, d("n", i, "replaced", true))
		s.set("c", i, d("$set", d("after", i)))
		s.set("c", i, d())
	}
	s.set("c", 10, d("v", 1))
	s.update("c", d("_id", 100), d("n", 100), "upsert", true)
	s.update("c", d("_id", 100), d("n", 101), "upsert", true)
	s.update("c", d("n", 555), d("n", 556), "upsert", true)
	s.remove("c", d("n", d("$lt", 5)))
	s.remove("c", d("n", d("$gte", 40)))
	s.insert("c", d("_id", 41, "again", true))
}

func findAndModifyChange(s *site) {
	s.findAndModify("c", d("_id", 1), "update", d("$inc", d("n", 1)), "new", true)
	s.findAndModify("c", d("n", d("$gt", 10)), "sort", d("n", -1), "remove", true)
	s.findAndModify("c", d("_id", 2), "update", d("whole", 1))
	s.findAndModify("c", d("_id", "made"), "update", d("$set", d("n", 1)), "upsert", true)
	s.findAndModify("c", d("_id", 3), "update", a(d("$set", d("v", d("$slice", a("$v", 1)), "n", "x"))))
	s.findAndModify("c", d("_id", 4), "update", d("$set", d("v.$[e]", 0)), "arrayFilters", a(d("e", 2)))
}

func bulkChange(s *site) {
	for _, ordered := range []bool{true, false} {
		models := []mongo.WriteModel{
			mongo.NewInsertOneModel().SetDocument(d("_id", fmt.Sprint("bulk", ordered))),
			mongo.NewUpdateOneModel().SetFilter(d("_id", 1)).SetUpdate(d("$inc", d("n", 1))),
			mongo.NewUpdateManyModel().SetFilter(d("n", d("$gt", 20))).SetUpdate(d("$set", d("big", ordered))),
			mongo.NewReplaceOneModel().SetFilter(d("_id", 2)).SetReplacement(d("bulk", ordered)),
			mongo.NewReplaceOneModel().SetFilter(d("_id", "up")).SetReplacement(d("bulk", ordered)).SetUpsert(true),
			mongo.NewDeleteOneModel().SetFilter(d("_id", fmt.Sprint("bulk", ordered))),
			mongo.NewInsertOneModel().SetDocument(d("_id", fmt.Sprint("other", ordered), "v", a(a(1)))),
			mongo.NewDeleteManyModel().SetFilter(d("n", d("$in", a(5, 6, 7)))),
		}
		_, err := s.coll("c").BulkWrite(s.ctx, models, options.BulkWrite().SetOrdered(ordered))
		check(err)
	}
	// Half of a batch fails: the rest counts.
	_, err := s.try(d("insert", "c", "ordered", false, "documents", a(d("_id", 1000), d("_id", 1), d("_id", 1001))))
	if err == nil {
		fail("the duplicate was accepted")
	}
}

func cyclesChange(s *site) {
	for round := range 30 {
		for i := range 10 {
			s.remove("c", d("_id", i))
			s.insert("c", d("_id", i, "round", round))
			if i%2 == 0 {
				s.set("c", i, d("$set", d("updated", round)))
			}
			if i%3 == 0 {
				s.set("c", i, d("whole", round))
			}
			if i == 9 {
				s.remove("c", d("_id", i))
			}
		}
	}
}

func manySetup(s *site) {
	s.fill("c", 8000, func(i int) bson.D {
		return d("_id", i*2, "n", i, "pad", "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx")
	})
}

func manyChange(s *site) {
	s.fill("c", 3000, func(i int) bson.D { return d("_id", i*2+1, "n", -i) })
	s.update("c", d("n", d("$mod", a(5, 0))), d("$inc", d("n", 1), "$set", d("m", true)), "multi", true)
	s.remove("c", d("n", d("$mod", a(9, 4))))
}

func gridSetup(s *site) {
	up := func(name string, n int) {
		data := make([]byte, n)
		for i := range data {
			data[i] = byte(i * 7)
		}
		w, err := s.db().GridFSBucket().OpenUploadStreamWithID(s.ctx, name, name)
		check(err)
		_, err = w.Write(data)
		check(err)
		check(w.Close())
	}
	up("empty", 0)
	up("small", 1000)
	up("large", 1<<20+17)
}

func gridChange(s *site) {
	gridSetup(&site{ctx: s.ctx, client: s.client, base: s.name("other")})
	b := s.db().GridFSBucket()
	check(b.Rename(s.ctx, "small", "renamed"))
	check(b.Delete(s.ctx, "large"))
}

// The same without the driver's finds, as files are during a copy.
func gridRawSetup(s *site) {
	s.index("fs.files", d("filename", 1, "uploadDate", 1))
	s.index("fs.chunks", d("files_id", 1, "n", 1), "unique", true)
	s.gridFile("one", 5)
	s.gridFile("two", 3)
}

func gridRawChange(s *site) {
	s.gridFile("three", 4)
	s.remove("fs.chunks", d("files_id", "one"))
	s.remove("fs.files", d("_id", "one"))
	s.gridFile("one", 2)
	s.set("fs.files", "two", d("$set", d("metadata", d("a.b", 1))))
}

func (s *site) gridFile(name string, chunks int) {
	for i := range chunks {
		s.insert("fs.chunks", d("_id", bson.NewObjectID(), "files_id", name, "n", i, "data", make([]byte, 255<<10)))
	}
	s.insert("fs.files", d("_id", name, "length", int64(chunks)*255<<10, "chunkSize", 255<<10, "uploadDate",
		bson.DateTime(0), "filename", name))
}
