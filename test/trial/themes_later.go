package trial

import "math/rand/v2"

// laterReferences has documents of the target differ, or be refused by it, and their
// collections be renamed, replaced, dropped and made anew between what finds them and what
// refers to them later: repairs, and retries of dead letters.
func laterReferences(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	if r.one(3) {
		return r.lettersLater()
	}
	t := Trial{Args: []string{"--include", Database, "--on-conflict", choose(r, "skip", "overwrite")}, Served: true}
	var setup []Event
	for _, name := range []string{"a", "b"} {
		setup = append(setup, insert(name, D("_id", 0, "of", name), D("_id", 1, "of", name), D("_id", 2, "of", name)))
	}
	t.Events = following(setup)
	name := func() string { return choose(r, "a", "a", "b", "c") }
	damage := func(n int) []Event {
		c, id := name(), r.IntN(4)
		switch r.IntN(4) {
		case 0:
			return []Event{dst("delete", c, "deletes", A(D("q", D("_id", id), "limit", 1)))}
		case 1:
			if n == 0 { // later it may make a collection, which is in the job's way
				return []Event{dst("insert", choose(r, "a", "b"), "documents", A(D("_id", 10+id, "of", "somebody else")))}
			}
		}
		return []Event{dst("update", c, "updates", A(D("q", D("_id", id), "u", D("$set", D("by", "somebody else")))))}
	}
	for n := range 1 + r.IntN(2) {
		if n > 0 {
			t.Events = append(t.Events, r.list(1+r.IntN(3), func() []Event { return r.named(name) })...)
			t.Events = append(t.Events, caughtUp())
		}
		found := Together(n+1, Event{Do: Verify},
			Event{Do: Repair, Args: choose(r, []string{"--all"}, []string{"--all"}, []string{"--ns", "db.a"})})
		t.Events = append(append(t.Events, r.list(1+r.IntN(4), func() []Event { return damage(n) })...), found[0])
		t.Events = append(t.Events, r.list(r.IntN(5), func() []Event { return r.named(name) })...)
		if r.one(2) {
			t.Events = append(t.Events, caughtUp())
		}
		t.Events = append(t.Events, found[1], caughtUp())
	}
	return t
}

// lettersLater has documents be refused, before the job is finalized and after.
func (r *draw) lettersLater() Trial {
	t := Trial{Args: around("--on-conflict", "skip")}
	name := func() string { return choose(r, "a", "a", "b", "c") }
	// The key of what somebody else inserts is that of a document to come.
	var theirs, refused, freed []Event
	for k := range 1 + r.IntN(3) {
		c, id := choose(r, "a", "b"), 10+k
		theirs = append(theirs, dst("insert", c, "documents", A(D("_id", 100+k, "k", id))))
		refused = append(refused, insert(c, D("_id", id, "k", id)))
		freed = append(freed, dst("delete", choose(r, c, name()), "deletes", A(D("q", D("_id", 100+k), "limit", 1))))
	}
	var setup []Event
	for _, c := range []string{"a", "b"} {
		setup = append(setup, insert(c, D("_id", 0, "k", 0)),
			src("createIndexes", c, "indexes", A(D("key", D("k", 1), "name", "k", "unique", true))))
	}
	t.Events = append(following(setup), theirs...)
	t.Events = append(append(t.Events, refused...), caughtUp())
	t.Events = append(t.Events, r.list(r.IntN(4), func() []Event { return r.named(name) })...)
	if r.one(2) {
		t.Events = append(t.Events, freed...)
		t.Events = append(t.Events, Event{Do: Retry}, caughtUp())
		return t
	}
	t.Events = append(t.Events, caughtUp(), Event{Do: Cutover})
	after := append(freed, r.list(r.IntN(5), func() []Event { return r.named(name) })...)
	r.Shuffle(len(after), func(i, j int) { after[i], after[j] = after[j], after[i] })
	for _, e := range after {
		e.On = Target // applications use it
		t.Events = append(t.Events, e)
	}
	t.Events = append(t.Events, Event{Do: Retry})
	return t
}

// named changes what a name means, or its documents.
func (r *draw) named(name func() string) []Event {
	c, to := name(), name()
	if c == to {
		to += "2"
	}
	switch r.IntN(10) {
	case 0, 1, 2:
		return []Event{rename("DB."+c, "DB."+to, r.one(2))}
	case 3: // another one has the name
		return []Event{rename("DB.a", "DB.moved", true), rename("DB.b", "DB.a", true)}
	case 4:
		return []Event{src("drop", c), insert(c, D("_id", r.IntN(4), "of", c+" anew"))}
	case 5:
		return []Event{choose(r, src("drop", c), src("dropDatabase", 1))}
	case 6:
		return []Event{src("convertToCapped", c, "size", 100_000)}
	case 7:
		return []Event{src("aggregate", c, "pipeline", A(D("$out", to)), "cursor", D())}
	case 8:
		return []Event{remove(c, D("_id", r.IntN(4)))}
	}
	return []Event{update(c, D("_id", r.IntN(4)), D("$inc", D("v", 1)))}
}
