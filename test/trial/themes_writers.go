package trial

import (
	"fmt"
	"math/rand/v2"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
)

// applyOps are those of users: they insert what is there, change what is not,
// and hold others.
func applyOps(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	ids := 2 + r.IntN(3)
	one := func() bson.D {
		id := 1 + r.IntN(ids)
		ns := "DB." + choose(r, "c", "c", "d")
		switch r.IntN(6) {
		case 0, 1:
			return D("op", "i", "ns", ns, "o", D("_id", id, "v", r.IntN(9)))
		case 2:
			return D("op", "d", "ns", ns, "o", D("_id", id))
		case 3:
			return D("op", "u", "ns", ns, "o2", D("_id", id), "o", D("_id", id, "v", r.IntN(9)), "b", r.one(2))
		}
		return D("op", "u", "ns", ns, "o2", D("_id", id), "o", D("$v", 2, "diff", D("u", D("v", r.IntN(9)))), "b", r.one(2))
	}
	ops := func() (out bson.A) {
		for range 1 + r.IntN(3) {
			out = append(out, one())
		}
		return out
	}
	step := func() []Event {
		id := 1 + r.IntN(ids)
		switch r.IntN(10) {
		case 0:
			return []Event{remove("c", D("_id", id))}
		case 1:
			return []Event{update("c", D("_id", id), D("$inc", D("n", 1)))}
		case 2:
			return []Event{insert(choose(r, "c", "d"), D("_id", id, "v", "inserted"))}
		case 3: // nested
			return []Event{src("applyOps", A(one(), D("op", "c", "ns", "DB.$cmd", "o", D("applyOps", ops())), one()))}
		case 4: // with a change of the schema
			return []Event{src("applyOps", A(one(), choose(r,
				D("op", "c", "ns", "DB.$cmd", "o", D("create", fmt.Sprint("e", r.IntN(2)))),
				D("op", "c", "ns", "DB.$cmd", "o", D("drop", choose(r, "e0", "d"))),
				D("op", "c", "ns", "DB.$cmd", "o", D("renameCollection", "DB.e0", "to", "DB.e1", "dropTarget", true))), one()))}
		case 5:
			return []Event{src("applyOps", ops(), "allowAtomic", false)}
		}
		return []Event{src("applyOps", ops())}
	}
	events := []Event{insert("c", D("_id", 1, "v", 0)), insert("d", D("_id", 1, "v", 0)), filled("plain", 20, 10)}
	events = append(events, r.among(r.list(6+r.IntN(14), step))...)
	return Trial{Args: around(), Events: events}
}

// foreignStep is something that somebody else does on the target.
func foreignStep(r *draw, ids int) Event {
	id := D("_id", r.IntN(ids))
	switch r.IntN(4) {
	case 0, 1:
		return dst("delete", "c", "deletes", A(D("q", id, "limit", 1)))
	case 2:
		return dst("update", "c", "updates", A(D("q", id, "u", D("$set", D("foreign", 1)))))
	}
	return dst("insert", "c", "documents", A(append(id, bson.E{Key: "foreign", Value: 1})))
}

func sourceStep(r *draw, ids int) Event {
	id := D("_id", r.IntN(ids))
	switch r.IntN(6) {
	case 0:
		return remove("c", id)
	case 1:
		return update("c", id, D("v", r.IntN(9)), "upsert", r.one(2))
	case 2:
		return insert("c", append(id, bson.E{Key: "v", Value: r.IntN(9)}))
	}
	return update("c", id, D("$inc", D("n", 1)))
}

// foreign writers on the target, a job that ends because of them or not, and
// one who starts it again each time.
func foreign(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--on-conflict", choose(r, "stop", "stop", "skip", "overwrite"))}
	ids := 3 + r.IntN(3)
	var setup []Event
	for id := range ids - 1 {
		setup = append(setup, insert("c", D("_id", id, "v", 0)))
	}
	t.Events = following(setup)
	for range 2 + r.IntN(3) {
		if r.one(2) {
			t.Events = append(t.Events, caughtUp())
		}
		if r.one(3) {
			t.Events = append(t.Events, Event{Do: choose(r, Kill, End)})
		}
		for range 1 + r.IntN(2) {
			t.Events = append(t.Events, foreignStep(r, ids))
		}
		for range 1 + r.IntN(4) {
			t.Events = append(t.Events, sourceStep(r, ids))
		}
		t.Events = append(t.Events, start(), sleep(r.IntN(500)), reached("following"))
	}
	return t
}

// foreignMerged is the same where the target had documents before.
func foreignMerged(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--on-existing", "merge", "--on-conflict", choose(r, "stop", "skip", "overwrite"))}
	ids := 3 + r.IntN(3)
	t.Events = []Event{filled("plain", 20, 10), insert("c", D("_id", 0, "v", 0), D("_id", 1, "v", 0))}
	for range 1 + r.IntN(3) {
		t.Events = append(t.Events, foreignStep(r, ids))
	}
	step := func() []Event {
		if r.one(4) {
			return []Event{foreignStep(r, ids)}
		}
		return []Event{sourceStep(r, ids)}
	}
	t.Events = append(t.Events, r.among(r.list(6+r.IntN(14), step))...)
	return t
}

// expiry is a target that expires what the source keeps alive: it was cloned,
// or had the collection with its index before.
func expiry(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	on := map[string]string{"ttlMonitorEnabled": "true", "ttlMonitorSleepSecs": "1"}
	t := Trial{Args: around(), Source: Shape{Params: on}, Target: Shape{Params: on}}
	index := []any{"createIndexes", "c", "indexes", A(D("key", D("at", 1), "name", "at_1", "expireAfterSeconds", 1))}
	// alive makes documents live so many milliseconds more.
	alive := func(q bson.D, ms int, more ...any) Event {
		return update("c", q, A(D("$set", D("at", D("$add", A("$$NOW", ms))))), more...)
	}
	n := 2 + r.IntN(4)
	t.Events = []Event{src("createIndexes", "c", index[2], index[3]), filled("plain", 20, 10)}
	for id := range n {
		t.Events = append(t.Events, alive(D("_id", id), choose(r, 500, 500, 4_000, 3_600_000), "upsert", true))
	}
	refresh := func() (out []Event) {
		for id := range n {
			switch r.IntN(6) {
			case 0:
				out = append(out, remove("c", D("_id", id)))
			case 1:
				out = append(out, update("c", D("_id", id), D("$inc", D("n", 1))))
			default:
				out = append(out, alive(D("_id", id), choose(r, 3_000, 3_600_000)))
			}
		}
		return out
	}
	clone := r.one(2)
	if clone {
		t.Events = append(t.Events, Event{Do: Clone})
		t.Events = append(t.Events, refresh()...)
		if r.one(2) {
			t.Events = append(t.Events, expired())
		}
		t.Events = append(t.Events, start(), reached("following"))
	} else {
		t.Args = around("--on-existing", "merge")
		t.Events = append(t.Events, dst(index...))
		t.Events = append(t.Events, start("--max-rate-docs", "5"), reached("copying"), sleep(r.IntN(1000)))
		t.Events = append(t.Events, refresh()...)
		t.Events = append(t.Events, expired(), rate(0))
		if r.one(3) {
			t.Events = append(t.Events, reached("following"))
		}
	}
	for range r.IntN(3) {
		if r.one(3) {
			t.Events = append(t.Events, Event{Do: Kill})
			t.Events = append(t.Events, refresh()...)
			t.Events = append(t.Events, start())
			continue
		}
		t.Events = append(t.Events, refresh()...)
		if r.one(2) {
			t.Events = append(t.Events, expired())
		}
	}
	// At the end nothing is about to expire, on either side.
	t.Events = append(t.Events, alive(D(), 3_600_000, "multi", true))
	return t
}

// paused is a job that the operator pauses at any moment, and resumes.
func paused(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around(), Settle: true, Events: []Event{filled("c", 100, 10), filled("plain", 20, 10)}}
	t.Events = append(t.Events, choose(r, start(), start("--max-rate-docs", "50")),
		reached(choose(r, "copying", "following")))
	for n := range 4 + r.IntN(6) {
		lag := Together(n+1, Event{Do: PauseJob}, Event{Do: ResumeJob})
		t.Events = append(t.Events, update("c", D(), D("$inc", D("n", 1)), "multi", true), sleep(r.IntN(1100)), lag[0])
		if r.one(2) {
			t.Events = append(t.Events, insert("c", D("_id", 1000+n)), sleep(r.IntN(50)))
		}
		t.Events = append(t.Events, lag[1])
	}
	return t
}

// long has updates whose statements are much larger than what they change.
func long(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	path := text(100_000*(1+r.IntN(9)), "p")
	events := []Event{insert("c", D("_id", 1, path, D("a", 1))), filled("plain", 20, 10)}
	step := func() []Event {
		set := bson.D{}
		for i := range 1 + r.IntN(80) {
			set = append(set, bson.E{Key: fmt.Sprint("f", i), Value: r.IntN(9)})
		}
		// By a pipeline: the command has the path once, as the oplog has.
		return []Event{update("c", D("_id", 1), A(D("$set", D(path, set))))}
	}
	events = append(events, r.among(r.list(1+r.IntN(4), step))...)
	return Trial{Args: around(), Events: events}
}

// prepared transactions stay open while the job ends and begins.
func prepared(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	events := []Event{filled("c", 5, 0), filled("d", 5, 0), filled("plain", 20, 10)}
	var open []int // transactions prepared and not ended
	step := func() []Event {
		coll, id := choose(r, "c", "d"), r.IntN(100)
		switch {
		case r.one(3) && len(open) < 2:
			r.txns++
			open = append(open, r.txns)
			own := 1000 * r.txns // no two open ones want the same document
			out := []Event{insert(coll, D("_id", own)), update(choose(r, "c", "d"), D("_id", r.txns%5), D("$inc", D("n", 1))),
				remove(coll, D("_id", own-1000)), {Do: Step, Step: &history.Step{Do: history.Prepare}}}
			for i := range out {
				out[i].Step.Txn, out[i].Step.Writer = r.txns, r.txns
			}
			return out
		case r.one(3) && len(open) > 0:
			n := open[0]
			open = open[1:]
			return []Event{{Do: Step, Step: &history.Step{Do: choose(r, history.Commit, history.Commit, history.Abort), Txn: n,
				Writer: n}}}
		case r.one(8):
			return []Event{src("create", fmt.Sprint("e", r.IntN(100)))}
		}
		return []Event{insert(coll, D("_id", 50_000+id)), remove(coll, D("_id", 50_000+r.IntN(100)))}
	}
	steps := r.list(10+r.IntN(20), step)
	for _, n := range open {
		steps = append(steps, Event{Do: Step, Step: &history.Step{Do: history.Commit, Txn: n, Writer: n}})
	}
	events = append(events, r.among(steps)...)
	for i, e := range events { // while one is prepared the source lets nobody read its documents
		if e.Do == Await {
			events[i].For = time.Second
		}
	}
	return Trial{Args: around(), Events: events}
}
