package test

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// ddlScenarios hold what happens to whole collections and databases.
func ddlScenarios() []scenario {
	return []scenario{
		{name: "create_by_writing", setup: docsSetup, change: createByWritingChange},
		{name: "drop", setup: docsSetup, change: dropChange},
		{name: "drop_recreate", setup: docsSetup, change: dropRecreateChange},
		{name: "drop_recreate_other_kind", setup: docsSetup, change: otherKindChange},
		{name: "drop_recreate_often", setup: docsSetup, change: recreateOftenChange},
		{name: "drop_database", setup: dropDatabaseSetup, change: dropDatabaseChange},
		{name: "drop_database_recreate", setup: dropDatabaseSetup, change: recreateDatabaseChange},
		{name: "drop_large", setup: largeSetup, change: dropLargeChange},
		{name: "out", setup: docsSetup, change: outChange},
		{name: "out_other_database", since: "4.4", setup: docsSetup, change: outOtherChange},
		{name: "merge", setup: docsSetup, change: mergeChange},
		{name: "collmod_under_writes", setup: docsSetup, change: collModChange},
	}
}

func docsSetup(s *site) {
	s.fill("c", 100, func(i int) bson.D { return d("_id", i, "n", i, "k", fmt.Sprint(i)) })
	s.index("c", d("n", 1))
	s.index("c", d("k", 1), "unique", true)
	s.fill("other", 10, func(i int) bson.D { return d("_id", i, "x", i) })
}

func createByWritingChange(s *site) {
	s.insert("by_insert", d("_id", 1))
	s.update("by_upsert", d("_id", 1), d("$set", d("x", 1)), "upsert", true)
	s.index("by_index", d("a", 1), "unique", true)
	s.findAndModify("by_modify", d("_id", 1), "update", d("x", 1), "upsert", true)
	s.in("new").insert("c", d("_id", 1))
	s.in("new2").index("c", d("x", 1))
	s.in("new2").insert("c", d("_id", 1, "x", 1))
}

func dropChange(s *site) {
	s.insert("c", d("_id", "last"))
	s.drop("c")
	s.create("short_lived")
	s.insert("short_lived", d("_id", 1))
	s.drop("short_lived")
	s.insert("other", d("_id", "after"))
}

func dropRecreateChange(s *site) {
	s.set("c", 1, d("$set", d("n", "before")))
	s.drop("c")
	// duplicates of the index that is gone
	s.insert("c", d("_id", 1, "new", true), d("_id", 2, "k", 1), d("_id", 3, "k", 1))
	s.index("c", d("n", -1))
	s.drop("other")
	s.create("other")
}

func otherKindChange(s *site) {
	s.drop("c")
	s.create("c", "capped", true, "size", 8192)
	s.fill("c", 60, func(i int) bson.D { return d("_id", 100-i, "pad", pad(300)) })
	s.drop("other")
	s.create("other", "collation", d("locale", "en", "strength", 2))
	s.insert("other", d("_id", "A"))
	s.set("other", "a", d("$set", d("x", 1)))
	s.drop("other")
	s.create("other", "validator", d("x", 1))
	s.bypass("other", d("_id", "a", "y", 1))
}

func recreateOftenChange(s *site) {
	for i := range 12 {
		s.fill("c", 20, func(j int) bson.D { return d("_id", 1000+j, "round", i, "k", -j) })
		s.drop("c")
		if i%3 == 0 {
			s.create("c")
		}
		s.fill("c", 5, func(j int) bson.D { return d("_id", j, "round", i) })
		if i%4 == 1 {
			s.index("c", d("round", 1, "x", 1))
		}
	}
}

func dropDatabaseSetup(s *site) {
	docsSetup(s)
	docsSetup(s.in("x"))
	s.in("x").create("v", "viewOn", "c", "pipeline", a())
	s.in("x").create("capped", "capped", true, "size", 4096)
	s.in("x").create("empty")
}

func dropDatabaseChange(s *site) {
	s.in("x").insert("c", d("_id", "last"))
	check(s.in("x").db().Drop(s.ctx))
	s.insert("c", d("_id", "after", "k", "after"))
}

func recreateDatabaseChange(s *site) {
	for i := range 3 {
		check(s.in("x").db().Drop(s.ctx))
		s.in("x").fill("c", 10, func(j int) bson.D { return d("_id", j, "again", i) })
		s.in("x").index("c", d("again", 1))
	}
	check(s.in("y").db().Drop(s.ctx))
	s.in("y").insert("c", d("_id", 1))
}

func largeSetup(s *site) {
	s.fill("gone", 15000, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
	s.fill("recreated", 15000, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
	s.fill("renamed", 15000, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
}

func dropLargeChange(s *site) {
	s.drop("gone")
	s.drop("recreated")
	s.fill("recreated", 50, func(i int) bson.D { return d("_id", i*3, "new", true) })
	s.update("renamed", d("_id", d("$lt", 100)), d("$set", d("x", 1)), "multi", true)
	s.rename(s.ns("renamed"), s.ns("now"))
	s.update("now", d("_id", d("$lt", 200)), d("$set", d("y", 1)), "multi", true)
}

func outChange(s *site) {
	s.aggregate("c", d("$match", d("n", d("$lt", 50))), d("$out", "new"))
	s.index("new", d("n", 1))
	s.index("new", d("k", 1), "unique", true)
	s.aggregate("c", d("$match", d("n", d("$gte", 40))), d("$set", d("again", true)), d("$out", "new"))
	s.aggregate("c", d("$project", d("n", 1)), d("$out", "other"))
	s.insert("other", d("_id", "after"))
	s.aggregate("c", d("$match", d("n", -1)), d("$out", "nothing"))
}

func outOtherChange(s *site) {
	s.in("x").insert("there", d("_id", "old"))
	s.in("x").index("there", d("n", 1))
	s.aggregate("c", d("$out", d("db", s.name("x"), "coll", "there")))
	s.aggregate("c", d("$limit", 5), d("$out", d("db", s.name("x"), "coll", "new")))
}

func mergeChange(s *site) {
	s.aggregate("c", d("$match", d("n", d("$lt", 20))), d("$merge", d("into", "other", "whenMatched", "merge")))
	s.aggregate("c", d("$match", d("n", d("$lt", 5))), d("$merge", d("into", "other", "whenMatched", "replace")))
	s.aggregate("c", d("$match", d("n", d("$lt", 9))),
		d("$merge", d("into", "other", "whenMatched", a(d("$set", d("piped", "$$new.n"))))))
	s.aggregate("c", d("$merge", d("into", d("db", s.name("x"), "coll", "merged"), "whenNotMatched", "insert")))
	if shared.sourceVer.AtLeast(4, 4) {
		s.aggregate("other", d("$set", d("self", 1)), d("$merge", "other"))
	}
}

func collModChange(s *site) {
	for i := range 10 {
		s.collMod("c", "validator", d("n", d("$lt", 1000+i)))
		s.insert("c", d("_id", 200+i, "n", i, "k", fmt.Sprint("new", i)))
		s.set("c", i, d("$set", d("n", 500+i)))
		s.remove("c", d("_id", 50+i))
	}
}

// renameScenarios hold renames.
func renameScenarios() []scenario {
	return []scenario{
		{name: "rename", setup: docsSetup, change: renameChange},
		{name: "rename_across_databases", setup: docsSetup, change: renameAcrossChange},
		{name: "rename_drop_target", setup: docsSetup, change: renameDropTargetChange},
		{name: "rename_chain", setup: docsSetup, change: renameChainChange},
		{name: "rename_swap", setup: docsSetup, change: renameSwapChange},
		{name: "rename_under_writes", setup: docsSetup, change: renameWritesChange},
		{name: "rename_capped", setup: renameCappedSetup, change: renameCappedChange},
		{name: "rename_then_recreate", setup: docsSetup, change: renameRecreateChange},
		{name: "rename_across_with_everything", setup: indexesSetup, change: renameEverythingChange},
		{name: "rename_viewed", setup: renameViewedSetup, change: renameViewedChange},
	}
}

func renameChange(s *site) {
	s.set("c", 1, d("$set", d("before", 1)))
	s.rename(s.ns("c"), s.ns("r"))
	s.set("r", 1, d("$set", d("after", 1)))
	s.insert("r", d("_id", "after", "k", "after"))
	s.remove("r", d("_id", 2))
}

func renameAcrossChange(s *site) {
	s.set("c", 1, d("$set", d("before", 1)))
	s.rename(s.ns("c"), s.in("x").ns("r"))
	s.in("x").set("r", 1, d("$set", d("after", 1)))
	s.in("x").insert("r", d("_id", "after", "k", "after"))
	s.insert("c", d("_id", "anew"))
	s.rename(s.in("x").ns("r"), s.ns("back"))
	s.set("back", 1, d("$set", d("back", 1)))
}

func renameDropTargetChange(s *site) {
	s.rename(s.ns("c"), s.ns("other"), "dropTarget", true)
	s.set("other", 5, d("$set", d("after", 1)))
	s.in("x").insert("there", d("_id", "goes"))
	s.rename(s.ns("other"), s.in("x").ns("there"), "dropTarget", true)
	s.in("x").insert("there", d("_id", "after", "k", "after"))
	s.insert("other", d("_id", "anew"))
}

func renameChainChange(s *site) {
	name := "c"
	for i := range 8 {
		next := fmt.Sprint("step", i)
		s.rename(s.ns(name), s.ns(next))
		s.set(next, i, d("$set", d("step", i)))
		if i%2 == 0 {
			s.insert(name, d("_id", i, "left", "behind"))
		}
		name = next
	}
}

func renameSwapChange(s *site) {
	for i := range 5 {
		s.rename(s.ns("c"), s.ns("tmp"))
		s.rename(s.ns("other"), s.ns("c"))
		s.rename(s.ns("tmp"), s.ns("other"))
		s.update("c", d("_id", i), d("$set", d("c", i)))
		s.update("other", d("_id", i), d("$set", d("other", i)))
	}
}

func renameWritesChange(s *site) {
	colls := []string{"c", "r"}
	for i := range 20 {
		s.set(colls[0], i, d("$inc", d("n", 1000)))
		s.insert(colls[0], d("_id", 1000+i, "k", fmt.Sprint("w", i)))
		s.rename(s.ns(colls[0]), s.ns(colls[1]))
		slices.Reverse(colls)
		s.set(colls[0], i, d("$push", d("log", i)))
		s.remove(colls[0], d("_id", 50+i))
	}
}

func renameCappedSetup(s *site) {
	s.create("c", "capped", true, "size", 1<<20, "max", 30)
	s.fill("c", 50, func(i int) bson.D { return d("_id", (i*7919)%997) })
}

func renameCappedChange(s *site) {
	s.rename(s.ns("c"), s.ns("r"))
	s.fill("r", 10, func(i int) bson.D { return d("_id", -i-1) })
	s.rename(s.ns("r"), s.in("x").ns("r"))
	s.in("x").fill("r", 10, func(i int) bson.D { return d("_id", fmt.Sprint(i)) })
}

func renameRecreateChange(s *site) {
	s.rename(s.ns("c"), s.ns("old"))
	s.fill("c", 30, func(i int) bson.D { return d("_id", i, "new", true) })
	s.index("c", d("new", 1))
	s.drop("old")
	s.rename(s.ns("c"), s.ns("old"))
	s.insert("c", d("_id", 1, "newest", true))
}

func renameEverythingChange(s *site) {
	indexedDocs(s)
	for _, c := range []string{"c", "text", "alltext", "flat", "geo", "wild"} {
		s.rename(s.ns(c), s.in("x").ns(c))
	}
	s.in("x").insert("c", d("_id", "x", "u", "x"))
	s.in("x").set("c", 1, d("$set", d("a", "x")))
}

func renameViewedSetup(s *site) {
	docsSetup(s)
	s.create("v", "viewOn", "c", "pipeline", a(d("$match", d("n", 1))))
}

// Views name collections; they do not follow them.
func renameViewedChange(s *site) {
	s.rename(s.ns("c"), s.ns("r"))
	s.insert("c", d("_id", 1, "n", 1))
	s.create("v2", "viewOn", "r", "pipeline", a())
	s.rename(s.ns("r"), s.ns("r2"))
}

// filterScenarios hold what happens at the edge of a filter. Collections whose
// name begins with out, and databases that end in out, are excluded.
func filterScenarios() []scenario {
	var list []scenario
	for _, sc := range []scenario{
		{name: "filter_rename_in", setup: edgeSetup, change: edgeInChange},
		{name: "filter_rename_in_large", setup: edgeLargeSetup, change: edgeLargeChange},
		{name: "filter_rename_out", setup: edgeSetup, change: edgeOutChange},
		{name: "filter_rename_out_and_in", setup: edgeSetup, change: edgeOutInChange},
		{name: "filter_rename_databases", setup: edgeSetup, change: edgeDatabasesChange},
		{name: "filter_rename_drop_target", setup: edgeSetup, change: edgeDropTargetChange},
		{name: "filter_rename_outside", setup: edgeSetup, change: edgeOutsideChange},
		{name: "filter_transactions", setup: edgeSetup, change: edgeTxnChange},
		{name: "filter_drop_database", setup: edgeSetup, change: edgeDropDatabaseChange},
		{name: "filter_views_and_series", since: "5.0", setup: edgeKindsSetup, change: edgeKindsChange},
		{name: "filter_out_to_series", since: "7.0", setup: edgeSetup, change: edgeOutSeriesChange},
	} {
		sc.exclude = []string{"DB.out*", "DB-*.out*", "DB-out.*"}
		list = append(list, sc)
	}
	return list
}

func edgeSetup(s *site) {
	for _, c := range []string{"in", "out", "out2"} {
		s.fill(c, 50, func(i int) bson.D { return d("_id", i, "from", c, "k", i) })
		s.index(c, d("k", 1), "unique", true)
		s.index(c, d("at", 1), "expireAfterSeconds", 3600)
		s.in("out").fill(c, 20, func(i int) bson.D { return d("_id", i, "from", "out db "+c) })
	}
}

func edgeInChange(s *site) {
	s.set("out", 1, d("$set", d("before", 1)))
	s.rename(s.ns("out"), s.ns("kept"))
	s.set("kept", 1, d("$set", d("after", 1)))
	s.set("kept", 2, d("$set", d("k", -2)))
	s.insert("kept", d("_id", "new", "k", "new"))
	s.remove("kept", d("_id", 3))
	s.insert("out", d("_id", "still out"))
	s.index("kept", d("from", 1))
}

func edgeLargeSetup(s *site) {
	s.fill("out", 4000, func(i int) bson.D { return d("_id", i, "k", i, "pad", pad(100)) })
	s.index("out", d("k", 1), "unique", true)
}

func edgeLargeChange(s *site) {
	s.rename(s.ns("out"), s.ns("kept"))
	for i := range 50 {
		s.update("kept", d("_id", d("$mod", a(50, i))), d("$inc", d("n", 1)), "multi", true)
		s.remove("kept", d("_id", i*7))
		s.insert("kept", d("_id", 20000+i, "k", 20000+i))
	}
	s.rename(s.ns("kept"), s.ns("kept2"))
	s.set("kept2", 1, d("$set", d("last", 1)))
}

func edgeOutChange(s *site) {
	s.set("in", 1, d("$set", d("before", 1)))
	s.rename(s.ns("in"), s.ns("out_renamed"))
	s.set("out_renamed", 1, d("$set", d("after", 1)))
	s.insert("in", d("_id", "new one"))
}

func edgeOutInChange(s *site) {
	s.rename(s.ns("in"), s.ns("out3"))
	s.set("out3", 1, d("$set", d("unseen", 1)))
	s.insert("out3", d("_id", "unseen", "k", "unseen"))
	s.remove("out3", d("_id", 2))
	s.rename(s.ns("out3"), s.ns("in"))
	s.set("in", 3, d("$set", d("seen", 1)))
	s.rename(s.ns("in"), s.ns("out3"))
	s.rename(s.ns("out3"), s.ns("in2"))
	s.insert("in2", d("_id", "last", "k", "last"))
}

func edgeDatabasesChange(s *site) {
	s.rename(s.in("out").ns("in"), s.ns("came"))
	s.set("came", 1, d("$set", d("after", 1)))
	s.rename(s.ns("in"), s.in("out").ns("went"))
	s.in("out").set("went", 1, d("$set", d("after", 1)))
	s.rename(s.ns("came"), s.in("x").ns("came"))
	s.in("x").insert("came", d("_id", "x"))
}

func edgeDropTargetChange(s *site) {
	s.rename(s.ns("out"), s.ns("in"), "dropTarget", true) // replaced by what was outside
	s.set("in", 1, d("$set", d("after", 1)))
	s.rename(s.ns("in"), s.ns("out2"), "dropTarget", true)
	s.insert("in", d("_id", "new one"))
}

func edgeOutsideChange(s *site) {
	s.rename(s.ns("out"), s.ns("out9"))
	s.rename(s.in("out").ns("in"), s.ns("out10"))
	s.drop("out2")
	s.insert("out11", d("_id", 1))
	s.index("out9", d("x", 1))
	s.set("in", 1, d("$set", d("x", 1)))
}

func edgeTxnChange(s *site) {
	s.transaction(func(x *site) {
		x.insert("in", d("_id", "t", "k", "t"))
		x.insert("out", d("_id", "t", "k", "t"))
		x.set("out", 1, d("$set", d("x", 1)))
		x.set("in", 1, d("$set", d("x", 1)))
		x.in("out").insert("in", d("_id", "t"))
	})
	s.transaction(func(x *site) { x.insert("out", d("_id", "u", "k", "u")) })
}

func edgeDropDatabaseChange(s *site) {
	check(s.in("out").db().Drop(s.ctx))
	check(s.db().Drop(s.ctx))
	s.insert("in", d("_id", "again"))
	s.insert("out", d("_id", "again"))
}

func edgeKindsSetup(s *site) {
	s.series("out_ts", "metaField", "m")
	s.series("ts", "metaField", "m")
	s.insert("out_ts", d("t", at(0), "m", 1))
	s.insert("ts", d("t", at(0), "m", 1))
	s.create("out_view", "viewOn", "ts", "pipeline", a())
	s.create("view", "viewOn", "out_ts", "pipeline", a())
}

func edgeKindsChange(s *site) {
	s.insert("out_ts", d("t", at(1), "m", 1))
	s.insert("ts", d("t", at(1), "m", 1))
	s.drop("out_view")
	s.collMod("view", "viewOn", "ts", "pipeline", a())
	s.create("out_view2", "viewOn", "ts", "pipeline", a())
	s.drop("out_ts")
}

// edgeOutSeriesChange has a server rename buckets, in a database that is excluded.
func edgeOutSeriesChange(s *site) {
	out := d("$out", d("db", s.name("out"), "coll", "ts", "timeseries", d("timeField", "t")))
	s.aggregate("in", d("$set", d("t", at(0))), out)
	s.set("in", 1, d("$set", d("between", 1)))
	s.aggregate("in", d("$set", d("t", at(1))), out)
	s.set("in", 1, d("$set", d("after", 1)))
}

// mappingScenarios hold jobs that rename.
func mappingScenarios() []scenario {
	return []scenario{
		{name: "map_database", setup: mapSetup, change: mapChange, rename: []string{"DB=DB-mapped"}},
		{name: "map_collection", setup: mapSetup, change: mapChange, rename: []string{"DB.c=DB.mapped", "DB.ts=DB-x.ts2"}},
		{name: "map_swap", setup: mapSetup, change: mapChange, rename: []string{"DB.c=DB.other", "DB.other=DB.c"}},
		{name: "map_and_rename", setup: docsSetup, change: mapRenameChange,
			rename: []string{"DB.c=DB.mapped", "DB.r=DB-y.r"}},
		{name: "map_and_drop_database", setup: mapSetup, change: mapDropChange,
			rename: []string{"DB=DB-mapped", "DB.c=DB-else.c"}},
		{name: "map_views", setup: mapViewsSetup, change: mapViewsChange, rename: []string{"DB.c=DB.mapped"}},
		{name: "map_transactions", setup: docsSetup, change: txnCollectionsChange, rename: []string{"DB=DB-m", "DB-x=DB-m2"}},
	}
}

func mapSetup(s *site) {
	docsSetup(s)
	s.create("capped", "capped", true, "size", 4096)
	s.fill("capped", 10, func(i int) bson.D { return d("_id", 10-i) })
	if shared.sourceVer.AtLeast(5, 0) {
		s.series("ts", "metaField", "m")
		s.insert("ts", d("t", at(0), "m", 1))
	}
}

func mapChange(s *site) {
	s.set("c", 1, d("$set", d("x", 1)))
	s.insert("c", d("_id", "new", "k", "new"))
	s.index("c", d("x", 1))
	s.collMod("c", "validator", d("x", d("$exists", true)))
	s.drop("other")
	s.insert("other", d("_id", "again"))
	s.insert("capped", d("_id", 100))
	s.dropIndexes("c", "n_1")
	if shared.sourceVer.AtLeast(5, 0) {
		s.insert("ts", d("t", at(1), "m", 1))
		s.index("ts", d("m", 1))
	}
	s.aggregate("c", d("$out", "written"))
}

func mapRenameChange(s *site) {
	s.rename(s.ns("c"), s.ns("r"))
	s.set("r", 1, d("$set", d("x", 1)))
	s.rename(s.ns("r"), s.ns("r2"))
	s.set("r2", 2, d("$set", d("x", 1)))
	s.rename(s.ns("r2"), s.ns("c"))
	s.insert("c", d("_id", "last", "k", "last"))
	s.rename(s.ns("other"), s.ns("r"), "dropTarget", true)
}

func mapDropChange(s *site) {
	check(s.db().Drop(s.ctx))
	s.insert("c", d("_id", 1))
	s.insert("d", d("_id", 1))
}

func mapViewsSetup(s *site) {
	docsSetup(s)
	s.create("v", "viewOn", "c", "pipeline",
		a(d("$match", d("n", 1)), d("$lookup", d("from", "c", "localField", "n", "foreignField", "n", "as", "j"))))
	s.create("w", "viewOn", "other", "pipeline",
		a(unionWith("c", "c"), unionWith("c", d("coll", "c", "pipeline", a(d("$match", d("c", "c")))))))
}

func mapViewsChange(s *site) {
	s.create("x", "viewOn", "c", "pipeline",
		a(d("$graphLookup", d("from", "c", "startWith", "$n", "connectFromField", "n", "connectToField", "_id", "as", "g"))))
	s.collMod("w", "viewOn", "c", "pipeline", a())
	s.create("y", "viewOn", "v", "pipeline",
		a(d("$lookup", d("from", "c", "pipeline", a(d("$match", d("from", "c"))), "as", "j"))))
}
