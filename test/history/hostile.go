package history

import (
	"fmt"
	"math"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// hostileIDs are few, and hard to compare, to fold, or to ask for.
func (g *Generator) hostileID() any {
	return g.ids[g.r.IntN(len(g.ids))]
}

// drawIDs chooses a few for the whole history.
func (g *Generator) drawIDs() {
	all := []any{
		math.NaN(), 1e300, -1e300, math.Copysign(0, -1), 0, int64(0), 1.0, 1, int64(1 << 62), float64(1 << 62), bson.MinKey{},
		bson.MaxKey{},
		strings.Repeat("x", 900), strings.Repeat("x", 899) + "y", D("a", math.NaN()), D("a", 1), D("a", 1.0), "a", "A", "ä",
		bson.DateTime(-1), true, nil,
	}
	g.r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	g.ids = all[:3+g.r.IntN(4)]
}

// hostileSetup makes collections in which order or the comparison of _ids
// matters, of so few documents that the same come again and again.
func (g *Generator) hostileSetup() []Step {
	folded := D("locale", "en", "strength", 2)
	steps := []Step{
		run(D("create", "keyed", "collation", folded)),
		run(D("createIndexes", "keyed", "indexes", A(D("key", D("k", 1), "name", "k_1", "unique", true)))),
		run(D("create", "folded2", "collation", folded)),
	}
	if g.since(5, 3) {
		steps = append(steps, run(D("create", "clustered", "clusteredIndex", D("key", D("_id", 1), "unique", true))))
	}
	if !g.o.NoCapped {
		steps = append(steps, g.newLog(), inserting("log", D("_id", 0, "v", 0)))
	}
	return steps
}

// hostile writes documents whose _ids are equal in other bytes, or strange.
func (g *Generator) hostile() []Step {
	colls := []string{"hostile", "folded2"}
	if g.since(5, 3) {
		colls = append(colls, "clustered", "clustered")
	}
	c, id := pick(g, colls...), D("_id", D("$eq", g.hostileID()))
	switch g.r.IntN(6) {
	case 0:
		return list(deleting(c, id, 1))
	case 1:
		return list(updating(c, id, D("v", g.r.IntN(9), "by", g.n)))
	case 2, 3:
		return list(updating(c, id, D("$set", D(g.path(), g.value(1)), "$inc", D("by", 1))))
	case 4:
		return g.inTransaction(updating(c, id, D("$inc", D("by", 1))), inserting(c, D("_id", g.hostileID(), "by", g.n)))
	}
	return list(inserting(c, D("_id", g.hostileID(), "by", g.n)))
}

// keyed moves unique keys between documents of a collection that is written in
// one order.
func (g *Generator) keyed() []Step {
	id := D("_id", pick(g, "x", "X", "y", "z"))
	k := 1 + g.r.IntN(4)
	switch g.r.IntN(6) {
	case 0:
		return list(deleting("keyed", id, 1))
	case 1:
		return list(deleting("keyed", id, 1), inserting("keyed", D("_id", pick(g, "x", "X", "y", "z"), "k", k)))
	case 2:
		return list(updating("keyed", id, D("k", k), "upsert", g.one(2)))
	}
	return list(updating("keyed", id, D("$set", D("k", k)), "upsert", g.one(3)))
}

// logRoom is how many documents a log holds; it is rotated when it is full, or not.
const logRoom = 4

func (g *Generator) newLog() Step {
	return run(D("create", "log", "capped", true, "size", 4096, "max", logRoom))
}

// log rolls off documents whose _ids come again, and is rotated by name.
func (g *Generator) log() []Step {
	id := g.r.IntN(2 * logRoom)
	switch g.r.IntN(10) {
	case 0:
		out := list(run(D("renameCollection", full("", "log"), "to", full("", pick(g, "log_old", "log_older")), "dropTarget",
			true)), g.newLog())
		for i := range g.r.IntN(3) {
			out = append(out, g.logged(i, 0))
		}
		return out
	case 1:
		if g.since(5, 0) {
			return list(deleting("log", D("_id", id), 1))
		}
	case 2:
		return list(updating("log", D("_id", id), D("$set", D("v", g.r.IntN(2)))))
	case 3:
		if g.since(5, 0) {
			return list(inserting("log", D("_id", id, "v", 0), D("_id", g.r.IntN(2*logRoom), "v", 0)))
		}
	}
	return list(g.logged(id, pick(g, 0, 0, 1)))
}

// logged inserts into the log. Before 5.0 an insert that is refused, for its _id is there,
// takes the oldest document away from a capped collection that is full, and the oplog does
// not tell (seen on 4.2.6 and 4.4.2): there what exists is changed instead.
func (g *Generator) logged(id, v int) Step {
	if !g.since(5, 0) {
		return updating("log", D("_id", id), D("$set", D("v", v)), "upsert", true)
	}
	return inserting("log", D("_id", id, "v", v))
}

// applyOps are those of users. Their inserts take what is there, their updates
// what is not, as the server wants it.
func (g *Generator) applyOps() []Step {
	one := func() bson.D {
		ns, id := full("", pick(g, "ops", "ops", "hot")), g.r.IntN(4)
		switch g.r.IntN(5) {
		case 0, 1:
			return D("op", "i", "ns", ns, "o", D("_id", id, "by", g.n))
		case 2:
			return D("op", "d", "ns", ns, "o", D("_id", id))
		case 3:
			return D("op", "u", "ns", ns, "o2", D("_id", id), "o", D("_id", id, "by", g.n), "b", g.one(2))
		}
		return D("op", "u", "ns", ns, "o2", D("_id", id), "o", D("$v", 2, "diff", D("u", D("by", g.n))), "b", g.one(2))
	}
	ops := A(one())
	for range g.r.IntN(3) {
		ops = append(ops, one())
	}
	switch g.r.IntN(6) {
	case 0:
		ops = A(one(), D("op", "c", "ns", full("", "$cmd"), "o", D("applyOps", ops)))
	case 1:
		ops = append(ops, D("op", "c", "ns", full("", "$cmd"), "o", D("create", fmt.Sprint("made", g.n))))
	case 2:
		return list(deleting("ops", D("_id", g.r.IntN(4)), 1))
	}
	// It wants the whole server for itself. Behind an open transaction it would
	// wait, and everybody behind it.
	return list(run(D("applyOps", ops, "maxTimeMS", 300)))
}
