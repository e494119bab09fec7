package test

import (
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
)

// seriesScenarios hold time-series collections, compared by their buckets.
func seriesScenarios() []scenario {
	var out []scenario
	for _, sc := range []scenario{
		{name: "series_granularities", setup: granularitiesSetup, change: granularitiesChange},
		{name: "series_without_meta", setup: noMetaSetup, change: noMetaChange},
		{name: "series_buckets", setup: bucketsSetup, change: bucketsChange},
		{name: "series_new_fields", setup: newFieldsSetup, change: newFieldsChange},
		{name: "series_deletes", since: "6.0", setup: bucketsSetup, change: seriesDeletesChange},
		{name: "series_indexes", since: "6.0", setup: seriesIndexesSetup, change: seriesIndexesChange},
		{name: "series_ttl", setup: seriesTTLSetup, change: seriesTTLChange},
		{name: "series_partial_ttl", since: "7.0", setup: seriesPartialTTLSetup, change: seriesPartialTTLChange},
		{name: "series_recreated", setup: noMetaSetup, change: seriesRecreatedChange},
		{name: "series_collmod", setup: granularitiesSetup, change: seriesCollModChange},
		{name: "series_out", since: "7.0", setup: noMetaSetup, change: seriesOutChange},
		{name: "series_out_in", since: "7.0", setup: noMetaSetup, change: seriesOutChange, exclude: []string{"DB.tmp.*"}},
		{name: "series_out_mapped", since: "7.0", setup: noMetaSetup, change: seriesOutChange,
			rename: []string{"DB.made=DB-x.other"}},
		{name: "series_spans", since: "7.0", setup: spansSetup, change: spansChange},
		{name: "series_mixed", setup: seriesMixedSetup, change: seriesMixedChange, check: seriesMixedCheck},
		{name: "series_values", setup: seriesValuesSetup, change: seriesValuesChange},
	} {
		if sc.since == "" {
			sc.since = "5.0"
		}
		out = append(out, sc)
	}
	return out
}

func at(seconds int) bson.DateTime {
	return bson.NewDateTimeFromTime(time.Unix(1700000000+int64(seconds), 0))
}

func (s *site) series(coll string, options ...any) {
	s.create(coll, "timeseries", append(d("timeField", "t"), d(options...)...))
}

// seriesOutChange has a server rename buckets, onto nothing and onto others.
func seriesOutChange(s *site) {
	s.fill("in", 50, func(i int) bson.D { return d("_id", i, "t", at(i*97), "k", i) })
	out := d("$out", d("db", s.name(), "coll", "made", "timeseries", d("timeField", "t")))
	s.aggregate("in", out)
	s.insert("made", d("t", at(5), "k", "added"))
	s.aggregate("in", d("$match", d("k", d("$gt", 20))), out)
	s.insert("made", d("t", at(7), "k", "added"))
	s.index("made", d("k", 1))
}

func granularitiesSetup(s *site) {
	for _, g := range []string{"seconds", "minutes", "hours"} {
		s.series(g, "metaField", "m", "granularity", g)
		s.fill(g, 200, func(i int) bson.D { return d("t", at(i*97), "m", d("sensor", i%3), "v", i) })
	}
	s.series("default", "metaField", "m")
	s.insert("default", d("t", at(0), "m", "x", "v", 1))
}

func granularitiesChange(s *site) {
	for _, g := range []string{"seconds", "minutes", "hours"} {
		s.fillFrom(g, 200, 300, func(i int) bson.D { return d("t", at(i*97), "m", d("sensor", i%3), "v", i) })
		s.series("new_"+g, "metaField", "m", "granularity", g)
		s.insert("new_"+g, d("t", at(0), "m", 1, "v", 1))
	}
}

// The minimum and maximum of a bucket get new fields in the order of the
// measurement, which the oplog tells as if they were there already.
func newFieldsSetup(s *site) {
	s.series("c", "metaField", "m")
	for m := range 8 {
		s.insert("c", d("t", at(m), "m", m, "v", d("x", 1)))
	}
}

func newFieldsChange(s *site) {
	for m := range 8 {
		s.insert("c", d("t", at(m+1), "m", m, "v", d("c", 7, "a", 8.0)))
		s.insert("c", d("t", at(m+2), "m", m, "w", 1, "b", d("z", d("y", 1, "x", 1)), "v", d("z", 1, "b", 2)))
		s.insert("c", d("t", at(m+2), "m", m, "b", d("z", d("d", 1, "c", 1), "a", 2)))
	}
}

func noMetaSetup(s *site) {
	s.series("c")
	s.fill("c", 100, func(i int) bson.D { return d("t", at(i), "_id", i, "v", float64(i)/3) })
	s.series("empty")
}

func noMetaChange(s *site) {
	for i := range 20 {
		s.insert("c", d("t", at(100+i), "v", i))
	}
	s.insert("empty", d("t", at(0), "v", 1))
	s.series("new")
	s.insert("new", d("t", at(5), "v", d("sub", 1)), d("t", at(4), "v", a(1)), d("t", at(3)))
}

// Measurements out of order, of changing shape, and many of one sensor, make
// buckets of every layout.
func bucketsSetup(s *site) {
	s.series("c", "metaField", "m")
	for _, lo := range []int{0, 100000, 50, 5, 1000000, 3} {
		s.fillFrom("c", lo, lo+40, func(i int) bson.D { return d("t", at(i), "m", i%4, "v", i) })
	}
	// over 1000 in a bucket
	s.fill("c", 2500, func(i int) bson.D { return d("t", at(i%3600), "m", "full", "v", i, "w", pad(i%50)) })
	s.insert("c", d("t", at(1), "m", 1, "other", "shape"), d("t", at(2), "m", 1, "v", "string now"),
		d("t", at(3), "v", "no meta"))
	for i := range 4 {
		s.insert("c", d("t", at(i), "m", "large", "v", pad(100<<10)))
	}
}

func bucketsChange(s *site) {
	for i := range 30 {
		s.insert("c", d("t", at(i*13%7), "m", i%4, "v", i))
	}
	s.fill("c", 1500, func(i int) bson.D { return d("t", at(i%3600), "m", "full", "v", -i) })
	s.insert("c", d("t", at(-10000000), "m", 1, "v", "past"), d("t", at(0), "m", d("new", a(1)), "v", nil))
}

func seriesDeletesChange(s *site) {
	s.remove("c", d("m", 2))
	s.update("c", d("m", 3), d("$set", d("m", 33)), "multi", true)
	s.insert("c", d("t", at(1), "m", 2, "v", "after"), d("t", at(1), "m", 33, "v", "after"))
	s.remove("c", d("m", "full"))
	s.insert("c", d("t", at(1), "m", "full", "v", 1))
}

func seriesIndexesSetup(s *site) {
	s.series("c", "metaField", "m")
	s.index("c", d("m", 1))
	s.index("c", d("m.a", 1, "t", -1))
	s.insert("c", d("t", at(1), "m", d("a", 1), "v", 1, "loc", d("type", "Point", "coordinates", a(1, 2))))
}

func seriesIndexesChange(s *site) {
	s.index("c", d("t", 1))
	s.index("c", d("v", 1))
	s.index("c", d("loc", "2dsphere"))
	s.index("c", d("m.b", 1), "partialFilterExpression", d("m.a", d("$gt", 1)))
	s.insert("c", d("t", at(2), "m", d("a", 2), "v", 2))
	s.dropIndexes("c", "m_1")
	s.run(d("collMod", "c", "index", d("name", "v_1", "hidden", true)))
	s.series("new", "metaField", "m")
	s.index("new", d("m", -1))
	s.insert("new", d("t", at(2), "m", 1))
}

func seriesTTLSetup(s *site) {
	for _, c := range []string{"c", "changed", "off"} {
		s.create(c, "timeseries", d("timeField", "t", "metaField", "m"), "expireAfterSeconds", int64(3600))
		s.insert(c, d("t", at(0), "m", 1))
	}
	s.create("on", "timeseries", d("timeField", "t"))
}

func seriesTTLChange(s *site) {
	s.insert("c", d("t", at(1), "m", 1))
	s.collMod("changed", "expireAfterSeconds", int64(7200))
	s.collMod("off", "expireAfterSeconds", "off")
	s.collMod("on", "expireAfterSeconds", int64(100))
	s.create("new", "timeseries", d("timeField", "t"), "expireAfterSeconds", int64(60))
	s.insert("new", d("t", at(1)))
}

// Buckets of some sensors expire, by an index (6.3).
func seriesPartialTTLSetup(s *site) {
	s.series("c", "metaField", "m")
	s.index("c", d("t", 1), "expireAfterSeconds", 3600, "partialFilterExpression", d("m.a", 1))
	s.index("c", d("t", -1), "expireAfterSeconds", 7200, "partialFilterExpression", d("m.a", d("$gt", 1)))
	s.fill("c", 20, func(i int) bson.D { return d("t", at(i), "m", d("a", i%4), "v", i) })
}

func seriesPartialTTLChange(s *site) {
	s.run(d("collMod", "c", "index", d("name", "t_1", "hidden", true)))
	s.dropIndexes("c", "t_-1")
	s.index("c", d("t", -1), "expireAfterSeconds", 60, "partialFilterExpression", d("m.a", 3))
	s.series("new", "metaField", "m")
	s.index("new", d("t", 1), "expireAfterSeconds", 70, "partialFilterExpression", d("m", 1))
	for _, c := range []string{"c", "new"} {
		s.insert(c, d("t", at(50), "m", d("a", 1), "v", 1))
	}
}

func seriesRecreatedChange(s *site) {
	s.drop("c")
	s.series("c", "metaField", "m", "granularity", "hours")
	s.insert("c", d("t", at(1), "m", 1, "v", 1))
	s.drop("empty")
	s.insert("empty", d("_id", "no series any more"))
	s.drop("c")
	s.create("c")
	s.insert("c", d("_id", 1))
	s.drop("c")
	s.series("c", "metaField", "meta")
	s.insert("c", d("t", at(1), "meta", 1, "v", 2))
}

func seriesCollModChange(s *site) {
	s.run(d("collMod", "seconds", "timeseries", d("granularity", "minutes")))
	s.run(d("collMod", "minutes", "timeseries", d("granularity", "hours")))
	s.insert("seconds", d("t", at(100000), "m", d("sensor", 1), "v", 1), d("t", at(100), "m", d("sensor", 1), "v", 1))
	s.insert("minutes", d("t", at(100000), "m", d("sensor", 1), "v", 1))
}

// Buckets of a length of one's own (7.0), in place of a granularity.
func spansSetup(s *site) {
	s.create("own", "timeseries", d("timeField", "t", "metaField", "m", "bucketMaxSpanSeconds", 600,
		"bucketRoundingSeconds", 600))
	s.create("grows", "timeseries", d("timeField", "t", "metaField", "m", "bucketMaxSpanSeconds", 60,
		"bucketRoundingSeconds", 60))
	s.series("leaves", "metaField", "m", "granularity", "minutes")
	for _, c := range []string{"own", "grows", "leaves"} {
		s.fill(c, 100, func(i int) bson.D { return d("t", at(i*97), "m", i%3, "v", i) })
	}
}

func spansChange(s *site) {
	s.run(d("collMod", "grows", "timeseries", d("bucketMaxSpanSeconds", 7200, "bucketRoundingSeconds", 7200)))
	s.run(d("collMod", "leaves", "timeseries", d("bucketMaxSpanSeconds", 100000, "bucketRoundingSeconds", 100000)))
	s.create("new", "timeseries", d("timeField", "t", "bucketMaxSpanSeconds", 10, "bucketRoundingSeconds", 10))
	s.insert("new", d("t", at(0), "v", 1), d("t", at(11), "v", 1))
	for _, c := range []string{"own", "grows", "leaves"} {
		s.fillFrom(c, 100, 200, func(i int) bson.D { return d("t", at(i*97), "m", i%3, "v", i) })
	}
}

// Buckets of servers before 5.2 may hold several types of a field, of which newer ones have
// to know.
func seriesMixedSetup(s *site) {
	s.series("c", "metaField", "m")
	s.insert("c", d("t", at(1), "m", 1, "v", 1), d("t", at(2), "m", 1, "v", "text"), d("t", at(3), "m", 1, "v", a(2)))
}

func seriesMixedChange(s *site) {
	s.series("new", "metaField", "m")
	s.insert("new", d("t", at(1), "m", 1, "v", 1), d("t", at(2), "m", 1, "v", "text"), d("t", at(3), "m", 1, "v", a(2)))
}

func seriesMixedCheck(source, target *site) {
	old := !shared.sourceVer.AtLeast(5, 2)
	other := target.in("marks")
	defer func() { check(other.db().Drop(other.ctx)) }()
	other.series("c")
	if _, err := other.try(d("collMod", "c", mixedSchema, true)); err != nil {
		return // early 6.0 and older
	}
	for _, c := range []string{"c", "new"} {
		specs, err := target.db().ListCollectionSpecifications(target.ctx, d("name", c))
		check(err)
		if len(specs) != 1 || strings.Contains(specs[0].Options.String(), mixedSchema+"=true") != old {
			fail("%s: %v, want the mark: %v", c, specs, old)
		}
		for _, below := range []int{2, 100} {
			filter := d("v", d("$lt", below))
			if got, want := target.count(c, filter), source.count(c, filter); got != want {
				fail("%s: %d documents with v below %d, the source has %d", c, got, below, want)
			}
		}
	}
}

func seriesValuesSetup(s *site) {
	s.series("c", "metaField", "m")
	for name, v := range ordered(history.Values()) {
		s.insert("c", d("t", at(1), "m", "same", "v", v, "name", name))
	}
}

func seriesValuesChange(s *site) {
	for name, v := range ordered(history.Values()) {
		s.insert("c", d("t", at(2), "m", "same", "v", v, "name", name), d("t", at(2), "m", d("k", name), "w", v))
	}
}

// viewScenarios hold views.
func viewScenarios() []scenario {
	return []scenario{
		{name: "views", setup: viewsSetup, change: viewsChange},
		{name: "views_on_views", setup: viewsOnViewsSetup, change: viewsOnViewsChange},
		{name: "views_changed", setup: viewsSetup, change: viewsChangedChange},
		{name: "views_dropped", setup: viewsOnViewsSetup, change: viewsDroppedChange},
		{name: "view_becomes_collection", setup: viewsSetup, change: viewBecomesChange},
		{name: "view_of_series", since: "5.0", setup: viewOfSeriesSetup, change: viewOfSeriesChange},
	}
}

// unionWith adds the documents of a collection, as the stage's argument says;
// on servers before 4.4, which have no such stage, a join names it.
func unionWith(coll string, arg any) bson.D {
	if shared.sourceVer.AtLeast(4, 4) {
		return d("$unionWith", arg)
	}
	return d("$lookup", d("from", coll, "localField", "_id", "foreignField", "_id", "as", "u"))
}

func viewsSetup(s *site) {
	s.fill("c", 20, func(i int) bson.D { return d("_id", i, "n", i%5) })
	s.create("v", "viewOn", "c", "pipeline", a(d("$match", d("n", d("$gt", 2.0))), d("$project", d("n", 1))))
	s.create("plain", "viewOn", "c", "pipeline", a())
	s.create("collated", "viewOn", "c", "pipeline", a(d("$sort", d("n", 1))), "collation", d("locale", "de"))
	s.create("of_nothing", "viewOn", "not there", "pipeline", a())
	s.create("joined", "viewOn", "c", "pipeline",
		a(d("$lookup", d("from", "other", "localField", "n", "foreignField", "_id", "as", "o")), unionWith("plain", "plain")))
	s.create("system_like", "viewOn", "c", "pipeline", a(d("$group", d("_id", "$n", "count", d("$sum", 1)))))
}

func viewsChange(s *site) {
	s.create("new", "viewOn", "v", "pipeline", a(d("$limit", 3)))
	s.insert("c", d("_id", 100, "n", 4))
	s.insert("other", d("_id", 3))
	s.create("new_collated", "viewOn", "c", "pipeline", a(), "collation", d("locale", "fr", "strength", 1))
}

func viewsOnViewsSetup(s *site) {
	s.insert("c", d("_id", 1))
	s.create("z1", "viewOn", "c", "pipeline", a(d("$match", d("a", 1))))
	s.create("a2", "viewOn", "z1", "pipeline", a(d("$match", d("b", 1))))
	s.create("m3", "viewOn", "a2", "pipeline", a(unionWith("z1", d("coll", "z1", "pipeline", a()))))
}

func viewsOnViewsChange(s *site) {
	s.create("b4", "viewOn", "m3", "pipeline", a())
	s.drop("z1")
	s.create("z1", "viewOn", "c", "pipeline", a(d("$match", d("other", 1))))
}

func viewsChangedChange(s *site) {
	s.collMod("v", "viewOn", "c", "pipeline", a(d("$match", d("n", 0))))
	s.collMod("plain", "viewOn", "other", "pipeline", a(d("$match", d())))
	s.drop("joined")
	s.create("joined", "viewOn", "v", "pipeline", a())
	s.drop("system_like")
}

func viewsDroppedChange(s *site) {
	s.drop("a2")
	s.drop("m3")
	s.drop("z1")
	s.in("db2").create("v", "viewOn", "c", "pipeline", a())
	s.in("db2").drop("system.views")
	s.in("db3").insert("c", d("_id", 1))
	s.in("db3").create("v", "viewOn", "c", "pipeline", a())
	check(s.in("db3").db().Drop(s.ctx))
}

func viewBecomesChange(s *site) {
	s.drop("v")
	s.insert("v", d("_id", "a document now"))
	s.drop("collated")
	s.drop("c")
	s.create("c", "viewOn", "v", "pipeline", a())
	s.drop("plain")
	s.create("plain", "capped", true, "size", 4096)
}

func viewOfSeriesSetup(s *site) {
	s.series("ts", "metaField", "m")
	s.insert("ts", d("t", at(0), "m", 1, "v", 1))
	s.create("v", "viewOn", "ts", "pipeline", a(d("$match", d("m", 1))))
}

func viewOfSeriesChange(s *site) {
	s.create("w", "viewOn", "ts", "pipeline", a(d("$project", d("v", 1))))
	s.insert("ts", d("t", at(1), "m", 1, "v", 2))
}
