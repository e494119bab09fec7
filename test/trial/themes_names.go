package trial

import (
	"fmt"
	"math/rand/v2"
	"strings"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
)

// intoOne has two databases of the source become one of the target, which has
// collections of its own. They come and go.
func intoOne(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around(strings.Fields(choose(r, "--rename db=db-y --rename db-x=db-y",
		"--rename db=db-y --rename db-x=db-y", "--rename db=db-y",
		"", "--rename db.c0=db-y.c0 --rename db-x=db-y"))...)}
	for _, db := range []string{"db", "db-x", "db-y"} {
		t.Keep = append(t.Keep, db+".own1", db+".own2")
	}
	// The target's own: whoever made them, they are not of the source.
	own := func() []Event {
		return in(choose(r, "y", "y", "", "x"), dst("insert", choose(r, "own1", "own2"), "documents", A(D("_id", r.IntN(3)))))
	}
	events := []Event{insert("c0", D("_id", 0))}
	events = append(events, in("x", insert("d0", D("_id", 0)))...)
	events = append(events, own()...)
	step := func() []Event {
		// The databases have no name in common, so that they can be one.
		db, coll := "", choose(r, "c0", "c1", "c2")
		if r.one(2) {
			db, coll = "x", choose(r, "d0", "d1", "d2")
		}
		switch r.IntN(9) {
		case 0, 1:
			return in(db, src("dropDatabase", 1))
		case 2:
			return in(db, src("drop", coll))
		case 3:
			return own()
		case 4:
			return in(db, src("create", coll))
		case 5:
			return []Event{rename("DB.c0", "DB.c1", r.one(2))}
		}
		return in(db, insert(coll, D("_id", r.IntN(3))))
	}
	t.Events = append(events, r.among(r.list(6+r.IntN(14), step))...)
	return t
}

// namesInLag renames collections while the job is behind, some of them in from
// outside: what it copies of them has another name by then. Rings are overtaken
// by their writers.
func namesInLag(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--exclude", "db.out*")}
	many := func(name string, n int) Event {
		from := 10_000 * (1 + r.IntN(1000))
		return Event{Do: Step, Step: &history.Step{Do: history.Fill,
			Cmd: kit.Raw(D("fill", name, "from", from, "to", from+n, "pad", 40_000))}}
	}
	const room = 300 // several replies of the source
	ring := func(name string) []Event {
		return []Event{src("create", name, "capped", true, "size", 64<<20, "max", room), many(name, room)}
	}
	t.Events = following([]Event{insert("a", D("_id", "a")), insert("b", D("_id", "b")), insert("z", D("_id", "z"))})
	name := func() string { return choose(r, "a", "b", "z", "out2") }
	step := func() Event {
		from, to := name(), name()
		switch r.IntN(6) {
		case 0:
			return src("drop", from)
		case 1, 2:
			return insert(from, D("_id", fmt.Sprint(from, r.IntN(5))))
		}
		if from == to {
			to += "2"
		}
		return rename("DB."+from, "DB."+to, r.one(2))
	}
	for n := range 1 + r.IntN(2) {
		if r.one(2) { // so that there is something to overtake
			t.Events = append(t.Events, ring("out1")...)
		} else {
			t.Events = append(t.Events, many("out1", room))
		}
		lag := Together(n+1, Event{Do: PauseJob}, Event{Do: ResumeJob})
		t.Events = append(t.Events, lag[0])
		in, next := choose(r, "a", "b"), choose(r, "z", "z", "a", "b", "c")
		for _, e := range []Event{rename("DB.out1", "DB."+in, true),
			rename("DB."+next, "DB."+choose(r, "keep", "keep", "out2"), true), rename("DB."+in, "DB."+next, r.one(2))} {
			if r.one(3) {
				t.Events = append(t.Events, step())
			}
			t.Events = append(t.Events, e)
		}
		// The copy of what has come in waits for its next reply, and is overtaken.
		slow := kit.Raw(D("configureFailPoint", "failCommand", "mode", D("times", 1),
			"data", D("failCommands", A("getMore"), "namespace", "db."+next, "blockConnection", true, "blockTimeMS",
				700+r.IntN(1500))))
		t.Events = append(t.Events, Event{Do: FailPoint, Cmd: slow}, lag[1], sleep(100+r.IntN(400)),
			many(choose(r, next, next, in), room), sleep(r.IntN(500)))
		if r.one(5) {
			t.Events = append(t.Events, Event{Do: Kill}, start())
		}
		t.Events = append(t.Events, sleep(r.IntN(1000)), reached("following"), caughtUp())
	}
	return t
}

// inAndOut renames collections across the edge of the filter while the job is
// behind; they are changed and dropped before it looks.
func inAndOut(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--exclude", "db.out*")}
	name := func() string { return choose(r, "in1", "in2", "out1", "out2") }
	step := func() []Event {
		c, id := name(), 1+r.IntN(3)
		switch r.IntN(10) {
		case 0, 9:
			return []Event{src("drop", c)}
		case 1, 2:
			in := choose(r, "in1", "in2")
			out := []Event{rename("DB."+choose(r, "out1", "out2"), "DB."+in, true)}
			if r.one(2) {
				out = append(out, update(in, D("_id", id), D("$inc", D("v", 1))))
			}
			return out
		case 3:
			return []Event{rename("DB."+choose(r, "in1", "in2"), "DB."+name(), true)}
		case 4, 5:
			return []Event{update(c, D("_id", id), D("$inc", D("v", 1)))}
		case 6:
			return []Event{remove(c, D("_id", id))}
		}
		return []Event{insert(c, D("_id", id, "v", 0))}
	}
	events := []Event{insert("in1", D("_id", 1, "v", 0)), insert("out1", D("_id", 1, "v", 0), D("_id", 2, "v", 0)),
		filled("plain", 20, 10)}
	if steps := r.list(8+r.IntN(20), step); r.one(3) {
		t.Events = append(events, r.among(steps)...)
	} else {
		t.Events = append(events, r.lags(steps)...)
	}
	return t
}

// renamedInDispute has somebody else damage documents of the target while the
// job is behind and their collections are renamed, dropped and made anew.
func renamedInDispute(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--on-conflict", choose(r, "skip", "overwrite"))}
	names := []string{"a", "b", "c"}
	var setup []Event
	for _, name := range names[:2] {
		for id := range 3 {
			setup = append(setup, insert(name, D("_id", id, "of", name)))
		}
	}
	// The job that has met them ends by itself: the next one would start in a
	// window, and forgive.
	whole := Together(9, start(), Event{Do: Finalize}, Event{Do: Await, Want: "ended", For: soon})
	t.Events = append(setup, whole[0], reached("following"), caughtUp())
	step := func() []Event {
		c, to, id := choose(r, names...), choose(r, names...), r.IntN(3)
		switch r.IntN(9) {
		case 0, 1:
			if c == to {
				to += "2"
			}
			return []Event{rename("DB."+c, "DB."+to, r.one(2))}
		case 2:
			return []Event{insert(c, D("_id", id, "of", c+" anew"))}
		case 3:
			if r.one(3) {
				return []Event{src("drop", c)}
			}
			return []Event{remove(c, D("_id", id))}
		}
		return []Event{update(c, D("_id", id), D("$inc", D("v", 1)))}
	}
	for n := range 1 + r.IntN(2) {
		t.Events = append(t.Events, caughtUp())
		for range 1 + r.IntN(3) {
			t.Events = append(t.Events, dst("delete", choose(r, names...), "deletes",
				A(D("q", D("_id", r.IntN(3)), "limit", 1))))
		}
		lag := Together(n+1, rate(1), rate(0))
		if r.one(3) {
			lag = Together(n+1, Event{Do: PauseJob}, Event{Do: ResumeJob})
		}
		t.Events = append(t.Events, lag[0])
		t.Events = append(t.Events, r.list(3+r.IntN(8), step)...)
		if r.one(4) {
			t.Events = append(t.Events, Event{Do: Kill}, start())
		}
		t.Events = append(t.Events, lag[1], reached("following"), caughtUp())
	}
	t.Events = append(t.Events, whole[1:]...)
	return t
}
