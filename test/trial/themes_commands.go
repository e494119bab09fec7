package trial

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/history"
)

// commandThemes are about user commands that an oplog tells as many entries, and jobs
// that leave some of what they do out.
func commandThemes() []Theme {
	themes := []Theme{
		{"commands-skip", func(r *rand.Rand) Trial {
			return ruled(r, commands.Rules{Skip: []string{pick(r, "insert", "update", "replace", "delete", "create", "drop", "rename", "createIndexes", "dropIndexes", "collMod")}})
		}},
		{"commands-soft", func(r *rand.Rand) Trial { return ruled(r, commands.Rules{SoftDelete: "gone"}) }},
		{"commands-filter", func(r *rand.Rand) Trial { return ruled(r, commands.Rules{Filter: true}) }},
		{"commands-fields", func(r *rand.Rand) Trial { return ruled(r, commands.Rules{Fields: true}) }},
		{"commands-history", func(r *rand.Rand) Trial { return ruled(r, commands.Rules{History: true}) }},
		{"commands-merge", func(r *rand.Rand) Trial { return ruled(r, commands.Rules{Merge: true}) }},
		{"reused-ids", reusedIDs},
		{"capped-names", cappedNames},
	}
	for i, t := range themes {
		themes[i].Make = func(r *rand.Rand) Trial {
			tr := t.Make(r)
			tr.Calm, tr.Commands = true, true
			return tr
		}
	}
	return append(themes, calm("foreign-drop", foreignDrop), calm("apply-ops-by-uuid", applyOpsByUUID))
}

func calm(name string, make func(*rand.Rand) Trial) Theme {
	return Theme{name, func(r *rand.Rand) Trial {
		tr := make(r)
		tr.Calm = true
		return tr
	}}
}

// allNames is a pattern of all namespaces of a trial, userNames one of those that its
// users give alone: they have one letter.
const allNames, userNames = "db*.*", "db*.?"

// scribe draws commands that the source takes, as the model knows it.
type scribe struct {
	*draw
	w     *commands.World
	began bool
	names []string
	ids   int32
	// schema is one in how many commands on documents there is another.
	schema int
	// kinds are the commands that are none on documents.
	kinds []commands.Op
}

func newScribe(r *rand.Rand, args []string) *scribe {
	of := commands.ReadArgs(args)
	if of == nil {
		of = func(string) commands.Rules { return commands.Rules{} }
	}
	s := &scribe{draw: &draw{Rand: r}, names: []string{"db.c", "db.d", "db.e", "db-x.c", "db-x.e"}, ids: 8, schema: 4,
		w: commands.New(of, readRules(args).has)}
	s.kinds = []commands.Op{commands.Rename, commands.Rename, commands.Rename, commands.Out, commands.Out, commands.Drop, commands.Create,
		commands.CreateIndex, commands.DropIndex, commands.MapReduce, commands.Clone, commands.DropDatabase}
	if r.IntN(3) == 0 {
		s.kinds = append(s.kinds, commands.Convert)
	}
	return s
}

// event is a step as an event.
func event(s commands.Step) Event {
	db, cmd := s.Command()
	suffix := strings.TrimPrefix(strings.TrimPrefix(db, Database), "-")
	if s.Do == commands.Rename {
		suffix = ""
	}
	return Event{Do: Step, Step: &history.Step{DB: suffix, Cmd: raw(cmd)}}
}

// begin is where the job may begin, as far as the commands that are drawn then go.
func (s *scribe) begin() {
	s.w.Begin()
	s.w.Copied()
}

// take is the event of a step, none if the source or the model cannot take it.
func (s *scribe) take(step commands.Step) []Event {
	if s.w.Stops != "" || s.w.Apply(step) != nil {
		return nil
	}
	return []Event{event(step)}
}

// step draws one command.
func (s *scribe) step() []Event {
	if s.one(s.schema) {
		return s.take(s.structure())
	}
	ns, id := choose(s.draw, s.names...), int32(s.IntN(int(s.ids)))
	_, capped := s.w.Exists(ns)
	switch n := s.IntN(8); {
	case !s.w.Has(ns, id):
		return s.take(commands.Step{Do: commands.Insert, NS: ns, ID: id, Doc: s.document(id)})
	case n < 2 && !capped:
		return s.take(commands.Step{Do: commands.Delete, NS: ns, ID: id})
	case n == 2 && !capped:
		d := s.document(id)
		delete(d, "_id")
		return s.take(commands.Step{Do: commands.Replace, NS: ns, ID: id, Doc: d})
	case n < 5 && !capped:
		return s.take(commands.Step{Do: commands.Update, NS: ns, ID: id, Doc: commands.Doc{"s": s.status(), "t": s.next()}})
	}
	return s.take(commands.Step{Do: commands.Update, NS: ns, ID: id, Doc: commands.Doc{"v": s.next()}})
}

// next is a number that no document has had, so that each update is one.
func (s *scribe) next() int32 {
	s.txns++
	return int32(s.txns)
}

func (s *scribe) status() string { return choose(s.draw, "open", "open", "closed") }

func (s *scribe) document(id int32) commands.Doc {
	return commands.Doc{"_id": id, "k": id, "n": id, "s": s.status(), "v": s.next()}
}

// structure draws a command that is none on documents.
func (s *scribe) structure() commands.Step {
	ns, to := choose(s.draw, s.names...), choose(s.draw, s.names...)
	step := commands.Step{Do: choose(s.draw, s.kinds...), NS: ns, To: to, DropTarget: true}
	db, _, _ := strings.Cut(ns, ".")
	toDB, _, _ := strings.Cut(to, ".")
	switch step.Do {
	case commands.Rename:
		step.DropTarget = s.one(2)
	case commands.Out:
		step.Below = choose(s.draw, 0, int32(s.txns/2), int32(s.txns))
	case commands.MapReduce, commands.Clone:
		if db != toDB {
			step.Do = commands.Out
		}
	case commands.CreateIndex, commands.DropIndex:
		step.To, step.Field = "", choose(s.draw, "k", "v")
	case commands.DropDatabase:
		step.NS = db
	}
	if step.Do != commands.Rename {
		step.DropTarget = false
	}
	return step
}

// life puts a job among commands: some before it, and all else while it runs, is held
// back, is killed and begins again.
func (s *scribe) life(before, after int) []Event {
	events := s.list(before, s.step)
	s.begin()
	return append(events, s.among(s.list(after, s.step))...)
}

// list draws so many commands, fewer if the job has to end.
func (s *scribe) list(n int, step func() []Event) (out []Event) {
	for range 20 * n {
		if out = append(out, step()...); len(out) >= n {
			break
		}
	}
	return out
}

// ruled has rules for all collections, or for those of the users alone.
func ruled(rnd *rand.Rand, r commands.Rules) Trial {
	if (r.Filter || r.SoftDelete != "") && rnd.IntN(2) == 0 {
		r.Filter = true
		if r.SoftDelete = ""; rnd.IntN(2) == 0 {
			r.SoftDelete = "gone"
		} else {
			r.Skip = []string{"delete"}
		}
	}
	t := Trial{Args: around(r.Args(pick(rnd, allNames, userNames))...)}
	s := newScribe(rnd, t.Args)
	if r.Merge { // what the target has of its own
		for id := range int32(2 + rnd.IntN(3)) {
			ns, d := choose(s.draw, s.names...), s.document(id+s.ids-2)
			d["own"] = true
			s.w.Own(ns, d)
			e := event(commands.Step{Do: commands.Insert, NS: ns, ID: id + s.ids - 2, Doc: d})
			e.On = Target
			t.Events = append(t.Events, e)
		}
	}
	t.Events = append(t.Events, s.life(6+s.IntN(14), 8+s.IntN(24))...)
	return t
}

// reusedIDs has documents retained that a filter kept, and their _ids come back in
// documents that it does not keep.
func reusedIDs(rnd *rand.Rand) Trial {
	r := commands.Rules{Filter: true, SoftDelete: "gone"}
	if rnd.IntN(2) == 0 {
		r = commands.Rules{Filter: true, Skip: []string{"delete"}}
	}
	t := Trial{Args: around(r.Args(allNames)...)}
	s := newScribe(rnd, t.Args)
	s.names, s.ids, s.schema = s.names[:2], 4, 1000
	t.Events = s.life(4, 10+s.IntN(20))
	return t
}

// cappedNames has capped collections get names that have rules which no capped
// collection can have, among other commands.
func cappedNames(rnd *rand.Rand) Trial {
	r := pick(rnd, commands.Rules{Skip: []string{pick(rnd, "insert", "update", "replace", "delete")}}, commands.Rules{SoftDelete: "gone"},
		commands.Rules{Filter: true}, commands.Rules{Fields: true}, commands.Rules{History: true})
	pattern := pick(rnd, "db.?", "db.c")
	t := Trial{Args: around(r.Args(pattern)...)}
	s := newScribe(rnd, t.Args)
	s.names, s.schema = []string{"db.c", "db.d"}, 1000
	t.Events = append(s.take(commands.Step{Do: commands.Create, NS: "db-x.r", Capped: true}), s.list(5, s.step)...)
	for id := range int32(3) {
		t.Events = append(t.Events, s.take(commands.Step{Do: commands.Insert, NS: "db-x.r", ID: id, Doc: s.document(id)})...)
	}
	s.begin()
	steps := s.list(2+s.IntN(8), s.step)
	switch s.IntN(3) {
	case 0:
		steps = append(steps, s.take(commands.Step{Do: commands.Convert, NS: "db.c"})...)
	case 1:
		steps = append(steps, s.take(commands.Step{Do: commands.Rename, NS: "db-x.r", To: "db.c", DropTarget: true})...)
	default: // through a name without rules
		steps = append(steps, s.take(commands.Step{Do: commands.Rename, NS: "db-x.r", To: "db.ring"})...)
		steps = append(steps, s.take(commands.Step{Do: commands.Rename, NS: "db.ring", To: "db.c", DropTarget: true})...)
	}
	t.Events = append(t.Events, s.among(steps)...)
	return t
}

// foreignDrop has somebody else drop a collection of the target, which the source
// renames or changes after that. (Documents that are inserted there tell nothing of
// what is missing.)
func foreignDrop(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	names := []string{"a", "b", "c"}
	var setup []Event
	for _, name := range names {
		for id := range 3 {
			setup = append(setup, insert(name, D("_id", id, "of", name)))
		}
	}
	victim := names[0]
	beside := func() []Event {
		c, to := choose(r, names[1:]...), choose(r, "b", "c", "e")
		switch r.IntN(6) {
		case 0:
			return []Event{src("create", fmt.Sprint("n", r.IntN(9)))}
		case 1:
			return []Event{rename("DB."+c, "DB."+to, r.one(2))}
		}
		return []Event{insert(c, D("_id", 10+r.IntN(1000)))}
	}
	t := Trial{Args: around(), Events: following(setup)}
	t.Events = append(t.Events, r.list(r.IntN(3), beside)...)
	t.Events = append(t.Events, caughtUp(), dst("drop", victim))
	t.Events = append(t.Events, r.list(r.IntN(4), beside)...)
	to := choose(r, "DB.b", "DB.e", "DB-x.a")
	change := []Event{rename("DB."+victim, to, true), in(strings.TrimPrefix(strings.TrimPrefix(to[:strings.Index(to, ".")], "DB"), "-"),
		insert(to[strings.Index(to, ".")+1:], D("_id", 2000)))[0]}
	if r.one(4) {
		change = []Event{src("collMod", victim, "validationLevel", "off")}
	}
	t.Events = append(t.Events, change...)
	t.Events = append(t.Events, sleep(r.IntN(300)), start())
	t.Events = append(t.Events, r.list(r.IntN(4), beside)...)
	return t
}

// applyOpsByUUID has users replay entries of collections that have another name now,
// with the UUIDs of then: the server goes by them.
func applyOpsByUUID(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	names := []string{"a", "b", "old"}
	// A server that applies operations one by one goes by the name: there is none without.
	one := func(byUUID bool) any {
		id, of, ns := 1+r.IntN(3), choose(r, names...), choose(r, names...)
		if !byUUID {
			ns = of
		}
		op := D("op", "i", "ns", "DB."+ns, "ui", uuidOf+of)
		switch r.IntN(4) {
		case 0:
			op[0].Value = "d"
			return append(op, D("o", D("_id", id))...)
		case 1:
			op[0].Value = "u"
			return append(op, D("o2", D("_id", id), "o", D("_id", id, "v", r.IntN(9)), "b", r.one(2))...)
		}
		return append(op, D("o", D("_id", id, "v", r.IntN(9)))...)
	}
	step := func() []Event {
		switch r.IntN(7) {
		case 0:
			return []Event{rename("DB."+choose(r, "a", "b"), "DB.old", true), insert("a", D("_id", 1, "v", "anew"))}
		case 1:
			return []Event{insert(choose(r, names...), D("_id", 1+r.IntN(3), "v", "inserted"))}
		case 2:
			return []Event{src("applyOps", A(one(false), D("op", "c", "ns", "DB.$cmd", "o", D("applyOps", A(one(true), one(true)))), one(false)))}
		case 3:
			return []Event{src("applyOps", A(one(false), one(false)), "allowAtomic", false)}
		}
		return []Event{src("applyOps", A(one(true), one(true)))}
	}
	t := Trial{Args: around()}
	if r.one(3) {
		t.Args = []string{"--include", "db." + choose(r, "a", "b", "old")}
	}
	t.Events = []Event{insert("a", D("_id", 1, "v", 0)), insert("b", D("_id", 1, "v", 0)), insert("old", D("_id", 1, "v", 0))}
	t.Events = append(t.Events, r.among(r.list(6+r.IntN(14), step))...)
	return t
}
