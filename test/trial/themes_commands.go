package trial

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/millrace/millrace/test/commands"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// commandThemes are about user commands that an oplog tells as many entries, and jobs
// that leave some of what they do out.
func commandThemes() []Theme {
	themes := []Theme{
		{"commands-skip", func(r *rand.Rand) Trial {
			return ruled(r,
				commands.Rules{Skip: []string{pick(r, "insert", "update", "replace", "delete", "create", "drop", "rename",
					"createIndexes", "dropIndexes", "collMod")}})
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
	return themes
}

// allNames is a pattern of all namespaces of a trial, userNames one of those that its
// users give alone: they are single characters.
const allNames, userNames = "db*.*", "db*.?"

// scribe draws commands that the source takes, and puts a job among them.
type scribe struct {
	*draw
	*commands.Writer
}

func newScribe(r *rand.Rand, args []string) *scribe {
	of := commands.ReadArgs(args)
	if of == nil {
		of = func(string) commands.Rules { return commands.Rules{} }
	}
	w := commands.New(of, readRules(args).has)
	s := &scribe{draw: &draw{Rand: r}, Writer: commands.NewWriter(r, w, Database, Database+"-x")}
	s.Streamed = kit.Streamed()
	return s
}

// event is a step as an event.
func event(s commands.Step) Event {
	db, cmd := s.Command()
	suffix := strings.TrimPrefix(strings.TrimPrefix(db, Database), "-")
	if s.Do == commands.Rename {
		suffix = ""
	}
	return Event{Do: Step, Step: &history.Step{DB: suffix, Cmd: kit.Raw(cmd)}}
}

// begin is where the job may begin, as far as the commands that are drawn then go.
func (s *scribe) begin() {
	s.W.Begin()
	s.W.Copied()
}

// take is the event of a step, none if the source or the model cannot take it.
func (s *scribe) take(step commands.Step) []Event {
	if s.W.Stops != "" || s.W.Apply(step) != nil {
		return nil
	}
	return []Event{event(step)}
}

// step draws one command.
func (s *scribe) step() []Event {
	step, ok := s.Next()
	if !ok {
		return nil
	}
	return []Event{event(step)}
}

// life puts a job among commands: some before it, and all else while it runs, is slowed
// down, is killed and begins again.
func (s *scribe) life(before, after int) []Event {
	events := s.steps(before)
	s.begin()
	return append(events, s.among(s.steps(after))...)
}

// list draws so many commands, fewer if the job has to end.
func (s *scribe) steps(n int) (out []Event) {
	for range 20 * n {
		if out = append(out, s.step()...); len(out) >= n {
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
	if r.Merge { // what the target has of its own, which a capped collection would have to be like
		s.Kinds = slices.DeleteFunc(s.Kinds, func(k commands.Op) bool { return k == commands.Convert || k == commands.Clone })
		for id := range int32(2 + rnd.IntN(3)) {
			ns, d := choose(s.draw, s.Names...), s.Document(id+s.IDs-2)
			d["own"] = true
			s.W.Own(ns, d)
			e := event(commands.Step{Do: commands.Insert, NS: ns, ID: id + s.IDs - 2, Doc: d})
			e.On = Target
			t.Events = append(t.Events, e)
		}
	}
	t.Events = append(t.Events, s.life(6+s.draw.IntN(14), 8+s.draw.IntN(24))...)
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
	s.Names, s.IDs, s.Schema = s.Names[:2], 4, 1000
	t.Events = s.life(4, 10+s.draw.IntN(20))
	return t
}

// cappedNames has capped collections get names that have rules which no capped
// collection can have, among other commands.
func cappedNames(rnd *rand.Rand) Trial {
	r := pick(rnd, commands.Rules{Skip: []string{pick(rnd, "insert", "update", "replace", "delete")}},
		commands.Rules{SoftDelete: "gone"},
		commands.Rules{Filter: true}, commands.Rules{Fields: true}, commands.Rules{History: true})
	pattern := pick(rnd, "db.?", "db.c")
	t := Trial{Args: around(r.Args(pattern)...)}
	s := newScribe(rnd, t.Args)
	s.Names, s.Schema = []string{"db.c", "db.d"}, 1000
	t.Events = append(s.take(commands.Step{Do: commands.Create, NS: "db-x.r", Capped: true}), s.steps(5)...)
	for id := range int32(3) {
		t.Events = append(t.Events, s.take(commands.Step{Do: commands.Insert, NS: "db-x.r", ID: id, Doc: s.Document(id)})...)
	}
	s.begin()
	steps := s.steps(2 + s.draw.IntN(8))
	switch s.draw.IntN(3) {
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
	change := []Event{rename("DB."+victim, to, true),
		in(strings.TrimPrefix(strings.TrimPrefix(to[:strings.Index(to, ".")], "DB"), "-"),
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
			return []Event{src("applyOps",
				A(one(false), D("op", "c", "ns", "DB.$cmd", "o", D("applyOps", A(one(true), one(true)))), one(false)))}
		case 3:
			return []Event{src("applyOps", A(one(false), one(false)), "allowAtomic", false)}
		}
		return []Event{src("applyOps", A(one(true), one(true)))}
	}
	t := Trial{Args: around()}
	if r.one(3) {
		t.Args = []string{"--include", "db." + choose(r, "a", "b", "old")}
	}
	t.Events = []Event{insert("a", D("_id", 1, "v", 0)), insert("b", D("_id", 1, "v", 0)),
		insert("old", D("_id", 1, "v", 0))}
	t.Events = append(t.Events, r.among(r.list(6+r.IntN(14), step))...)
	return t
}
