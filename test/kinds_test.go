package test

import (
	"bytes"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// kindScenarios hold the kinds of collections and what can be set on them.
func kindScenarios() []scenario {
	return []scenario{
		{name: "empty_collections", setup: emptySetup, change: emptyChange},
		{name: "odd_collection_names", setup: oddCollectionsSetup, change: oddCollectionsChange},
		{name: "clustered", since: "6.0", setup: clusteredSetup, change: clusteredChange},
		{name: "clustered_every_id", since: "6.0", setup: clusteredIDsSetup, change: clusteredIDsChange},
		{name: "clustered_ttl", since: "6.0", setup: clusteredTTLSetup, change: clusteredTTLChange},
		{name: "validators", setup: validatorsSetup, change: validatorsChange},
		{name: "validator_changes", setup: validatorsSetup, change: validatorChangesChange},
		{name: "collation_default", setup: collationSetup, change: collationChange},
		{name: "collation_ids", setup: collationIDsSetup, change: collationIDsChange},
		{name: "pre_images", since: "6.0", setup: preImagesSetup, change: preImagesChange},
		{name: "storage_options", setup: storageSetup, change: storageChange},
		{name: "auto_index_id", setup: autoIndexIDSetup, change: autoIndexIDChange},
		{name: "system_js", setup: systemJSSetup, change: systemJSChange},
		{name: "queryable_encryption", since: "6.0", alike: true, setup: encryptedSetup, change: encryptedChange},
		{name: "no_documents_left", setup: emptiedSetup, change: emptiedChange},
	}
}

func emptySetup(s *site) {
	s.create("empty")
	s.create("empty_with_index")
	s.index("empty_with_index", d("a", 1), "unique", true)
	s.in("db2").create("empty")
	s.create("later_filled")
}

func emptyChange(s *site) {
	s.create("empty_too")
	s.create("empty_too_with_index")
	s.index("empty_too_with_index", d("a", 1), "unique", true)
	s.in("db3").create("empty")
	s.insert("later_filled", d("_id", 1))
}

func oddCollectionsSetup(s *site) {
	for i, n := range []string{"a.b.c", "with space", "ünï 日本", "_x", "a*b?", "quote\"'", "back\\slash", "1", "a..b",
		"ends.", "UPPER", "upper", "system", "buckets", "fs.files"} {
		s.insert(n, d("_id", 1, "n", i))
		s.index(n, d("n", 1))
	}
}

func oddCollectionsChange(s *site) {
	for _, n := range []string{"a.b.c", "with space", "ünï 日本", "a*b?", "back\\slash", "ends.", "UPPER"} {
		s.insert(n, d("_id", 2))
		s.set(n, 1, d("$set", d("x", 1)))
		s.index(n, d("x", -1))
	}
	s.insert("new name, too", d("_id", 1))
	s.insert("another.name.*", d("_id", 1))
	s.drop("a..b")
	s.rename(s.ns("quote\"'"), s.ns("quoted `x`"))
}

func clusteredSetup(s *site) {
	s.create("c", "clusteredIndex", d("key", d("_id", 1), "unique", true, "name", "clustered by id"))
	s.create("secondary", "clusteredIndex", d("key", d("_id", 1), "unique", true))
	s.index("secondary", d("n", 1))
	s.index("secondary", d("u", 1), "unique", true)
	s.fill("c", 2000, func(i int) bson.D { return d("_id", fmt.Sprintf("%x", i*7919), "n", i) })
	s.fill("secondary", 100, func(i int) bson.D { return d("_id", i, "n", i, "u", i) })
}

func clusteredChange(s *site) {
	s.fillFrom("c", 2000, 2500, func(i int) bson.D { return d("_id", fmt.Sprintf("%x", i*7919), "n", i) })
	s.update("c", d("n", d("$mod", a(3, 0))), d("$set", d("x", 1)), "multi", true)
	s.remove("c", d("n", d("$mod", a(5, 0))))
	s.update("secondary", d("_id", 3), d("$set", d("u", 1000)))
	s.create("new", "clusteredIndex", d("key", d("_id", 1), "unique", true))
	s.insert("new", d("_id", "x"), d("_id", 5))
	s.index("new", d("a", 1))
}

func clusteredIDsSetup(s *site) {
	s.create("c", "clusteredIndex", d("key", d("_id", 1), "unique", true))
	for i, id := range ids() {
		s.insert("c", d("_id", id, "i", i))
	}
}

func clusteredIDsChange(s *site) {
	for i, id := range ids() {
		at := d("_id", d("$eq", id))
		switch i % 3 {
		case 0:
			s.update("c", at, d("$set", d("x", i)))
		case 1:
			s.remove("c", at)
		case 2:
			s.update("c", at, d("replaced", i))
		}
	}
}

func clusteredTTLSetup(s *site) {
	s.create("c", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 3600)
	s.create("changed", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 3600)
	s.insert("c", d("_id", bson.NewDateTimeFromTime(time.Unix(0, 0))), d("_id", bson.NewDateTimeFromTime(time.Now())),
		d("_id", 1))
}

func clusteredTTLChange(s *site) {
	s.insert("c", d("_id", bson.NewDateTimeFromTime(time.Unix(1000, 0))))
	s.collMod("changed", "expireAfterSeconds", 7200)
	s.collMod("changed", "expireAfterSeconds", "off")
	s.collMod("c", "expireAfterSeconds", 1800)
	s.create("new", "clusteredIndex", d("key", d("_id", 1), "unique", true), "expireAfterSeconds", 60)
	s.insert("new", d("_id", bson.NewDateTimeFromTime(time.Unix(2000, 0))))
}

// cipher is what a client sends in place of a value: a binary of the subtype of
// encryption, n of which tells from others. Servers do not look into it.
func cipher(n int) bson.Binary {
	return bson.Binary{Subtype: 6, Data: append([]byte{14}, fmt.Sprintf("%064d", n)...)}
}

// tag is what a server adds for a value that can be asked for.
func tag(n int) bson.Binary { return bson.Binary{Data: fmt.Appendf(nil, "%032d", n)} }

// encrypted makes a collection with queryable encryption and those of its metadata, as
// a client does.
func (s *site) encrypted(coll string) {
	key := bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	fields := a(d("keyId", key, "path", "ssn", "bsonType", "string", "queries",
		d("queryType", "equality", "contention", int64(4))))
	state := a("esc", "ecoc")
	if shared.sourceVer.AtLeast(7, 0) {
		fields = append(fields, d("keyId", bson.Binary{Subtype: 4, Data: bytes.Repeat([]byte{1}, 16)}, "path", "age",
			"bsonType", "int",
			"queries", d("queryType", "rangePreview", "min", 0, "max", 100, "sparsity", int64(1), "contention", int64(0))))
	} else {
		state = append(state, "ecc")
	}
	for _, name := range state {
		s.create(fmt.Sprintf("enxcol_.%s.%s", coll, name), "clusteredIndex", d("key", d("_id", 1), "unique", true))
	}
	s.create(coll, "encryptedFields", d("fields", fields))
	s.index(coll, d("__safeContent__", 1))
}

// encryptedDocs writes what an insert through the server's encryption leaves.
func (s *site) encryptedDocs(coll string, from, to int) {
	for i := from; i < to; i++ {
		s.bypass(coll, d("_id", i, "ssn", cipher(i), "age", cipher(i+1000), "open", i, "__safeContent__",
			a(tag(i), tag(i+1000))))
		s.insert("enxcol_."+coll+".esc", d("_id", tag(i)))
		s.insert("enxcol_."+coll+".ecoc", d("_id", i, "fieldName", "ssn", "value", tag(i)))
	}
}

func encryptedSetup(s *site) {
	s.encrypted("c")
	s.encryptedDocs("c", 0, 20)
}

func encryptedChange(s *site) {
	s.encrypted("new")
	s.encryptedDocs("new", 0, 3)
	s.encryptedDocs("c", 20, 30)
	write := func(id int, u any) { // as the server does when a client's update has encrypted values
		s.run(d("update", "c", "updates", a(d("q", d("_id", id), "u", u)), "bypassDocumentValidation", true))
	}
	write(1, d("$set", d("ssn", cipher(5001)), "$push", d("__safeContent__", tag(5001))))
	write(1, d("$pull", d("__safeContent__", tag(1))))
	write(2, a(d("$set", d("ssn", cipher(5002), "__safeContent__", a(tag(5002))))))
	write(3, d("_id", 3, "ssn", cipher(5003), "__safeContent__", a(tag(5003)), "replaced", true))
	write(4, d("$unset", d("ssn", 1, "__safeContent__", 1)))
	write(5, d("$set", d("open", "changed")))
	s.remove("c", d("_id", 6))
	s.collMod("c", "validator", d("open", d("$exists", true)))
	// A compaction of the metadata: a rename, a new collection, deletes, a drop.
	s.rename(s.ns("enxcol_.c.ecoc"), s.ns("enxcol_.c.ecoc.compact"))
	s.create("enxcol_.c.ecoc", "clusteredIndex", d("key", d("_id", 1), "unique", true))
	s.remove("enxcol_.c.esc", d("_id", d("$in", a(tag(1), tag(2)))))
	s.drop("enxcol_.c.ecoc.compact")
}

// Documents that a validator refuses, as an older application or one with
// bypassDocumentValidation leaves them.
func validatorsSetup(s *site) {
	schema := d("$jsonSchema", d("bsonType", "object", "required", a("n"), "properties",
		d("n", d("bsonType", "int", "minimum", 0))))
	for _, v := range []struct{ name, level, action string }{
		{"strict", "strict", "error"}, {"moderate", "moderate", "error"}, {"warn", "strict", "warn"}, {"off", "off", "error"},
	} {
		s.create(v.name, "validator", schema, "validationLevel", v.level, "validationAction", v.action)
		s.insert(v.name, d("_id", 1, "n", 1))
		s.bypass(v.name, d("_id", 2, "n", "violates"), d("_id", 3))
	}
	s.create("query", "validator", d("$or", a(d("a", d("$exists", true)), d("b", d("$gt", 5)))))
	s.create("expression", "validator", d("$expr", d("$lt", a("$low", "$high"))))
	s.bypass("query", d("_id", 1, "c", 1))
	s.insert("expression", d("_id", 1, "low", 1, "high", 2))
	s.bypass("expression", d("_id", 2, "low", 3, "high", 2))
}

// bypass inserts past the validator.
func (s *site) bypass(coll string, docs ...any) {
	s.run(d("insert", coll, "documents", bson.A(docs), "bypassDocumentValidation", true))
}

func validatorsChange(s *site) {
	for _, name := range []string{"strict", "moderate", "warn", "off"} {
		s.bypass(name, d("_id", 4, "n", -1))
		s.insert(name, d("_id", 5, "n", 5))
		s.run(d("update", name, "updates", a(
			d("q", d("_id", 1), "u", d("$set", d("n", "no longer valid"))),
			d("q", d("_id", 2), "u", d("$set", d("other", 1))),
			d("q", d("_id", 3), "u", d("still", "none")),
			d("q", d("_id", 6), "u", d("$set", d("n", -6)), "upsert", true),
		), "bypassDocumentValidation", true))
	}
	s.insert("off", d("_id", 7, "n", "not checked"))
	s.set("moderate", 2, d("$set", d("other", "may stay invalid")))
	s.bypass("query", d("_id", 2, "b", 1))
	s.bypass("expression", d("_id", 3, "low", 3, "high", 2))
}

func validatorChangesChange(s *site) {
	s.collMod("strict", "validator", d("n", d("$type", "string")))
	s.insert("strict", d("_id", 10, "n", "valid now"))
	s.collMod("strict", "validationLevel", "moderate")
	s.collMod("moderate", "validator", d())
	s.insert("moderate", d("_id", 10, "x", 1))
	s.collMod("warn", "validationAction", "error", "validationLevel", "off")
	s.collMod("off", "validationLevel", "strict", "validationAction", "warn", "validator", d("a.b", d("$gt", 1.0)))
	s.collMod("query", "validator", d("a", 1))
	s.create("new", "validator", d("a", d("$type", "int")), "validationAction", "warn")
	s.insert("new", d("_id", 1, "a", "x"))
	s.drop("expression")
	s.create("expression", "validator", d("b", 1))
	s.bypass("expression", d("_id", 1))
}

func collationSetup(s *site) {
	s.create("c", "collation", d("locale", "en", "strength", 2))
	s.create("fr", "collation", d("locale", "fr", "backwards", true, "numericOrdering", true, "caseFirst", "upper"))
	s.create("simple", "collation", d("locale", "simple"))
	s.index("c", d("name", 1))
	s.index("c", d("name", -1), "collation", d("locale", "simple"), "name", "simple")
	s.index("c", d("name", "hashed"), "name", "hashed", "collation", d("locale", "simple"))
	s.index("c", d("u", 1), "unique", true)
	s.index("fr", d("name", 1), "collation", d("locale", "de", "strength", 1))
	s.fill("c", 50,
		func(i int) bson.D { return d("_id", i, "name", fmt.Sprintf("Name%d", i), "u", fmt.Sprintf("u%d", i)) })
	s.insert("fr", d("_id", "a10"), d("_id", "a9"))
}

func collationChange(s *site) {
	s.update("c", d("name", "NAME7"), d("$set", d("x", 1)))
	s.set("c", 7, d("$set", d("u", "U7")))
	s.index("c", d("later", 1))
	s.index("c", d("later", 1), "name", "later simple", "collation", d("locale", "simple"))
	s.create("new", "collation", d("locale", "sv", "strength", 1))
	s.insert("new", d("_id", "ä"), d("_id", "b"))
	s.index("new", d("x", 1))
	s.set("fr", "a10", d("$set", d("x", 1)))
}

// In a collection that ignores case, ids of different bytes are the same.
func collationIDsSetup(s *site) {
	s.create("c", "collation", d("locale", "en", "strength", 2))
	for i := range 20 {
		s.insert("c", d("_id", fmt.Sprintf("Key%d", i), "n", i))
	}
	s.insert("c", d("_id", d("k", "Doc")), d("_id", d("k", "Doc2")))
}

func collationIDsChange(s *site) {
	for i := range 20 {
		upper, lower := fmt.Sprintf("KEY%d", i), fmt.Sprintf("key%d", i)
		switch i % 4 {
		case 0:
			s.set("c", upper, d("$set", d("x", i)))
		case 1:
			s.remove("c", d("_id", upper))
			s.insert("c", d("_id", lower, "again", i))
		case 2:
			s.remove("c", d("_id", lower))
			s.insert("c", d("_id", upper))
			s.set("c", lower, d("$set", d("x", i)))
			s.remove("c", d("_id", upper))
			s.insert("c", d("_id", lower))
		case 3:
			s.set("c", lower, d("whole", i))
		}
	}
	s.set("c", d("k", "DOC"), d("$set", d("x", 1)))
	s.remove("c", d("_id", d("k", "doc2")))
	s.insert("c", d("_id", d("k", "dOC2")))
}

func preImagesSetup(s *site) {
	s.create("on", "changeStreamPreAndPostImages", d("enabled", true))
	s.create("off", "changeStreamPreAndPostImages", d("enabled", false))
	s.create("turned_on")
	s.create("turned_off", "changeStreamPreAndPostImages", d("enabled", true))
	for _, c := range []string{"on", "off", "turned_on", "turned_off"} {
		s.insert(c, d("_id", 1, "n", 1))
	}
}

func preImagesChange(s *site) {
	s.collMod("turned_on", "changeStreamPreAndPostImages", d("enabled", true))
	s.collMod("turned_off", "changeStreamPreAndPostImages", d("enabled", false))
	s.create("new", "changeStreamPreAndPostImages", d("enabled", true))
	for _, c := range []string{"on", "off", "turned_on", "turned_off"} {
		s.set(c, 1, d("$inc", d("n", 1)))
		s.insert(c, d("_id", 2))
		s.remove(c, d("_id", 2))
	}
}

func storageSetup(s *site) {
	engine := d("wiredTiger", d("configString", "block_compressor=zlib"))
	s.create("c", "storageEngine", engine)
	s.create("defaults", "indexOptionDefaults",
		d("storageEngine", d("wiredTiger", d("configString", "prefix_compression=false"))))
	s.index("c", d("a", 1), "storageEngine", d("wiredTiger", d("configString", "prefix_compression=false")))
	s.insert("c", d("_id", 1))
}

func storageChange(s *site) {
	s.create("new", "storageEngine", d("wiredTiger", d("configString", "block_compressor=none")))
	s.index("new", d("a", 1), "storageEngine", d("wiredTiger", d("configString", "block_compressor=zlib")))
	s.insert("new", d("_id", 1))
}

// An option that says nothing any more, which newer servers keep all the same.
func autoIndexIDSetup(s *site) {
	s.create("c", "autoIndexId", true)
	s.insert("c", d("_id", 1))
}

func autoIndexIDChange(s *site) {
	s.create("new", "autoIndexId", true)
	s.insert("new", d("_id", 1))
}

func systemJSSetup(s *site) {
	s.insert("system.js", d("_id", "f", "value", bson.JavaScript("function() { return 1 }")))
	s.insert("c", d("_id", 1))
}

func systemJSChange(s *site) {
	s.insert("system.js", d("_id", "g", "value", bson.JavaScript("function() { return 2 }")))
	s.set("system.js", "f", d("$set", d("value", bson.JavaScript("function() { return 3 }"))))
}

func emptiedSetup(s *site) {
	s.fill("c", 300, func(i int) bson.D { return d("_id", i) })
	s.index("c", d("a", 1))
	s.fill("dropped", 300, func(i int) bson.D { return d("_id", i) })
}

func emptiedChange(s *site) {
	s.remove("c", d())
	s.drop("dropped")
}

// cappedScenarios hold collections whose order is content.
func cappedScenarios() []scenario {
	return []scenario{
		{name: "capped_by_size", setup: cappedSizeSetup, change: cappedSizeChange},
		{name: "capped_by_count", setup: cappedCountSetup, change: cappedCountChange},
		{name: "capped_in_order", setup: cappedOrderSetup, change: cappedOrderChange},
		{name: "capped_updates", setup: cappedUpdatesSetup, change: cappedUpdatesChange},
		{name: "capped_mixed_sizes", setup: cappedMixedSetup, change: cappedMixedChange},
		{name: "capped_resized", since: "6.0", setup: cappedCountSetup, change: cappedResizeChange},
		{name: "convert_to_capped", setup: manySmall, change: convertChange},
		{name: "convert_clustered_to_capped", since: "6.0", setup: convertClusteredSetup, change: convertClusteredChange},
		{name: "clone_as_capped", setup: manySmall, change: cloneCappedChange},
	}
}

func pad(n int) string { return string(make([]byte, n)) }

func cappedSizeSetup(s *site) {
	s.create("c", "capped", true, "size", 64<<10)
	s.fill("c", 300, func(i int) bson.D { return d("_id", i, "pad", pad(1000)) })
}

func cappedSizeChange(s *site) {
	s.fillFrom("c", 300, 700, func(i int) bson.D { return d("_id", i, "pad", pad(1000)) })
	s.create("new", "capped", true, "size", 16<<10)
	s.fill("new", 100, func(i int) bson.D { return d("_id", i, "pad", pad(500)) })
}

func cappedCountSetup(s *site) {
	s.create("c", "capped", true, "size", 1<<20, "max", 50)
	s.fill("c", 120, func(i int) bson.D { return d("_id", i) })
}

func cappedCountChange(s *site) {
	s.fillFrom("c", 120, 155, func(i int) bson.D { return d("_id", i) })
	s.insert("c", d("_id", 5), d("_id", 4)) // ids that have rolled away
	s.create("new", "capped", true, "size", 1<<20, "max", 3)
	s.fill("new", 10, func(i int) bson.D { return d("_id", i) })
}

func cappedOrderSetup(s *site) {
	s.create("c", "capped", true, "size", 1<<20)
	s.index("c", d("n", 1))
	s.fill("c", 500, func(i int) bson.D { return d("_id", (i*7919)%10007, "n", i) })
}

func cappedOrderChange(s *site) {
	for i := range 20 {
		s.fillFrom("c", 500+i*10, 510+i*10, func(i int) bson.D { return d("_id", (i*7919)%10007, "n", i) })
		s.insert("c", d("_id", fmt.Sprint(i)))
	}
}

func cappedUpdatesSetup(s *site) {
	s.create("c", "capped", true, "size", 1<<20, "max", 40)
	s.fill("c", 60, func(i int) bson.D { return d("_id", i, "n", 0, "v", a(1, 2)) })
}

func cappedUpdatesChange(s *site) {
	s.update("c", d("n", 0), d("$inc", d("n", 1)), "multi", true)
	s.set("c", 30, d("$set", d("v.0", 5)))
	s.fillFrom("c", 60, 70, func(i int) bson.D { return d("_id", i, "n", 0) })
	s.set("c", 40, d("$set", d("n", 9)))
	s.set("c", 69, d("$set", d("n", 9)))
}

func cappedMixedSetup(s *site) {
	s.create("c", "capped", true, "size", 40<<10)
	s.fill("c", 200, func(i int) bson.D { return d("_id", i, "pad", pad(i*37%2000)) })
}

func cappedMixedChange(s *site) {
	s.fillFrom("c", 200, 450, func(i int) bson.D { return d("_id", i, "pad", pad(i*91%3000)) })
}

func cappedResizeChange(s *site) {
	s.collMod("c", "cappedMax", 30)
	s.insert("c", d("_id", 500))
	s.collMod("c", "cappedSize", 4096, "cappedMax", 20)
	s.fillFrom("c", 501, 530, func(i int) bson.D { return d("_id", i) })
}

func manySmall(s *site) {
	s.fill("c", 300, func(i int) bson.D { return d("_id", (i*7919)%10007, "pad", pad(100)) })
	s.index("c", d("pad", 1))
}

func convertChange(s *site) {
	s.insert("c", d("_id", "before"))
	s.run(d("convertToCapped", "c", "size", 8192))
	s.insert("c", d("_id", "after"))
	s.fill("c", 30, func(i int) bson.D { return d("_id", fmt.Sprint(i), "pad", pad(100)) })
	s.index("c", d("x", 1))
}

// A server makes clustered capped collections in this way only.
func convertClusteredSetup(s *site) {
	for _, c := range []string{"c", "later"} {
		s.create(c, "clusteredIndex", d("key", d("_id", 1), "unique", true, "name", "clustered"))
		s.fill(c, 100, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
	}
	s.run(d("convertToCapped", "c", "size", 8192))
	s.fillFrom("c", 100, 140, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
}

func convertClusteredChange(s *site) {
	s.run(d("convertToCapped", "later", "size", 8192))
	for _, c := range []string{"c", "later"} {
		s.fillFrom(c, 140, 190, func(i int) bson.D { return d("_id", i, "pad", pad(100)) })
		s.set(c, 185, d("$set", d("n", 1)))
	}
}

func cloneCappedChange(s *site) {
	s.run(d("cloneCollectionAsCapped", "c", "toCollection", "clone", "size", 16384))
	s.insert("clone", d("_id", "after"))
	s.insert("c", d("_id", "after"))
}
