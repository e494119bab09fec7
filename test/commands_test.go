package test

import (
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// command is one of a user that a server carries out in many steps. What it does is said
// by documents and collections, as the user sees it.
type command struct {
	name string
	run  func(*site)
	// effect makes of what setup has made what a target is to hold on which the command,
	// and what comes after it, had its effect without the operation that is skipped.
	effect func(s *site, skipped string)
	// limited: capped collections result, to which rules of documents cannot apply.
	limited bool
}

// commands are those of which the rules must judge what the user did.
func commands() []command {
	return []command{
		{name: "out", run: outRun, effect: outEffect},
		{name: "map_reduce", run: mapReduceRun, effect: mapReduceEffect},
		{name: "out_new", run: outNewRun, effect: outNewEffect},
		{name: "out_itself", run: outItselfRun, effect: outItselfEffect},
		{name: "move", run: moveRun, effect: moveEffect},
		{name: "move_over", run: moveOverRun, effect: moveOverEffect},
		{name: "to_capped", run: toCappedRun, effect: toCappedEffect, limited: true},
		{name: "clone_capped", run: cloneCappedRun, effect: cloneCappedEffect, limited: true},
	}
}

// commandScenarios are each command with each rule for operations, with marks, filters,
// other fields and histories, and with none.
func commandScenarios() (out []scenario) {
	ways := []string{wayChange, wayLate}
	for _, c := range commands() {
		add := func(rule string, sc scenario) {
			sc.name, sc.setup, sc.change, sc.only = "command_"+c.name+"_"+rule, commandSetup, c.run, ways
			sc.alone = strings.HasPrefix(c.name, "move") // which of two such renames a drop ends is not told
			out = append(out, sc)
		}
		add("plain", scenario{})
		for _, op := range []string{"insert", "update", "replace", "delete", "create", "drop", "rename", "createIndexes", "dropIndexes", "collMod"} {
			if documents := slices.Contains([]string{"insert", "update", "replace", "delete"}, op); documents && c.limited {
				continue
			}
			add("skip_"+op, scenario{skip: []string{"DB.*=" + op, "DB-x.*=" + op}, want: func(s *site) { c.effect(s, op) }})
		}
		if c.limited {
			continue
		}
		add("soft_delete", scenario{softDelete: []string{"DB.*=gone", "DB-x.*=gone"}})
		add("filter", scenario{filter: []string{`DB.*={"n":{"$gte":7}}`, `DB-x.*={"n":{"$gte":7}}`}})
		add("filter_and_soft_delete", scenario{filter: []string{`DB.*={"n":{"$gte":7}}`, `DB-x.*={"n":{"$gte":7}}`}, softDelete: []string{"DB.*=gone", "DB-x.*=gone"}})
		add("fields", scenario{fields: []string{`DB.*={"rename":{"n":"number"},"drop":["v"]}`, `DB-x.*={"rename":{"n":"number"},"drop":["v"]}`}})
		add("history", scenario{history: []string{"DB.*", "DB-x.*"}})
	}
	return out
}

// commandSetup makes collections whose documents overlap.
func commandSetup(s *site) {
	doc := func(v string) func(i int) bson.D { return func(i int) bson.D { return d("_id", i, "n", i, "v", v) } }
	s.fillFrom("c", 5, 15, doc("new"))
	s.fillFrom("o", 0, 10, doc("old"))
	s.index("o", d("n", 1))
	s.fillFrom("mr", 0, 4, func(i int) bson.D { return d("_id", float64(i), "value", -1.0) })
	s.fillFrom("m", 0, 10, doc("moves"))
	s.index("m", d("v", 1))
	s.in("x").fillFrom("t", 5, 15, doc("stands"))
}

func outRun(s *site) {
	s.aggregate("c", d("$out", "o"))
	afterOut(s, "o", "")
}

// afterOut goes on with a collection of the documents 5 to 14.
func afterOut(s *site, name, skipped string) {
	unless(skipped, "update", func() { s.update(name, d("_id", 7), d("$set", d("after", 1)), "multi", true) })
	unless(skipped, "insert", func() { s.insert(name, d("_id", 99, "n", 99)) })
	unless(skipped, "delete", func() { s.remove(name, d("_id", 12)) })
}

func unless(skipped, op string, do func()) {
	if skipped != op {
		do()
	}
}

func outEffect(s *site, skipped string) {
	write := func(id int) { s.update("o", d("_id", id), d("_id", id, "n", id, "v", "new"), "upsert", true) }
	for id := range 15 {
		switch {
		case id < 5:
			unless(skipped, "delete", func() { s.remove("o", d("_id", id)) })
		case id < 10:
			unless(skipped, "replace", func() { write(id) })
		default:
			unless(skipped, "insert", func() { write(id) })
		}
	}
	afterOut(s, "o", skipped)
}

func outNewRun(s *site) {
	s.aggregate("c", d("$out", "fresh"))
	afterOut(s, "fresh", "")
}

func outNewEffect(s *site, skipped string) {
	if skipped == "create" {
		return
	}
	s.create("fresh")
	unless(skipped, "insert", func() {
		s.fillFrom("fresh", 5, 15, func(i int) bson.D { return d("_id", i, "n", i, "v", "new") })
	})
	afterOut(s, "fresh", skipped)
}

func outItselfRun(s *site) {
	s.aggregate("o", d("$match", d("n", d("$gte", 5))), d("$out", "o"))
	afterOut(s, "o", "")
}

func outItselfEffect(s *site, skipped string) {
	unless(skipped, "delete", func() { s.remove("o", d("n", d("$lt", 5))) })
	afterOut(s, "o", skipped)
}

func mapReduceRun(s *site) {
	s.run(d("mapReduce", "c", "map", "function() { emit(this._id % 4, 1) }", "reduce", "function(k, v) { return Array.sum(v) }", "out", "mr", "query", d("_id", d("$ne", 8))))
	s.set("mr", 1.0, d("$set", d("after", 1)))
}

// mapReduceEffect: of the documents 5 to 14 without 8 the remainders by 4 are 0 (12), 1 (5,
// 9, 13), 2 (6, 10, 14) and 3 (7, 11).
func mapReduceEffect(s *site, skipped string) {
	unless(skipped, "replace", func() {
		for i, n := range []float64{1, 3, 3, 2} {
			s.update("mr", d("_id", float64(i)), d("_id", float64(i), "value", n))
		}
	})
	unless(skipped, "update", func() { s.set("mr", 1.0, d("$set", d("after", 1))) })
}

func moveRun(s *site) {
	s.rename(s.ns("m"), s.in("x").ns("moved"))
	afterMove(s.in("x"), "moved", "")
}

func afterMove(s *site, name, skipped string) {
	unless(skipped, "update", func() { s.set(name, 7, d("$set", d("after", 1))) })
	unless(skipped, "insert", func() { s.insert(name, d("_id", 99, "n", 99)) })
	unless(skipped, "delete", func() { s.remove(name, d("_id", 8)) })
}

func moveEffect(s *site, skipped string) {
	if skipped == "rename" {
		return
	}
	s.rename(s.ns("m"), s.in("x").ns("moved"))
	afterMove(s.in("x"), "moved", skipped)
}

func moveOverRun(s *site) {
	s.rename(s.ns("m"), s.in("x").ns("t"), "dropTarget", true)
	afterMove(s.in("x"), "t", "")
}

func moveOverEffect(s *site, skipped string) {
	if skipped == "rename" {
		return
	}
	s.rename(s.ns("m"), s.in("x").ns("t"), "dropTarget", true)
	afterMove(s.in("x"), "t", skipped)
}

func toCappedRun(s *site) {
	s.run(d("convertToCapped", "o", "size", 1<<20))
	s.insert("o", d("_id", 99, "n", 99))
}

func toCappedEffect(s *site, skipped string) {
	if !strings.Contains("collMod drop rename", skipped) {
		s.run(d("convertToCapped", "o", "size", 1<<20))
	}
	s.insert("o", d("_id", 99, "n", 99))
}

func cloneCappedRun(s *site) {
	s.run(d("cloneCollectionAsCapped", "o", "toCollection", "k", "size", 1<<20))
	s.insert("k", d("_id", 99, "n", 99))
}

func cloneCappedEffect(s *site, skipped string) {
	if skipped == "create" {
		return
	}
	s.run(d("cloneCollectionAsCapped", "o", "toCollection", "k", "size", 1<<20))
	s.insert("k", d("_id", 99, "n", 99))
}
