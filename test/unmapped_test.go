package test

import (
	"bytes"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// explained: verify is to say what differs as it has to.
func (sc scenario) explained() bool {
	if sc.name == "skip_ttl_settings" { // verify knows the settings of now alone
		return false
	}
	return sc.skip != nil || sc.softDelete != nil || sc.history != nil || sc.leavesOut
}

// unmappedScenarios have documents that the rules cannot map, and jobs that go on
// without them.
func unmappedScenarios() []scenario {
	number := []string{`DB.c={"convert":{"n":{"to":"int","otherwise":"fail"}},"rename":{"s":"status"}}`}
	both := []string{`DB.*={"convert":{"n":{"to":"int","otherwise":"fail"}},"drop":["gone"]}`}
	list := []scenario{
		{name: "unmapped", fields: number, setup: unmappedSetup, change: unmappedChange},
		{name: "unmapped_whole_documents", fields: number, setup: unmappedSetup, change: unmappedWhole},
		{name: "unmapped_gone_and_back", fields: number, setup: unmappedSetup, change: unmappedBack},
		{name: "unmapped_transactions", fields: number, setup: unmappedSetup, change: unmappedTxn},
		{name: "unmapped_all", fields: number, setup: unmappedAll, change: unmappedMended},
		{name: "unmapped_and_filter", fields: number, filter: []string{`DB.c={"s":{"$in":["open","paid"]}}`},
			setup: unmappedSetup, change: unmappedFilter},
		{name: "unmapped_soft_delete", fields: number, softDelete: []string{"DB.c=deletedAt"}, setup: unmappedSetup,
			change: unmappedChange},
		{name: "unmapped_paths", fields: []string{`DB.c={"from":{"first":"o.a"}}`}, setup: unmappedSetup,
			change: unmappedPaths},
		{name: "unmapped_renamed", fields: both, setup: unmappedSetup, change: unmappedRenamed},
		{name: "unmapped_renamed_to_other_rules", fields: number, setup: unmappedSetup, change: unmappedRenamed},
		{name: "unmapped_renamed_on_the_way", fields: number, rename: []string{"DB.c=DB-x.other"}, setup: unmappedSetup,
			change: unmappedChange},
		{name: "unmapped_dropped", fields: number, setup: unmappedSetup, change: unmappedDropped},
		{name: "unmapped_large", fields: number, setup: unmappedLargeSetup, change: unmappedLarge},
		{name: "unmapped_unique_keys", fields: []string{`DB.c={"convert":{"n":{"to":"int","otherwise":"fail"}}}`},
			setup: unmappedUniqueSetup, change: unmappedUnique},
	}
	for i := range list {
		sc := &list[i]
		sc.leavesOut, sc.check = true, unmappedCheck(sc)
	}
	return list
}

// Of every ten documents one is no number, and one a number in a text.
func unmappedSetup(s *site) {
	s.fill("c", 60, func(i int) bson.D {
		return d("_id", i, "s", []string{"open", "closed", "paid"}[i%3], "n", []any{i, "x", fmt.Sprint(i)}[min(2, (i+9)%10)],
			"o", d("a", i), "gone", 1)
	})
	s.index("c", d("n", 1))
}

func unmappedAll(s *site) {
	s.fill("c", 300, func(i int) bson.D { return d("_id", i, "n", "x", "pad", bytes.Repeat([]byte{1}, 1000)) })
}

func unmappedMended(s *site) {
	s.update("c", d("_id", d("$lt", 290)), d("$set", d("n", "17")), "multi", true)
}

func unmappedChange(s *site) {
	for i := range 60 {
		switch i % 10 {
		case 0: // a number no more
			s.set("c", i, d("$set", d("n", "y")))
			s.set("c", i, d("$set", d("z", i)))
		case 1: // one now, and then not, or the other way
			s.set("c", i, d("$set", d("n", []any{"y", 5}[i/10%2])))
			s.set("c", i, d("$set", d("n", []any{"y", 5}[(i/10+1)%2], "o.b", 1)))
		case 2:
			s.remove("c", d("_id", i))
		case 3:
			s.set("c", i, d("$set", d("n", d("a", 1))))
			s.set("c", i, d("$unset", d("n", 1)))
		case 4: // never its number
			s.set("c", i, d("$set", d("o.b", 1), "$push", d("v", 1)))
		case 5:
			s.set("c", i, d("$set", d("n", "y")))
			s.remove("c", d("_id", i))
		case 6:
			s.set("c", i, a(d("$set", d("n", d("$concat", a("$s", "x"))))))
		case 9: // it could be mapped
			s.remove("c", d("_id", i))
		default:
			s.set("c", i, d("$set", d("s", "other", "n", fmt.Sprint(i*2))))
		}
	}
	s.set("c", 1, d("$set", d("z", "of no concern")))
	s.remove("c", d("_id", 21))
	s.insert("c", d("_id", 100, "n", "x"), d("_id", 101, "n", 1), d("_id", 102, "n", "x"), d("_id", 103, "n", "x"))
	s.set("c", 102, d("$set", d("n", 2)))
	s.remove("c", d("_id", 103))
}

func unmappedWhole(s *site) {
	for i := range 60 {
		switch i % 4 {
		case 0:
			s.update("c", d("_id", i), d("_id", i, "n", "x", "s", "whole"))
		case 1:
			s.update("c", d("_id", i), d("_id", i, "n", i, "s", "whole"))
		case 2:
			s.update("c", d("_id", i), d("_id", i, "n", "x"))
			s.update("c", d("_id", i), d("_id", i, "n", int64(i), "other", 1))
		}
	}
	s.update("c", d("_id", 200), d("_id", 200, "n", "x"), "upsert", true)
	s.update("c", d("_id", 201), d("$set", d("n", 1)), "upsert", true)
	s.update("c", d("_id", 202), d("$set", d("n", "x")), "upsert", true)
	s.update("c", d("_id", 202), d("$set", d("n", "7")), "upsert", true)
}

func unmappedBack(s *site) {
	for i := range 60 {
		s.remove("c", d("_id", i))
		s.insert("c", d("_id", i, "n", []any{"x", i}[i%2]))
		if i%3 == 0 {
			s.remove("c", d("_id", i))
			s.insert("c", d("_id", []any{i, int64(i), float64(i)}[i/3%3], "n", []any{"x", i}[i/3%2]))
		}
	}
}

func unmappedTxn(s *site) {
	for i := range 6 {
		s.transaction(func(s *site) {
			s.set("c", 10*i, d("$set", d("n", "x")))
			s.set("c", 10*i+1, d("$set", d("n", 1)))
			s.set("c", 10*i+2, d("$set", d("n", "x")))
			s.set("c", 10*i+2, d("$set", d("n", 2)))
			s.remove("c", d("_id", 10*i+3))
			s.insert("c", d("_id", 10*i+3, "n", "x"), d("_id", 300+i, "n", "x"))
			s.set("c", 300+i, d("$set", d("n", []any{"y", 1}[i%2])))
		})
	}
}

func unmappedFilter(s *site) {
	for i := range 60 {
		s.set("c", i, d("$set", d("s", []string{"open", "closed", "paid"}[(i+1)%3])))
		if i%5 < 2 {
			s.set("c", i, d("$set", d("n", []any{"x", 4}[i/5%2])))
		}
		if i%7 == 0 {
			s.set("c", i, d("$set", d("s", "paid", "n", "x")))
			s.set("c", i, d("$set", d("s", "closed")))
		}
		if i%11 == 0 {
			s.update("c", d("_id", i), d("_id", i, "s", "closed", "n", "x"))
			s.set("c", i, d("$set", d("s", "open")))
		}
	}
}

func unmappedPaths(s *site) {
	for i := range 60 {
		switch i % 4 {
		case 0:
			s.set("c", i, d("$set", d("o", a(d("a", 1), d("a", 2)))))
		case 1:
			s.set("c", i, d("$set", d("o", a())))
			s.set("c", i, d("$set", d("o", d("a", "back"))))
		case 2:
			s.set("c", i, d("$set", d("o", a(1, 2))))
			s.set("c", i, d("$push", d("o", 3)))
			s.set("c", i, d("$set", d("o.1", 3)))
		}
	}
}

func unmappedRenamed(s *site) {
	s.set("c", 2, d("$set", d("n", "before")))
	s.rename(s.ns("c"), s.ns("e"))
	for i := range 60 {
		if i%5 < 2 {
			s.set("e", i, d("$set", d("n", []any{"x", i}[i%2])))
		}
	}
	s.insert("c", d("_id", 1, "n", "x"), d("_id", 2, "n", 2))
	s.set("c", 1, d("$set", d("n", 1)))
	s.remove("e", d("_id", 11))
}

func unmappedDropped(s *site) {
	s.set("c", 2, d("$set", d("n", "before")))
	s.drop("c")
	s.insert("c", d("_id", 1, "n", "x"), d("_id", 2, "n", 2), d("_id", 3, "n", 2))
	s.set("c", 2, d("$set", d("n", "x")))
	s.set("c", 1, d("$set", d("o", 1)))
	s.drop("c")
	s.insert("c", d("_id", 1, "n", "x"), d("_id", 2, "n", 2), d("_id", 3, "n", "x"))
	s.set("c", 3, d("$set", d("n", 1)))
}

func unmappedLargeSetup(s *site) {
	for i := range 4 {
		s.insert("c", d("_id", i, "n", "x", "pad", make([]byte, 16_000_000)))
	}
}

func unmappedLarge(s *site) {
	s.set("c", 1, d("$set", d("n", 1)))
	s.set("c", 2, d("$set", d("o", 1)))
	s.set("c", 3, d("$set", d("n", 1)))
	s.set("c", 3, d("$set", d("n", "x")))
}

func unmappedUniqueSetup(s *site) {
	s.index("c", d("u", 1), "unique", true)
	s.fill("c", 30, func(i int) bson.D { return d("_id", i, "n", []any{i, "x"}[i%2], "u", i) })
}

// What is left out holds no keys.
func unmappedUnique(s *site) {
	for i := range 15 {
		s.set("c", 2*i+1, d("$set", d("u", 100+i)))
		s.set("c", 2*i, d("$set", d("u", 2*i+1)))
		s.set("c", 2*i+1, d("$set", d("n", i, "u", 2*i)))
	}
	s.set("c", 3, d("$set", d("n", "x")))
	s.set("c", 3, d("$set", d("u", 200)))
	s.set("c", 5, d("$set", d("u", 2)))
}

// unmappedCheck: the dead letters are of those documents of the source that its own
// aggregation does not map, and hold them as they are.
func unmappedCheck(sc *scenario) func(source, target *site) {
	return func(source, target *site) {
		rules := func(list []string) (out []string) {
			for _, r := range list {
				out = append(out, string(bytes.ReplaceAll([]byte(r), []byte("DB"), []byte(source.base))))
			}
			return out
		}
		names := newNames(rules(sc.rename))
		want := map[string]bson.Raw{}
		for _, coll := range []string{"c", "e"} {
			ns := source.ns(coll)
			for _, doc := range source.unmapped(coll, Filters(rules(sc.filter))(ns), Mappings(rules(sc.fields))(ns)) {
				want[names.target(ns)+" "+doc.Lookup("_id").String()] = doc
			}
		}
		have := map[string]bool{}
		for _, l := range target.letters("unmapped") {
			key := l.NS + " " + l.ID.String()
			doc, ok := want[key]
			switch {
			case !ok:
				panic(fmt.Sprintf("a letter of %s, which can be mapped, or is not there", key))
			case l.Document != nil && !bytes.Equal(l.Document, doc):
				panic(fmt.Sprintf("the letter of %s holds\n%s\nwant\n%s", key, l.Document, doc))
			}
			have[key] = true
		}
		for key := range want {
			if !have[key] {
				panic(fmt.Sprintf("no letter of %s: %.200s", key, want[key]))
			}
		}
	}
}

// unmapped are the documents of a filter that stages do not give.
func (s *site) unmapped(coll string, filter bson.Raw, stages bson.A) (out []bson.Raw) {
	if stages == nil {
		return nil
	}
	if filter == nil {
		filter, _ = bson.Marshal(d())
	}
	find := func(stages bson.A) (docs []bson.Raw) {
		cur, err := s.coll(coll).Aggregate(s.ctx, append(bson.A{d("$match", filter)}, stages...))
		if err == nil {
			err = cur.All(s.ctx, &docs)
		}
		if err != nil {
			panic(err)
		}
		return docs
	}
	mapped := map[string]bool{}
	for _, doc := range find(stages) {
		mapped[doc.Lookup("_id").String()] = true
	}
	for _, doc := range find(nil) {
		if !mapped[doc.Lookup("_id").String()] {
			out = append(out, doc)
		}
	}
	return out
}

// letter is a dead letter as it is stored.
type letter struct {
	NS       string        `bson:"ns"`
	ID       bson.RawValue `bson:"documentId"`
	Document bson.Raw      `bson:"document"`
}

// letters are those of the scenario's own databases.
func (s *site) letters(state string) (out []letter) {
	cur, err := s.client.Database("millrace").Collection("deadletters").
		Find(s.ctx, d("state", state, "ns", d("$regex", "^"+s.base+"[-.]")))
	if err == nil {
		err = cur.All(s.ctx, &out)
	}
	if err != nil {
		panic(err)
	}
	return out
}
