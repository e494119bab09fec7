package commands_test

import (
	"fmt"
	"slices"
	"strings"

	. "github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/kit"
)

// ruleSet is a column of the table.
type ruleSet struct {
	name  string
	rules Rules
}

// ruleSets are all of them: each operation left out alone, and the rules for documents.
func ruleSets() (out []ruleSet) {
	out = []ruleSet{{"none", Rules{}}}
	for _, op := range []string{"insert", "update", "replace", "delete", "ttl", "create", "drop", "rename",
		"createIndexes", "dropIndexes", "collMod"} {
		if op != "ttl" || !kit.Streamed() { // the precheck rejects it
			out = append(out, ruleSet{"skip-" + op, Rules{Skip: []string{op}}})
		}
	}
	return append(out,
		ruleSet{"skip-dropDatabase", Rules{Skip: []string{"drop", "dropDatabase"}}},
		ruleSet{"soft-delete", Rules{SoftDelete: "gone"}},
		ruleSet{"filter", Rules{Filter: true}},
		ruleSet{"filter+soft-delete", Rules{Filter: true, SoftDelete: "gone"}},
		ruleSet{"filter+skip-delete", Rules{Filter: true, Skip: []string{"delete"}}},
		ruleSet{"filter+skip-rename", Rules{Filter: true, Skip: []string{"rename"}}},
		ruleSet{"fields", Rules{Fields: true}},
		ruleSet{"history", Rules{History: true}},
		ruleSet{"merge", Rules{Merge: true}},
	)
}

// command is a row of the table.
type command struct {
	name string
	// setup makes more than collection c, before the job.
	setup func(*play)
	// run is the command. Before it documents of c were changed (before), after it those of
	// the collections that it returns are.
	run func(*play) []string
	// only is where it can be played: "rs" or "sharded"; empty is both.
	only string
	// stops: it makes a capped collection under a ruled name, or gives one such a name.
	stops bool
	// seed is that of random commands in place of all that, if it is not 0.
	seed uint64
}

func commandList() []command {
	d := func(db string) func(*play) {
		return func(p *play) {
			for id := int32(5); id < 15; id++ {
				doc := row(id)
				doc["v"], doc["f"] = 50+id, "d"
				p.do(Step{Do: Insert, NS: p.ns(db, "d"), ID: id, Doc: doc})
			}
		}
	}
	one := func(s func(*play) Step, result func(*play) string) func(*play) []string {
		return func(p *play) []string {
			p.do(s(p))
			return []string{result(p)}
		}
	}
	at := func(db, coll string) func(*play) string { return func(p *play) string { return p.ns(db, coll) } }
	from := func(do Op, db, coll, toDB, to string, more Step) func(*play) []string {
		return one(func(p *play) Step {
			more.Do, more.NS, more.To = do, p.ns(db, coll), p.ns(toDB, to)
			return more
		}, at(toDB, to))
	}
	drop := Step{DropTarget: true}
	some := Step{Below: 60}
	return []command{
		{name: "documents", run: one(func(p *play) Step {
			return Step{Do: Update, NS: p.ns("", "c"), ID: 2,
				Doc: Doc{"s": "closed"}}
		}, at("", "c"))},
		{name: "reused-ids", run: reuse},
		{name: "rename", run: from(Rename, "", "c", "", "e", Step{})},
		{name: "rename-onto", setup: d(""), run: from(Rename, "", "c", "", "d", drop)},
		{name: "rename-and-anew", run: renameAnew},
		{name: "rename-out", run: from(Rename, "", "c", "", excluded, Step{})},
		{name: "rename-db", run: from(Rename, "", "c", "x", "e", Step{})},
		{name: "rename-db-onto", setup: d("x"), run: from(Rename, "", "c", "x", "d", drop)},
		{name: "out-onto", setup: d(""), run: from(Out, "", "d", "", "c", some)},
		{name: "out-onto-itself", run: from(Out, "", "c", "", "c", Step{Below: 10})},
		{name: "out-new", run: from(Out, "", "c", "", "o", Step{Below: 8})},
		{name: "out-db-onto", setup: d("x"), run: from(Out, "", "c", "x", "d", Step{Below: 8})},
		{name: "map-reduce-onto", setup: d(""), run: from(MapReduce, "", "d", "", "c", some), only: "rs"},
		{name: "map-reduce-new", run: from(MapReduce, "", "c", "", "o", Step{Below: 8}), only: "rs"},
		{name: "convert-to-capped", run: from(Convert, "", "c", "", "c", Step{}), stops: true},
		{name: "clone-as-capped", run: from(Clone, "", "c", "", "r", Step{}), only: "rs", stops: true},
		{name: "rename-capped-in", setup: ring, run: from(Rename, "free", "ring", "", "r", Step{}), only: "rs", stops: true},
		{name: "drop", run: one(func(p *play) Step { return Step{Do: Drop, NS: p.ns("", "c")} }, at("", "c"))},
		{name: "drop-and-anew", run: dropAnew},
		{name: "drop-database", setup: d(""), run: one(func(p *play) Step { return Step{Do: DropDatabase, NS: p.base} },
			at("", "c"))},
		{name: "move-documents", run: moveDocuments, only: "sharded"},
		{name: "reshard", run: one(func(p *play) Step { return Step{Do: Reshard, NS: p.ns("", "c"), Field: "_id"} },
			at("", "c")), only: "sharded"},
		{name: "shard-and-reshard", run: shardAndReshard, only: "sharded"},
		{name: "move-primary", setup: d(""), run: movePrimary, only: "sharded"},
	}
}

// shardAndReshard makes a sharded collection, and reshards it.
func shardAndReshard(p *play) []string {
	e := p.ns("", "e")
	p.do(Step{Do: Shard, NS: e})
	for id := range int32(5) {
		p.do(Step{Do: Insert, NS: e, ID: id, Doc: row(id)})
	}
	p.do(Step{Do: Reshard, NS: e, Field: "_id"})
	return []string{e}
}

// ring is a capped collection beyond the rules.
func ring(p *play) {
	p.do(Step{Do: Create, NS: p.ns("free", "ring"), Capped: true})
	for id := range int32(5) {
		p.do(Step{Do: Insert, NS: p.ns("free", "ring"), ID: id, Doc: row(id)})
	}
}

// row is a document of c: of three, the first is closed and the others are open.
func row(id int32) Doc {
	s := "open"
	if id%3 == 0 {
		s = "closed"
	}
	return Doc{"_id": id, "k": id, "n": id, "s": s, "v": id}
}

const rows = 12

// fill makes c.
func fill(p *play) {
	for id := range int32(rows) {
		p.do(Step{Do: Insert, NS: p.ns("", "c"), ID: id, Doc: row(id)})
	}
	p.do(Step{Do: CreateIndex, NS: p.ns("", "c"), Field: "k"})
}

// before has every rule leave something: documents that are retained, stale or missing.
func before(p *play) {
	c := p.ns("", "c")
	p.update(c, 2, Doc{"v": int32(102)})
	p.update(c, 4, Doc{"v": int32(104)})
	p.update(c, 6, Doc{"t": int32(106)})
	p.replace(c, 6, "open")
	p.insert(c, 20, "open")
	p.insert(c, 21, "closed")
	p.delete(c, 1)
	p.delete(c, 3)
	p.update(c, 7, Doc{"s": "closed"})
	p.update(c, 9, Doc{"s": "open", "n": int32(90)})
	p.do(Step{Do: CreateIndex, NS: c, Field: "v"})
	p.do(Step{Do: DropIndex, NS: c, Field: "k"})
}

// after changes the documents of a collection as it is then, where it has them. Of
// capped ones it deletes none.
func after(p *play, ns string) {
	_, capped := p.world.Exists(ns)
	p.update(ns, 2, Doc{"v": int32(202), "t": int32(202)})
	p.update(ns, 20, Doc{"v": int32(220)})
	p.insert(ns, 30, "open")
	p.insert(ns, 31, "closed")
	if capped {
		return
	}
	p.update(ns, 0, Doc{"s": "open"})
	p.update(ns, 11, Doc{"s": "closed"})
	p.replace(ns, 8, "open")
	p.replace(ns, 10, "closed")
	p.delete(ns, 5)
	p.delete(ns, 21)
	p.insert(ns, 1, "open") // whose document was deleted
}

// reuse has _ids of documents that were deleted come back, kept by the filter or not.
func reuse(p *play) []string {
	c := p.ns("", "c")
	for _, id := range []int32{2, 5, 8, 10} {
		p.delete(c, id)
	}
	p.insert(c, 2, "closed")
	p.insert(c, 5, "open")
	p.insert(c, 8, "closed")
	p.update(c, 8, Doc{"s": "open"})
	p.insert(c, 10, "closed")
	p.delete(c, 10)
	p.insert(c, 3, "closed")
	return []string{c}
}

// renameAnew makes c anew after it got another name.
func renameAnew(p *play) []string {
	c := p.ns("", "c")
	p.do(Step{Do: Rename, NS: c, To: p.ns("", "e")})
	p.insert(c, 1, "open")
	p.insert(c, 40, "open")
	return []string{p.ns("", "e"), c}
}

func dropAnew(p *play) []string {
	c := p.ns("", "c")
	p.do(Step{Do: Drop, NS: c})
	p.do(Step{Do: Create, NS: c})
	p.insert(c, 1, "open")
	p.insert(c, 2, "closed")
	p.insert(c, 40, "open")
	return []string{c}
}

// moveDocuments gives documents keys of all shards.
func moveDocuments(p *play) []string {
	c := p.ns("", "c")
	for _, id := range []int32{0, 2, 4, 5, 9, 11, 20} {
		for turn := range int32(3) {
			at := id
			if turn > 0 {
				at = 1000 + 17*(turn-1) + id
			}
			p.update(c, id, Doc{"k": 1000 + 17*turn + id, "_at": at})
		}
	}
	return []string{c}
}

func movePrimary(p *play) []string {
	p.do(Step{Do: MovePrimary, NS: p.base, Shard: p.other()})
	return []string{p.ns("", "c"), p.ns("", "d")}
}

// cell is one of the table.
type cell struct {
	command command
	set     ruleSet
	phase   string
}

func (c cell) String() string {
	return fmt.Sprintf("%s/%s/%s", c.command.name, c.set.name, c.phase)
}

// streams reports whether change streams carry the command (docs/reference/capture.md).
func (c cell) streams(topology string) bool {
	switch c.command.name {
	case "rename-db", "rename-db-onto", "rename-capped-in": // the job has rules
		return false
	case "convert-to-capped":
		return topology != "sharded"
	}
	return true
}

// alone reports that the job has to end with an error, so that it can have no other cell.
func (c cell) alone() bool {
	r := c.set.rules
	ruled := r.SoftDelete != "" || r.Filter || r.Fields || r.History
	for _, op := range r.Skip {
		ruled = ruled || strings.Contains("insert update replace delete ttl", op)
	}
	comes := !strings.HasPrefix(c.command.name, "rename") || !slices.Contains(r.Skip, "rename")
	return c.command.stops && ruled && comes
}
