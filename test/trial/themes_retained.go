package trial

import (
	"fmt"
	"math/rand/v2"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// retained drops, renames and makes anew collections and indexes of few names while drops are
// skipped: what is left on the target has the name of something else.
func retained(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	ops := choose(r, "drop", "drop", "dropIndexes", "dropIndexes", "rename", "drop,dropIndexes", "drop,rename",
		"delete,drop", "createIndexes,dropIndexes", "collMod,drop", "create,drop")
	t := Trial{Args: around("--skip", "db.*="+ops), Retained: true}
	v := 0
	doc := func() bson.D {
		v++
		return D("_id", r.IntN(4), "v", v)
	}
	name := func() string { return choose(r, "c", "c", "c", "d") }
	spec := func(name, key string) bson.D {
		d := D("key", D(key, 1), "name", name)
		if r.one(4) {
			d = append(d, bson.E{Key: "partialFilterExpression", Value: D("f", D("$gt", 5))})
		}
		if r.one(2) {
			d = append(d, bson.E{Key: "expireAfterSeconds", Value: 3600 * (1 + r.IntN(3))})
		}
		return d
	}
	mod := func(by bson.D) bson.D {
		return append(by, choose(r, bson.E{Key: "expireAfterSeconds", Value: 3600 * (4 + r.IntN(3))},
			bson.E{Key: "hidden", Value: r.one(2)}))
	}
	step := func() []Event {
		c := name()
		switch r.IntN(14) {
		case 0, 1:
			return []Event{src("drop", c)}
		case 2:
			to := choose(r, "c", "d", "e")
			if to == c {
				to = "e"
			}
			return []Event{rename("DB."+c, "DB."+to, false)}
		case 3:
			return []Event{rename("DB.e", "DB."+c, false)}
		case 4, 5, 6:
			index := choose(r, "x", "x", "y")
			out := []Event{src("createIndexes", c, "indexes", A(spec(index, choose(r, "a", "a", "b"))))}
			if r.one(3) {
				out = append(out, src("collMod", c, "index", mod(D("name", index))))
			}
			return out
		case 7:
			return []Event{src("createIndexes", c, "indexes", A(spec("x", "a"), spec("y", "b")))}
		case 8, 9:
			return []Event{src("dropIndexes", c, "index", choose[any](r, "x", "x", "y", "*", D(choose(r, "a", "b"), 1)))}
		case 10, 11:
			return []Event{src("collMod", c, "index",
				mod(choose(r, D("name", "x"), D("name", "y"), D("keyPattern", D(choose(r, "a", "b"), 1)))))}
		case 12:
			if r.one(2) {
				return []Event{remove(c, D("_id", r.IntN(4)))}
			}
			return []Event{update(c, D("_id", v%4), D("_id", v%4, "v", fmt.Sprint("replaced ", v)))}
		}
		return []Event{insert(c, doc())}
	}
	setup := r.list(2+r.IntN(5), step)
	steps := r.list(8+r.IntN(16), step)
	if r.one(3) { // the copy is under way at first
		begin := Together(50, Begin("", "--max-rate-docs", "1"), reached("copying"), rate(0), reached("following"))
		some := r.IntN(len(steps))
		t.Events = append(append(append(setup, begin[:2]...), steps[:some]...), begin[2:]...)
		steps = steps[some:]
	} else {
		t.Events = append(setup, Together(50, start(), reached("following"))...)
	}
	t.Events = append(t.Events, r.withKills(steps)...)
	return t
}

// withKills kills a job that follows, or pauses it, now and then among steps.
func (r *draw) withKills(steps []Event) (out []Event) {
	for n := 0; len(steps) > 0; n++ {
		some := min(len(steps), 1+r.IntN(6))
		lag := choose(r, []Event{caughtUp(), caughtUp()}, []Event{{Do: PauseJob}, {Do: ResumeJob}},
			[]Event{{Do: Kill}, start()},
			[]Event{{Do: Arm, Points: choose(r, "schema.noted", "schema.after", "schema.before", "join.copied", "note.after") +
				":1=kill"}, start()})
		lag = Together(n+1, lag...)
		out = append(append(append(out, lag[0]), steps[:some]...), sleep(choose(r, 0, 20, 100)), lag[1], caughtUp())
		steps = steps[some:]
	}
	return out
}
