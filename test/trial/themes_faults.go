package trial

import (
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/millrace/millrace/test/kit"
)

// faultThemes are those about servers and processes.
func faultThemes() []Theme {
	return []Theme{
		{"rollback", rollback},
		{"abandoned", abandoned},
		{"two-owners", twoOwners},
		{"hidden-conflict", hiddenConflict},
		{"isolated-source", isolatedSource},
		{"drop-rolled-back", dropRolledBack},
		{"copy-rollback", copyRollback},
		{"deposed-target", deposedTarget},
		{"late-owner", lateOwner},
		{"abandoned-copy", abandonedCopy},
		{"abandoned-schema", abandonedSchema},
		{"elections", elections},
	}
}

// included is the job of database db.
func included(more ...string) []string { return append([]string{"--include", "db.*"}, more...) }

// rollback loses writes of the target that millrace had acknowledged, while the
// source says nothing that would make it look again.
func rollback(r *rand.Rand) Trial {
	t := Trial{Target: Shape{Members: 3}, Args: included("--partitions", fmt.Sprint(pick(r, 1, 2, 4, 8)))}
	n := 10 + r.IntN(200)
	t.Events = []Event{Filled("db", "c", 0, n, 50), Begin(""), Until("", "phase:following"), Until("", "caught-up")}
	if r.IntN(2) == 0 {
		t.Events = append(t.Events, For(between(r, 0, 1500*time.Millisecond)))
	}
	more := 50 + r.IntN(500)
	write := Filled("db", "c", n, n+more, 50)
	switch r.IntN(3) {
	case 0: // held up as soon as something was acknowledged
		t.Events = append(t.Events, Event{Do: Arm, Points: fmt.Sprintf("batch.after:%d=%s", 1+r.IntN(4),
			pick(r, "stop", "sleep:3s", "sleep:5s"))}, Event{Do: Hold, On: Target}, write,
			Event{Do: Await, Want: "point", For: 3 * time.Second}, Event{Do: Down, On: Target}, Event{Do: Release, On: Target},
			Until(Target, "primary"), Event{Do: Wake})
	case 1: // the next save comes late
		t.Events = append(t.Events, Event{Do: Arm, Points: "position.before:1=sleep:4s"},
			Event{Do: Await, Want: "point:position.before", For: 5 * time.Second},
			Event{Do: Hold, On: Target}, write, Event{Do: Await, On: Target, Want: fmt.Sprintf("count:db.c=%d", n+more),
				For: 3 * time.Second},
			Event{Do: Down, On: Target}, Event{Do: Release, On: Target}, Until(Target, "primary"))
	default: // by chance
		t.Events = append(t.Events, Event{Do: Hold, On: Target}, write,
			For(between(r, 10*time.Millisecond, 400*time.Millisecond)),
			Event{Do: Down, On: Target}, Event{Do: Release, On: Target}, Until(Target, "primary"))
	}
	t.Events = append(t.Events, For(between(r, 500*time.Millisecond, 2500*time.Millisecond)), Event{Do: Up, On: Target},
		Event{Do: Await, Want: "caught-up", For: 10 * time.Second})
	return t
}

// copyRollback does the same to a copy.
func copyRollback(r *rand.Rand) Trial {
	t := Trial{Target: Shape{Members: 3}, Args: included("--readers", fmt.Sprint(1+r.IntN(3)), "--writers",
		fmt.Sprint(1+r.IntN(3)))}
	for c := range 1 + r.IntN(3) {
		t.Events = append(t.Events, Filled("db", fmt.Sprint("c", c), 0, 500+r.IntN(5000), 1000))
	}
	// Where only the writer sleeps, the rest of millrace learns of the new primary.
	then := pick(r, "stop", "sleep:3s", "sleep:5s", "sleep:6s")
	t.Events = append(t.Events, Begin(fmt.Sprintf("copy.before:%d=stop;copy.after:%d=%s", 1+r.IntN(2), 1+r.IntN(3), then)),
		Event{Do: Await, Want: "point:copy.before", For: 20 * time.Second}, Event{Do: Hold, On: Target}, Event{Do: Wake},
		Event{Do: Await, Want: "point:copy.after", For: 5 * time.Second}, Event{Do: Down, On: Target},
		Event{Do: Release, On: Target},
		Until(Target, "primary"), Event{Do: Wake}, For(between(r, 500*time.Millisecond, 6*time.Second)))
	if r.IntN(2) == 0 {
		t.Events = append(t.Events, Event{Do: Kill})
	}
	t.Events = append(t.Events, Event{Do: Up, On: Target})
	return t
}

// abandoned lets commands of an attempt go on when the next one writes already.
func abandoned(r *rand.Rand) (t Trial) {
	t.Args = included()
	n := 400 + r.IntN(2500)
	t.Events = []Event{Filled("db", "c", 0, n, 0), Begin("", "--partitions", fmt.Sprint(pick(r, 0, 1, 8))),
		Until("", "phase:following")}
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	manyKeys := r.IntN(2) == 0
	if manyKeys {
		keys := A()
		for i := range 100 + r.IntN(100) {
			keys = append(keys, i)
		}
		add(Do("db", D("update", "c", "updates", A(D("q", D(), "u", D("$set", D("x", keys, "y", keys)), "multi", true)))),
			Until("", "caught-up"))
		indexes := D("createIndexes", "c", "indexes",
			A(D("key", D("x", 1), "name", "x_1"), D("key", D("x", -1, "n", 1), "name", "x_2"),
				D("key", D("y", 1), "name", "y_1"), D("key", D("y", 1, "n", 1), "name", "y_2")))
		add(Together(1, Foreign("db", indexes))...)
		defer func() {
			t.Events = append(t.Events,
				Together(1, Foreign("db", D("dropIndexes", "c", "index", A("x_1", "x_2", "y_1", "y_2"))))...)
		}()
	}
	add(Until("", "caught-up"))
	slow := func() { // so many commands wait before they are run
		if !manyKeys {
			add(Event{Do: FailPoint, On: Target,
				Cmd: kit.Raw(D("configureFailPoint", "failCommand", "mode", D("times", 1+r.IntN(8)), "data",
					D("failCommands", pick(r, A("delete"), A("delete"), A("delete", "update")), "namespace", "db.c", "blockConnection",
						true, "blockTimeMS", 1500+r.IntN(4000))))})
		}
	}
	for range 1 + r.IntN(2) {
		slow()
		lo := r.IntN(n / 2)
		again := Filled("db", "c", lo+r.IntN(n/2), n, 0) // not at once: it would be one operation with the delete
		add(Do("db", D("delete", "c", "deletes", A(D("q", D("_id", D("$gte", lo)), "limit", 0)))))
		if manyKeys {
			add(For(between(r, 30*time.Millisecond, 500*time.Millisecond)))
		} else {
			add(Event{Do: Await, On: Target, Want: "entered:failCommand", For: 3 * time.Second})
		}
		early := r.IntN(2) == 0
		if early {
			add(again)
		}
		if r.IntN(3) > 0 {
			add(Event{Do: KillCursors})
		} else {
			add(Event{Do: Kill}, Begin("", "--partitions", fmt.Sprint(pick(r, 1, 2, 8))))
		}
		if !early {
			add(again)
		}
		add(For(between(r, 100*time.Millisecond, 900*time.Millisecond)))
		for range r.IntN(3) {
			add(Event{Do: KillCursors}, For(between(r, 100*time.Millisecond, 900*time.Millisecond)))
		}
	}
	add(Event{Do: Await, Want: "caught-up", For: 20 * time.Second}, For(between(r, 0, 3*time.Second)))
	return t
}

// twoOwners begins a job anew beside its living owner.
func twoOwners(r *rand.Rand) Trial {
	t := Trial{Args: included("--on-existing", "drop")} // what is merged may keep what the source has deleted
	n := 500 + r.IntN(3000)
	t.Events = []Event{Filled("db", "c", 0, n, 200), Begin(""), Until("", "phase:following"), Until("", "caught-up")}
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	halted := r.IntN(3) == 0
	if halted {
		add(Event{Do: Stop})
	}
	at := fmt.Sprintf("%s:1=sleep:%dms", pick(r, "copy.before", "copy.before", "copy.after", "phase.before"),
		1500+r.IntN(3000))
	add(Event{Do: Start, Process: 1, Args: []string{"--restart"}, Points: at},
		Event{Do: Await, Process: 1, Want: "point", For: 20 * time.Second})
	if halted {
		add(Event{Do: Wake})
	}
	for range 1 + r.IntN(4) {
		lo := r.IntN(n)
		add(Do("db", D("delete", "c", "deletes", A(D("q", D("_id", D("$gte", lo, "$lt", lo+r.IntN(n))), "limit", 0)))))
		if r.IntN(4) == 0 {
			add(Do("db", D("update", "c", "updates", A(D("q", D(), "u", D("$inc", D("n", 1)), "multi", true)))))
		}
		add(For(between(r, 50*time.Millisecond, 1200*time.Millisecond)))
	}
	add(For(between(r, 500*time.Millisecond, 4*time.Second)))
	switch r.IntN(3) {
	case 0:
		add(Event{Do: Kill})
	case 1:
		add(Event{Do: Kill, Process: 1}, For(time.Second))
	}
	add(Event{Do: Await, Want: "caught-up", For: 10 * time.Second})
	return t
}

// hiddenConflict changes the target by hand; the job stops over it, and is
// started again as by a supervisor.
func hiddenConflict(r *rand.Rand) Trial {
	t := Trial{Args: included()}
	n := 50 + r.IntN(500)
	t.Events = []Event{Filled("db", "c", 0, n, 20), Begin(""), Until("", "phase:following"), Until("", "caught-up")}
	for i := range 1 + r.IntN(3) {
		id := r.IntN(n)
		foreign := Foreign("db", D("delete", "c", "deletes", A(D("q", D("_id", id), "limit", 1))))
		ours := Do("db", D("update", "c", "updates", A(D("q", D("_id", id), "u", D("$set", D("by", i+1))))))
		if r.IntN(2) == 0 {
			id += n
			foreign = Foreign("db", D("insert", "c", "documents", A(D("_id", id, "theirs", true))))
			ours = Do("db", D("insert", "c", "documents", A(D("_id", id, "ours", true))))
		}
		t.Events = append(t.Events, Together(i+1, foreign, ours)...)
		if r.IntN(2) == 0 {
			t.Events = append(t.Events, For(between(r, 0, time.Second)))
		}
		switch r.IntN(3) {
		case 0:
			t.Events = append(t.Events, Event{Do: Kill}, Begin(""))
		case 1:
			t.Events = append(t.Events, Event{Do: Await, Want: "ended", For: 3 * time.Second}, Begin(""),
				For(between(r, 0, 2*time.Second)))
		}
	}
	return t
}

// isolatedSource finalizes beside a primary that does not know yet that it is
// none any more.
func isolatedSource(r *rand.Rand) Trial {
	t := Trial{Source: Shape{Members: 3, Proxy: true}, Args: included()}
	n := 20 + r.IntN(200)
	majority := D("w", "majority", "wtimeout", 5000)
	t.Events = []Event{Filled("db", "c", 0, n, 20), Begin(""), Until("", "phase:following"), Until("", "caught-up"),
		For(between(r, 0, 800*time.Millisecond)),
		{Do: Isolate, Alone: r.IntN(4) > 0}}
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	if r.IntN(4) == 0 {
		add(Event{Do: Run, Member: "isolated", DB: "db",
			Cmd: kit.Raw(D("insert", "c", "documents", A(D("_id", "lost")), "writeConcern", D("w", 1)))})
	}
	add(Event{Do: Elect}, Until(Source, "primary"),
		Do("db", D("insert", "c", "documents", A(D("_id", "acknowledged")), "writeConcern", majority)))
	if r.IntN(2) == 0 {
		add(Do("db", D("delete", "c", "deletes", A(D("q", D("_id", r.IntN(n)), "limit", 1)), "writeConcern", majority)))
	}
	if r.IntN(2) == 0 {
		add(For(between(r, 0, 300*time.Millisecond)))
	}
	add(Event{Do: Finalize}, Event{Do: Await, Want: "ended", For: between(r, 2*time.Second, 5*time.Second)},
		Event{Do: Rejoin}, Event{Do: Await, Want: "ended", For: 10 * time.Second})
	return t
}

// dropRolledBack drops a collection during its copy and has the drop rolled
// back.
func dropRolledBack(r *rand.Rand) Trial {
	t := Trial{Source: Shape{Members: 3}, Args: included("--readers", fmt.Sprint(1+r.IntN(2)), "--writers", "1")}
	n := 8000 + r.IntN(20000)
	t.Events = []Event{Filled("db", "c", 0, n, 1000), Filled("db", "d", 0, 100, 10),
		Begin(fmt.Sprintf("copy.before:%d=stop", 1+r.IntN(3))),
		{Do: Await, Want: "point:copy.before", For: 20 * time.Second}, {Do: Hold}, Do("db", D("drop", "c")), {Do: Wake},
		For(between(r, 300*time.Millisecond, 4*time.Second)), {Do: Down}, {Do: Release}, Until(Source, "primary"),
		For(between(r, 0, 2*time.Second)), {Do: Up}, {Do: Await, Want: "caught-up", For: 10 * time.Second}}
	return t
}

// deposedTarget lets a primary of the target go on that is none any more: what
// it acknowledged is rolled back.
func deposedTarget(r *rand.Rand) Trial {
	t := Trial{Target: Shape{Members: 3, Proxy: true}, Args: included("--partitions", fmt.Sprint(pick(r, 1, 4, 8)))}
	n := 10 + r.IntN(200)
	t.Events = []Event{Filled("db", "c", 0, n, 50), Begin(""), Until("", "phase:following"), Until("", "caught-up"),
		For(between(r, 0, 1200*time.Millisecond))}
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	more := 50 + r.IntN(300)
	if r.IntN(2) == 0 { // the next save comes late
		add(Event{Do: Arm, Points: fmt.Sprintf("position.before:1=sleep:%ds", 3+r.IntN(4))},
			Event{Do: Await, Want: "point:position.before", For: 5 * time.Second})
	}
	if r.IntN(2) == 0 {
		add(Event{Do: Hold, On: Target}, Filled("db", "c", n, n+more, 50),
			For(between(r, 10*time.Millisecond, 600*time.Millisecond)),
			Event{Do: StepDown, On: Target}, Event{Do: Release, On: Target})
	} else {
		add(Event{Do: Isolate, On: Target, Alone: r.IntN(2) == 0}, Filled("db", "c", n, n+more, 50),
			For(between(r, 10*time.Millisecond, 400*time.Millisecond)))
		if r.IntN(2) == 0 {
			add(Event{Do: Elect, On: Target})
		}
	}
	add(Until(Target, "primary"), For(between(r, 300*time.Millisecond, 5*time.Second)))
	if r.IntN(4) == 0 {
		add(Event{Do: Kill})
	}
	add(Event{Do: Rejoin, On: Target}, Event{Do: Await, Want: "caught-up", For: 10 * time.Second})
	return t
}

// lateOwner wakes an owner up that another one has taken the job from.
func lateOwner(r *rand.Rand) Trial {
	t := Trial{Args: included("--partitions", fmt.Sprint(pick(r, 1, 4)))}
	n := 100 + r.IntN(900)
	at := pick(r, "send.before", "send.before", "batch.before", "batch.after", "save.before", "position.before",
		"commit.before", "schema.noted", "note.before")
	t.Events = []Event{Filled("db", "c", 0, n, 50), Begin(""), Until("", "phase:following"), Until("", "caught-up"),
		{Do: Arm, Points: at + ":1=stop"},
		Do("db", D("delete", "c", "deletes", A(D("q", D("_id", D("$gte", r.IntN(n))), "limit", 0)))),
		Do("db", D("create", "d")),
		Do("db", D("update", "c", "updates", A(D("q", D(), "u", D("$inc", D("n", 1)), "multi", true)))),
		{Do: Await, Want: "point", For: 3 * time.Second}, {Do: Stop}, {Do: Start, Process: 1},
		{Do: Await, Process: 1, Want: "caught-up", For: 25 * time.Second},
		Filled("db", "c", n/2, n, 50), {Do: Run, DB: "db", Cmd: kit.Raw(D("drop", "d"))},
		{Do: Await, Process: 1, Want: "caught-up", For: 5 * time.Second},
		{Do: Wake}, For(between(r, 500*time.Millisecond, 3*time.Second)),
		{Do: Await, Process: 1, Want: "caught-up", For: 5 * time.Second}}
	return t
}

// blocked has the target wait before it runs a few commands, on a collection
// only if one is named.
func blocked(r *rand.Rand, ns string, commands ...any) Event {
	data := D("failCommands", A(commands...), "blockConnection", true, "blockTimeMS", 2500+r.IntN(4000))
	if ns != "" {
		data = append(data, D("namespace", ns)...)
	}
	return Event{Do: FailPoint, On: Target,
		Cmd: kit.Raw(D("configureFailPoint", "failCommand", "mode", D("times", 1+r.IntN(3)), "data", data))}
}

// interrupted ends an attempt of the job, or a process.
func interrupted(r *rand.Rand) []Event {
	if r.IntN(2) == 0 {
		return []Event{{Do: KillCursors}, For(between(r, 0, 500*time.Millisecond)), {Do: KillCursors}}
	}
	return []Event{{Do: Kill}, Begin("", settings(r)...)}
}

// abandonedCopy lets inserts of a copy go on when the next attempt has done them
// and follows.
func abandonedCopy(r *rand.Rand) Trial {
	t := Trial{Args: included("--readers", fmt.Sprint(1+r.IntN(3)))}
	n := 200 + r.IntN(4000)
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	for c := range 1 + r.IntN(3) {
		add(Filled("db", fmt.Sprint("c", c), 0, n, 500))
	}
	add(Do("db", D("create", "warm")), blocked(r, "db.c0", "insert"), Begin("copy.before:1=note"),
		Event{Do: Await, Want: "point", For: 10 * time.Second},
		Event{Do: Await, On: Target, Want: "entered:failCommand", For: 3 * time.Second})
	lo := r.IntN(n)
	gone := Do("db", D("delete", "c0", "deletes", A(D("q", D("_id", D("$gte", lo)), "limit", 0))))
	early := r.IntN(2) == 0
	if early {
		add(gone)
	}
	add(interrupted(r)...)
	if !early {
		add(For(between(r, 0, time.Second)), gone)
	}
	add(Event{Do: Await, Want: "phase:following", For: 20 * time.Second},
		Event{Do: Await, Want: "caught-up", For: 10 * time.Second}, For(between(r, 0, 2*time.Second)))
	return t
}

// abandonedSchema does so with a schema change.
func abandonedSchema(r *rand.Rand) Trial {
	t := Trial{Args: included("--partitions", fmt.Sprint(pick(r, 1, 4)))}
	n := 50 + r.IntN(500)
	add := func(e ...Event) { t.Events = append(t.Events, e...) }
	add(Filled("db", "c", 0, n, 50), Filled("db", "d", 0, 10, 50), Begin(""), Until("", "phase:following"),
		Until("", "caught-up"))
	var change Event
	var after []Event
	switch r.IntN(3) {
	case 0:
		change, after = Do("db", D("drop", "c")), []Event{Filled("db", "c", 0, n/2, 10)}
	case 1:
		change, after = Event{Do: Run, DB: "admin", Cmd: kit.Raw(D("renameCollection", "db.c", "to", "db.e"))},
			[]Event{Filled("db", "c", 0, n/2, 10), Do("db", D("drop", "e"))}
	default:
		change, after = Do("db", D("dropDatabase", 1)), []Event{Filled("db", "c", 0, n/2, 10), Filled("db", "e", 0, 10, 10)}
	}
	add(blocked(r, "", "drop", "renameCollection", "dropDatabase", "create"), change,
		Event{Do: Await, On: Target, Want: "entered:failCommand", For: 3 * time.Second})
	early := r.IntN(2) == 0
	if early {
		add(after...)
	}
	add(interrupted(r)...)
	if !early {
		add(after...)
	}
	add(Event{Do: Await, Want: "caught-up", For: 20 * time.Second}, For(between(r, 0, 3*time.Second)))
	return t
}
