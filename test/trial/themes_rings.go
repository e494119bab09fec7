package trial

import (
	"math/rand/v2"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// makeRing makes a capped collection of a few documents, and fills it.
func makeRing(r *draw, name string, room int) []Event {
	out := []Event{src("create", name, "capped", true, "size", 4096, "max", room)}
	for id := range 1 + r.IntN(room) {
		out = append(out, insert(name, D("_id", id+1, "v", 0)))
	}
	return out
}

// ringStep inserts one of a few _ids again and again. A server before 5.0 rolls
// off without a trace, one from 5.0 on logs deletes.
func ringStep(r *draw, name string, room int) func() []Event {
	ids := room + 1 + r.IntN(3)
	return func() []Event {
		id := 1 + r.IntN(ids)
		switch r.IntN(8) {
		case 0:
			return []Event{remove(name, D("_id", id))}
		case 1:
			return []Event{update(name, D("_id", id), D("$set", D("v", r.IntN(2))))}
		case 2:
			return []Event{remove(name, D("_id", id)), insert(name, D("_id", id, "v", 0))}
		case 3:
			return []Event{insert(name, D("_id", id, "v", 0), D("_id", 1+r.IntN(ids), "v", 0))}
		}
		return []Event{insert(name, D("_id", id, "v", choose(r, 0, 0, 1)))}
	}
}

// ring rolls off, and what rolled off comes again.
func ring(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	room := 3 + r.IntN(3)
	events := append(makeRing(r, "ring", room), filled("plain", 20, 10))
	events = append(events, r.among(r.list(8+r.IntN(20), ringStep(r, "ring", room)))...)
	return Trial{Args: around(), Events: events}
}

// rotated are logs that are renamed when they are full, and begun anew by the
// same document.
func rotated(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	room := 3 + r.IntN(3)
	events := append(makeRing(r, "log", room), filled("plain", 20, 10))
	writes := ringStep(r, "log", room)
	step := func() []Event {
		if !r.one(5) {
			return writes()
		}
		to := choose(r, "log_old", "log_old", "log_older")
		out := []Event{rename("DB.log", "DB."+to, true), src("create", "log", "capped", true, "size", 4096, "max", room)}
		if r.one(3) {
			out[0] = src("drop", "log")
		}
		for id := range r.IntN(3) {
			out = append(out, insert("log", D("_id", id+1, "v", 0)))
		}
		return out
	}
	events = append(events, r.among(r.list(8+r.IntN(20), step))...)
	return Trial{Args: around(), Events: events}
}

// ringKeys is a ring whose documents have keys that no two may share.
func ringKeys(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	room := 3 + r.IntN(3)
	events := []Event{
		src("create", "ring", "capped", true, "size", 4096, "max", room),
		src("createIndexes", "ring", "indexes", A(D("key", D("k", 1), "name", "k_1", "unique", true))),
		filled("plain", 20, 10),
	}
	// What is in it, so that most writes are taken.
	var ids, keys []int
	n := 0
	step := func() []Event {
		k := r.IntN(room + 2)
		taken := slices.Contains(keys, k) && !r.one(6)
		switch i := r.IntN(max(1, len(ids))); {
		case len(ids) > 0 && r.one(8):
			id := ids[i]
			ids, keys = slices.Delete(ids, i, i+1), slices.Delete(keys, i, i+1)
			return []Event{remove("ring", D("_id", id))}
		case taken:
			return nil
		case len(ids) > 0 && r.IntN(2) == 0:
			keys[i] = k
			return []Event{update("ring", D("_id", ids[i]), D("$set", D("k", k)))}
		}
		n++
		ids, keys = append(ids, n), append(keys, k)
		if len(ids) > room {
			ids, keys = ids[1:], keys[1:]
		}
		return []Event{insert("ring", D("_id", n, "k", k))}
	}
	events = append(events, r.list(room, step)...)
	if steps := r.list(12+r.IntN(20), step); r.one(3) {
		events = append(events, r.among(steps)...)
	} else {
		events = append(events, r.bursts(steps)...)
	}
	return Trial{Args: around(), Events: events}
}

// serial collections are those whose order of writes is content: _ids that are
// equal though their bytes differ, and unique keys among them.
func serial(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	t := Trial{Args: around("--partitions", choose(r, "1", "2", "8"))}
	t.Events = []Event{src("create", "c", "collation", D("locale", "en", "strength", 2))}
	if r.IntN(3) > 0 {
		t.Events = append(t.Events, src("createIndexes", "c", "indexes",
			A(D("key", D("k", 1), "name", "k_1", "unique", true))))
	}
	ids := choose(r, []any{"x", "y", "z"}, []any{"x", "y", "z", "X"}, []any{"a", "A"}, []any{"a", "A", "b"})
	step := func() []Event {
		id, k := ids[r.IntN(len(ids))], 1+r.IntN(3)
		switch r.IntN(8) {
		case 0, 1, 2:
			return []Event{update("c", D("_id", id), D("$set", D("k", k)))}
		case 3:
			return []Event{update("c", D("_id", id), D("k", k), "upsert", r.one(2))}
		case 4:
			return []Event{remove("c", D("_id", id))}
		case 5:
			return []Event{update("c", D("_id", id), D("$set", D("k", k)), "upsert", true)}
		case 6:
			return []Event{remove("c", D("_id", id)), insert("c", D("_id", ids[r.IntN(len(ids))], "k", k))}
		}
		return []Event{insert("c", D("_id", id, "k", k))}
	}
	t.Events = append(t.Events, r.list(3, step)...)
	steps := r.list(12+r.IntN(20), step)
	if r.one(4) {
		t.Events = append(t.Events, filled("plain", 20, 10))
		steps = r.anywhere(steps)
	} else {
		steps = r.bursts(steps)
	}
	t.Events = append(t.Events, steps...)
	return t
}

// hostileIDs are hard to compare, to fold or to put into a query.
func hostileIDs(r *draw) []any {
	all := []any{
		nan(), 1e300, -1e300, negativeZero(), 0, int64(0), 1.0, int32(1), int64(1 << 62), float64(1 << 62), 9.3e18,
		bson.MinKey{}, bson.MaxKey{},
		text(900, "x"), text(900, "y"), D("a", nan()), D("a", 1), D("a", 1.0), "a", "A", bson.DateTime(-1), true, nil,
		decimal("NaN"), decimal("1E+300"), decimal("0"),
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:3+r.IntN(4)]
}

// hostile _ids in collections of all kinds.
func hostile(rnd *rand.Rand) Trial {
	r := &draw{Rand: rnd}
	events := []Event{
		src("create", "clustered", "clusteredIndex", D("key", D("_id", 1), "unique", true)),
		src("create", "plain"), src("create", "folded", "collation", D("locale", "en", "strength", 1)),
		src("create", "ring", "capped", true, "size", 8192, "max", 3),
		src("createIndexes", "plain", "indexes", A(D("key", D("k", 1), "name", "k_1", "unique", true, "sparse", true))),
		filled("more", 20, 10),
	}
	ids := hostileIDs(r)
	// Large ones come in a collection of their own: hundreds of them in one query.
	large := r.one(6)
	step := func() []Event {
		coll, id := choose(r, "clustered", "clustered", "plain", "folded", "ring"), ids[r.IntN(len(ids))]
		switch r.IntN(8) {
		case 0:
			return []Event{remove(coll, D("_id", D("$eq", id)))}
		case 1, 2:
			return []Event{update(coll, D("_id", D("$eq", id)), D("$set", D("v", r.IntN(9)), "$inc", D("n", 1)))}
		case 3:
			return []Event{update(coll, D("_id", D("$eq", id)), D("v", r.IntN(9)))}
		case 4:
			return r.txn("commit", update(coll, D("_id", D("$eq", id)), D("$set", D("v", r.IntN(9)))),
				insert("plain", D("_id", id, "v", 0)))
		}
		return []Event{insert(coll, D("_id", id, "v", r.IntN(9)))}
	}
	events = append(events, r.list(5, step)...)
	steps := r.list(8+r.IntN(20), step)
	if large {
		at := r.IntN(len(steps))
		more := []Event{
			src("aggregate", "more", "pipeline", A(D("$limit", 1), D("$set", D("r", D("$range", A(0, 300)))), D("$unwind", "$r"),
				D("$project", D("_id", D("n", "$r", "pad", text(70_000, "p")))), D("$merge", D("into", "large"))), "cursor", D()),
			src("update", "large", "updates", A(D("q", D(), "u", D("$set", D("v", 1)), "multi", true))),
			src("delete", "large", "deletes", A(D("q", D(), "limit", 0))),
		}
		steps = append(steps[:at:at], append(more[:2+r.IntN(2)], steps[at:]...)...)
	}
	events = append(events, r.among(steps)...)
	return Trial{Args: around(), Events: events}
}
