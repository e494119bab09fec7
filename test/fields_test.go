package test

import (
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// fieldScenarios map fields. The server's own aggregation says what the target is to
// hold.
func fieldScenarios() []scenario {
	some :=
		[]string{`DB.c={"drop":["o.a","gone"],"rename":{"s":"status","tel":"phone"},"set":{"tenant":"a"},"mask":{"iban":"null"},"convert":{"n":{"to":"string","otherwise":"null"}}}`}
	return []scenario{
		{name: "fields_all_kinds", fields: some, setup: fieldsSetup, change: fieldsChange},
		{name: "fields_update_and_delete", fields: some, setup: rowsSetup, change: rowsInOutChange},
		{name: "fields_whole_documents", fields: some, setup: rowsSetup, change: rowsWholeChange},
		{name: "fields_gone_and_back", fields: some, setup: rowsSetup, change: rowsBackChange},
		{name: "fields_of_another_id_type", fields: some, setup: rowsSetup, change: rowsTypeChange},
		{name: "fields_transactions", fields: some, setup: rowsSetup, change: rowsTxnChange},
		{name: "fields_large", fields: []string{`DB.c={"from":{"copy":"s"},"drop":["o.a"]}`}, setup: rowsLargeSetup,
			change: rowsLargeChange},
		{name: "fields_arrays", fields: []string{`DB.c={"drop":["list.a"]}`}, setup: rowsArraySetup, change: rowsArrayChange},
		{name: "fields_from_others", fields: []string{`DB.c={"from":{"first":"n","second":"s"},"rename":{"n":"m","m":"n"}}`},
			setup: rowsSetup, change: rowsInOutChange},
		{name: "fields_unique_keys", fields: []string{`DB.c={"rename":{"s":"status"}}`}, setup: rowsUniqueSetup,
			change: rowsUniqueChange},
		{name: "fields_and_filter", fields: some, filter: []string{`DB.c={"s":{"$in":["open","paid"]}}`}, setup: rowsSetup,
			change: rowsInOutChange},
		{name: "fields_renamed", fields: []string{`DB.c={"drop":["n"]}`, `DB.d={"rename":{"n":"m"}}`}, setup: rowsSetup,
			change: rowsRenamedChange},
		{name: "fields_renamed_in", fields: some, exclude: []string{"DB.out*"}, setup: rowsSetup,
			change: rowsRenamedInChange},
		{name: "fields_renamed_on_the_way", fields: some, rename: []string{"DB.c=DB-x.other"}, setup: rowsSetup,
			change: rowsInOutChange},
		{name: "fields_dropped", fields: some, setup: rowsSetup, change: rowsDroppedChange},
		{name: "fields_indexes", fields: []string{`DB.c={"rename":{"s":"status"},"drop":["n"]}`}, setup: fieldsIndexSetup,
			change: fieldsIndexChange, check: fieldsIndexCheck},
		{name: "fields_dates_to_text",
			fields: []string{`DB.c={"convert":{"n":{"to":"string","otherwise":"keep"},"m":{"to":"string","otherwise":"null"}}}`},
			setup:  fieldsDatesSetup, change: fieldsDatesChange},
		{name: "fields_validator", fields: some, setup: fieldsValidatorSetup, change: rowsInOutChange},
	}
}

func fieldsSetup(s *site) {
	s.fill("c", 40, func(i int) bson.D {
		return d("_id", i, "tel", fmt.Sprint(i), "gone", i, "o", d("a", i, "b", i), "iban", "DE", "n", i, "v",
			a(1, d("a", 2)), "tenant", "source", "phone", "source")
	})
}

// fieldsDates are about the first and the last date that servers make a text of.
func fieldsDates() []bson.DateTime {
	return []bson.DateTime{math.MinInt64, -62167219200001, -62167219200000, 0, 253402300799999, 253402300800000,
		math.MaxInt64}
}

func fieldsDatesSetup(s *site) {
	dates := fieldsDates()
	s.fill("c", 2*len(dates), func(i int) bson.D {
		at := dates[i%len(dates)]
		return d("_id", i, "n", at, "m", at)
	})
}

func fieldsDatesChange(s *site) {
	dates := fieldsDates()
	for i, at := range dates {
		s.set("c", i, d("$set", d("m", dates[len(dates)-1-i], "n", 5)))
		s.set("c", i, d("$set", d("n", at)))
		s.insert("c", d("_id", 100+i, "n", at, "m", at))
	}
}

func fieldsChange(s *site) {
	for i := range 30 {
		switch i % 10 {
		case 0:
			s.set("c", i, d("$set", d("tel", "new", "o.a", 1, "o.c", 2)))
		case 1:
			s.set("c", i, d("$unset", d("tel", 1, "gone", 1)))
			s.set("c", i, d("$set", d("tel", "back", "last", i)))
		case 2:
			s.set("c", i, d("$rename", d("tel", "other")))
		case 3:
			s.set("c", i, d("$inc", d("n", 1), "$set", d("gone", "again", "phone", "of its own", "tenant", 5)))
		case 4:
			s.set("c", i, d("$set", d("iban", d("deep", a(1, 2)), "o", 5)))
			s.set("c", i, d("$set", d("o", d("a", d("b", 1), "z", 1))))
			s.set("c", i, d("$set", d("o.a.b", 2, "o.a.c", 2)))
		case 5:
			s.update("c", d("_id", i), d("_id", i, "n", a(1, 2), "tel", nil, "o", a(d("a", 1), d("b", 2))))
			s.set("c", i, d("$push", d("o", d("a", 2, "c", 3))))
		case 6:
			s.set("c", i, a(d("$set", d("tel", d("$concat", a("$iban", "x")))), d("$unset", "o")))
		case 7:
			s.remove("c", d("_id", i))
			s.insert("c", d("_id", i, "tenant", 1, "n", true, "s", 1))
		case 8:
			s.set("c", i, d("$set", d("o.deep.x", 1, "other.x", 1)))
		default:
			s.set("c", i, d("$set", d("v.1.a", 3, "v.5", 1, "z", 1), "$unset", d("o.b", 1)))
		}
	}
	s.update("c", d("_id", d("$gte", 30)), d("$set", d("gone", 1, "n", 5.5)), "multi", true)
}

func fieldsIndexSetup(s *site) {
	rowsSetup(s)
	s.index("c", d("s", 1, "o.a", -1))
	s.index("c", d("v", 1), "name", "byV")
}

func fieldsIndexChange(s *site) {
	s.index("c", d("n", 1, "s", 1), "name", "dropped")
	s.index("c", d("s", 1), "name", "partly", "partialFilterExpression", d("s", "open"))
	s.index("c", d("o.a", 1), "name", "later")
	s.collMod("c", "index", d("keyPattern", d("s", 1, "o.a", -1), "hidden", true))
	s.dropIndexes("c", "dropped")
	s.index("c", d("n", -1), "name", "dropped")
	s.dropIndexes("c", "byV")
}

// fieldsIndexCheck: indexes on mapped fields have their names there, or are left out.
func fieldsIndexCheck(_, target *site) {
	want := map[string]string{
		"_id_": "", "s_1_o.a_-1": `{"status": {"$numberInt":"1"},"o.a": {"$numberInt":"-1"}} hidden`,
		"partly": `{"status": {"$numberInt":"1"}} {"status": "open"}`, "later": `{"o.a": {"$numberInt":"1"}}`,
	}
	cur, err := target.coll("c").Indexes().List(target.ctx)
	var all []bson.Raw
	if err == nil {
		err = cur.All(target.ctx, &all)
	}
	check(err)
	for _, ix := range all {
		name := ix.Lookup("name").StringValue()
		got := ix.Lookup("key").String()
		if p, ok := ix.Lookup("partialFilterExpression").DocumentOK(); ok {
			got += " " + p.String()
		}
		if on, _ := ix.Lookup("hidden").BooleanOK(); on {
			got += " hidden"
		}
		if w, ok := want[name]; !ok || w != "" && w != got {
			fail("index %s of the target: %s, want %q", name, got, w)
		}
		delete(want, name)
	}
	if len(want) > 0 {
		fail("the target lacks indexes %v", want)
	}
}

func fieldsValidatorSetup(s *site) {
	s.create("c", "validator", d("s", d("$exists", true)), "validationAction", "warn")
	rowsSetup(s)
}
