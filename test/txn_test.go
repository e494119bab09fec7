package test

import (
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// txnScenarios hold transactions.
func txnScenarios() []scenario {
	return []scenario{
		{name: "txn_one_document", setup: docsSetup, change: txnOneChange},
		{name: "txn_collections", setup: docsSetup, change: txnCollectionsChange},
		{name: "txn_aborted", setup: docsSetup, change: txnAbortedChange},
		{name: "txn_same_document", setup: docsSetup, change: txnSameChange},
		{name: "txn_large", setup: docsSetup, change: txnLargeChange},
		{name: "txn_many_operations", setup: docsSetup, change: txnManyChange},
		{name: "txn_creates", since: "4.4", setup: docsSetup, change: txnCreatesChange},
		{name: "txn_interleaved", setup: docsSetup, change: txnInterleavedChange},
		// What needs the whole server waits for a prepared transaction, and
		// everything else for that; before 6.0 many a schema change does.
		{name: "txn_prepared", setup: docsSetup, change: txnPreparedChange, alone: true},
		{name: "txn_prepared_large", setup: docsSetup, change: txnPreparedLargeChange, alone: true},
		{name: "txn_around_ddl", setup: docsSetup, change: txnAroundChange},
		{name: "txn_unique_swap", setup: docsSetup, change: txnSwapChange},
		// It waits for finds too, which are held up during the copy.
		{name: "apply_ops_by_uuid", setup: byUUIDSetup, change: byUUIDChange, only: []string{wayCopy, wayChange},
			alone: true},
		{name: "apply_ops", setup: docsSetup, change: applyOpsChange, only: []string{wayCopy, wayChange}, alone: true},
	}
}

func txnOneChange(s *site) {
	s.transaction(func(x *site) { x.insert("c", d("_id", "t", "k", "t")) })
	s.transaction(func(x *site) { x.set("c", 1, d("$inc", d("n", 1))) })
	s.transaction(func(x *site) { x.remove("c", d("_id", 2)) })
	s.transaction(func(x *site) { x.count("c", d()) }) // writes nothing
}

func txnCollectionsChange(s *site) {
	s.in("x").create("c")
	for i := range 10 {
		s.transaction(func(x *site) {
			x.insert("c", d("_id", fmt.Sprint("t", i), "k", fmt.Sprint("t", i)))
			x.set("other", i, d("$set", d("t", i)))
			x.in("x").insert("c", d("_id", i))
			x.remove("c", d("_id", i))
			x.update("other", d("_id", fmt.Sprint("up", i)), d("$set", d("u", 1)), "upsert", true)
			x.findAndModify("c", d("_id", 50+i), "update", d("whole", i, "k", fmt.Sprint("fm", i)))
		})
	}
}

func txnAbortedChange(s *site) {
	x := s.open(func(x *site) {
		x.insert("c", d("_id", "never", "k", "never"))
		x.remove("c", d("_id", 1))
	})
	defer x.end()
	x.abort()
	s.insert("c", d("_id", "after", "k", "after"))
	s.open(func(y *site) { y.insert("c", d("_id", "left", "k", "left")) }).end() // aborts
}

func txnSameChange(s *site) {
	s.transaction(func(x *site) {
		x.insert("c", d("_id", "t", "k", "t"))
		x.set("c", "t", d("$set", d("a", a(1, 2, 3))))
		x.set("c", "t", a(d("$set", d("a", d("$slice", a("$a", 1)), "b", 1))))
		x.remove("c", d("_id", "t"))
		x.insert("c", d("_id", "t", "k", "t", "second", true))
		for i := range 30 {
			x.set("c", 1, d("$inc", d("n", i), "$push", d("v", i)))
		}
		x.set("c", 2, d("whole", 1, "k", "2"))
		x.set("c", 2, d("$set", d("after", 1)))
	})
}

func txnLargeChange(s *site) {
	s.create("big")
	s.transaction(func(x *site) {
		for i := range 5 {
			x.insert("big", d("_id", i, "pad", pad(6<<20)))
			x.set("c", i, d("$set", d("t", 1)))
		}
		x.set("big", 1, d("$set", d("x", 1)))
		x.remove("big", d("_id", 2))
		x.insert("big", d("_id", 2, "pad", pad(100)))
	})
	s.set("big", 3, d("$unset", d("pad", 1)))
}

func txnManyChange(s *site) {
	s.create("many")
	s.transaction(func(x *site) {
		x.fill("many", 8000, func(i int) bson.D { return d("_id", i, "pad", pad(20)) })
		x.update("many", d("_id", d("$mod", a(3, 0))), d("$set", d("x", 1)), "multi", true)
		x.remove("many", d("_id", d("$mod", a(10, 0))))
	})
}

func txnCreatesChange(s *site) {
	s.transaction(func(x *site) {
		x.create("made")
		x.index("made", d("a", 1))
		x.index("made", d("u", 1), "unique", true)
		x.insert("made", d("_id", 1, "a", 1, "u", 1))
		x.insert("by_insert", d("_id", 1))
		x.set("c", 1, d("$set", d("t", 1)))
	})
	s.transaction(func(x *site) {
		x.index("by_index", d("b", 1))
		x.insert("by_index", d("_id", 1, "b", 1))
		x.in("new").insert("c", d("_id", 1))
	})
	x := s.open(func(x *site) {
		x.create("never")
		x.insert("never", d("_id", 1))
	})
	defer x.end()
	x.abort()
}

func txnInterleavedChange(s *site) {
	first := func(name string) *txn {
		return s.open(func(x *site) { x.insert("c", d("_id", name, "k", name)) })
	}
	x, y, z := first("x"), first("y"), first("z")
	defer x.end()
	defer y.end()
	defer z.end()
	for i := range 5 {
		x.insert("c", d("_id", fmt.Sprint("x", i), "k", fmt.Sprint("x", i)))
		y.insert("c", d("_id", fmt.Sprint("y", i), "k", fmt.Sprint("y", i)))
		s.insert("c", d("_id", fmt.Sprint("s", i), "k", fmt.Sprint("s", i)))
		z.set("c", i, d("$set", d("z", 1)))
	}
	y.commit()
	s.set("c", "y1", d("$set", d("after y", 1)))
	z.abort()
	s.set("c", 1, d("$set", d("after z", 1)))
	x.commit()
	s.remove("c", d("_id", "x2"))
}

func txnPreparedChange(s *site) {
	x := s.open(func(x *site) {
		x.insert("c", d("_id", "x", "k", "x"))
		x.set("c", 1, d("$set", d("x", 1)))
	})
	defer x.end()
	y := s.open(func(y *site) { y.insert("c", d("_id", "y", "k", "y")) })
	defer y.end()
	z := s.open(func(z *site) {
		z.insert("c", d("_id", "z", "k", "z"))
		z.remove("c", d("_id", 3))
	})
	defer z.end()
	commitX := x.prepare()
	z.prepare()
	s.insert("other", d("_id", "between"))
	commitY := y.prepare()
	commitY()
	s.insert("other", d("_id", "between too"))
	z.abort()
	commitX()
	s.set("c", "x", d("$set", d("after", 1)))
}

func txnPreparedLargeChange(s *site) {
	s.create("big")
	x := s.open(func(x *site) {
		for i := range 4 {
			x.insert("big", d("_id", i, "pad", pad(6<<20)))
		}
	})
	defer x.end()
	commit := x.prepare()
	s.insert("other", d("_id", "between"))
	commit()
}

// A transaction commits after schema changes of other collections.
func txnAroundChange(s *site) {
	x := s.open(func(x *site) {
		x.insert("c", d("_id", "t", "k", "t"))
		x.set("c", 1, d("$set", d("t", 1)))
	})
	defer x.end()
	s.create("meanwhile")
	s.rename(s.ns("other"), s.ns("renamed"))
	s.index("meanwhile", d("a", 1))
	x.commit()
	s.rename(s.ns("c"), s.ns("r"))
	s.transaction(func(x *site) { x.set("r", "t", d("$set", d("again", 1))) })
}

func txnSwapChange(s *site) {
	for i := range 10 {
		s.transaction(func(x *site) {
			x.set("c", i, d("$set", d("k", "free")))
			x.set("c", i+1, d("$set", d("k", fmt.Sprint(i))))
			x.set("c", i, d("$set", d("k", fmt.Sprint(i+1))))
		})
		s.transaction(func(x *site) { // back again
			x.remove("c", d("_id", i))
			x.set("c", i+1, d("$set", d("k", fmt.Sprint(i+1))))
			x.insert("c", d("_id", i, "k", fmt.Sprint(i), "n", i))
		})
	}
}

func applyOpsChange(s *site) {
	s.admin(d("applyOps", a(
		d("op", "i", "ns", s.ns("c"), "o", d("_id", "a", "k", "a"), "o2", d("_id", "a")),
		d("op", "i", "ns", s.ns("other"), "o", d("_id", "a"), "o2", d("_id", "a")),
		d("op", "d", "ns", s.ns("c"), "o", d("_id", 1)),
	)))
	s.admin(d("applyOps", a(
		d("op", "c", "ns", s.name()+".$cmd", "o", d("create", "made")),
	)))
	s.insert("made", d("_id", 1))
	if shared.sourceVer.AtLeast(7, 0) {
		return // it takes no classic updates there
	}
	for _, atomic := range []bool{true, false} {
		userOpsChange(s, atomic)
	}
}

func byUUIDSetup(s *site) {
	s.insert("a", d("_id", 1, "of", "a"), d("_id", 2, "of", "a"), d("_id", 3, "of", "a"))
	s.insert("b", d("_id", 1, "of", "b"))
}

// byUUIDChange replays operations that were logged for a collection which has another name
// by now: servers apply them to that one, and not to the one of the name.
func byUUIDChange(s *site) {
	uuid := func(coll string) any {
		specs, err := s.db().ListCollectionSpecifications(s.ctx, d("name", coll))
		check(err)
		return *specs[0].UUID
	}
	was, other := uuid("a"), uuid("b")
	s.rename(s.ns("a"), s.ns("old"))
	s.insert("a", d("_id", 1, "of", "new"))
	s.admin(d("applyOps", a(
		d("op", "i", "ns", s.ns("a"), "ui", was, "o", d("_id", 4, "of", "a")),
		d("op", "u", "ns", s.ns("a"), "ui", was, "o2", d("_id", 1), "o", d("$set", d("more", 1))),
		d("op", "d", "ns", s.ns("a"), "ui", was, "o", d("_id", 2)),
		d("op", "i", "ns", s.ns("a"), "ui", other, "o", d("_id", 5, "of", "b")),
	)))
	s.admin(d("applyOps", a(d("op", "c", "ns", "admin.$cmd", "o", d("applyOps", a(
		d("op", "i", "ns", s.ns("a"), "ui", was, "o", d("_id", 6, "of", "a")),
	))))))
	s.rename(s.ns("old"), s.ns("older"))
	s.insert("old", d("_id", 1))
	s.admin(d("applyOps",
		a(d("op", "c", "ns", s.ns("$cmd"), "ui", was, "o", d("collMod", "old", "validator", d("_id", d("$gt", 0)))))))
}

// userOpsChange has a user's applyOps do what only applyOps can: insert over a
// document, update what is missing, delete it. Where it is not atomic, the
// server logs each operation as what became of it.
func userOpsChange(s *site, atomic bool) {
	c, n := s.ns("c"), 20
	if !atomic {
		n = 40
	}
	ops := bson.A{
		d("op", "i", "ns", c, "o", d("_id", n, "k", fmt.Sprint("over", n))),
		d("op", "u", "ns", c, "o2", d("_id", n+1), "o", d("$set", d("y", 1, "b", 1, "a", 1))),
		d("op", "u", "ns", c, "o2", d("_id", n+1000, "q", 1), "o", d("$set", d("k", n+1000, "b", 1, "a", d("z", 1, "y", 2)))),
		d("op", "u", "ns", c, "o2", d("_id", n+1001), "o", d("$set", d("k", n+1001, "x.y", 1)), "b", true),
		d("op", "u", "ns", c, "o2", d("_id", n+1002), "o", d("_id", n+1002, "k", n+1002), "b", true),
		d("op", "u", "ns", c, "o2", d("_id", n+2), "o", d("_id", n+2, "k", n+2, "whole", 1)),
		d("op", "u", "ns", c, "o2", d("_id", n+1002), "o", d("$set", d("again", 1))),
		d("op", "i", "ns", c, "o", d("_id", n+1002, "k", n+1002, "third", 1)),
		d("op", "d", "ns", c, "o", d("_id", n+1003)),
		d("op", "d", "ns", c, "o", d("_id", n+4, "not", "looked at")),
		d("op", "i", "ns", c, "o", d("_id", n+4, "k", n+4)),
		d("op", "u", "ns", c, "o2", d("_id", n+1004), "o", d("$set", d("k", n+1004))),
		d("op", "d", "ns", c, "o", d("_id", n+1004)),
	}
	s.admin(d("applyOps", ops, "allowAtomic", atomic))
	s.admin(d("applyOps", a(d("op", "c", "ns", "admin.$cmd", "o", d("applyOps", a(
		d("op", "i", "ns", c, "o", d("_id", n+5, "k", n+5, "nested", 1)),
		d("op", "u", "ns", c, "o2", d("_id", n+1005), "o", d("$set", d("k", n+1005)), "b", true),
	)))), "allowAtomic", atomic))
	s.admin(d("applyOps", a(d("op", "u", "ns", c, "o2", d("_id", n+1006), "o", d("$set", d("k", n+1006)), "b", true)),
		"alwaysUpsert", false, "allowAtomic", atomic))
	s.admin(d("applyOps", a(
		d("op", "i", "ns", c, "o", d("_id", n+7, "k", n+7, "beside", 1)),
		d("op", "c", "ns", s.name()+".$cmd", "o", d("create", fmt.Sprint("beside", n))),
		d("op", "i", "ns", c, "o", d("_id", n+1007, "k", n+1007)),
	), "allowAtomic", atomic))
	if !shared.sourceVer.AtLeast(6, 0) {
		s.admin(d("applyOps", a(
			d("op", "u", "ns", c, "o2", d("_id", n+1008), "o", d("k", n+1008, "nameless", 1), "b", true),
			d("op", "u", "ns", c, "o2", d("_id", n+8), "o", d("k", n+8, "nameless", 1)),
		), "allowAtomic", atomic))
	}
	if shared.sourceVer.AtLeast(5, 0) {
		s.admin(d("applyOps", a(
			d("op", "u", "ns", c, "o2", d("_id", n+1009), "o", d("$v", 2, "diff", d("u", d("x", 7), "i", d("k", n+1009))), "b",
				true),
			d("op", "u", "ns", c, "o2", d("_id", n+9), "o", d("$v", 2, "diff", d("d", d("n", false), "i", d("k", n+9, "z", 1)))),
		), "allowAtomic", atomic))
	}
}

// uniqueScenarios hold documents that trade the keys of unique indexes.
func uniqueScenarios() []scenario {
	return []scenario{
		{name: "unique_swap", setup: uniqueSetup, change: uniqueSwapChange},
		{name: "unique_cycle", setup: uniqueSetup, change: uniqueCycleChange},
		{name: "unique_chain", setup: uniqueSetup, change: uniqueChainChange},
		{name: "unique_moves_by_delete", setup: uniqueSetup, change: uniqueDeleteChange},
		{name: "unique_two_indexes", setup: uniqueSetup, change: uniqueTwoChange},
		{name: "unique_under_load", setup: uniqueSetup, change: uniqueLoadChange},
		{name: "unique_arrays", setup: uniqueArraysSetup, change: uniqueArraysChange},
		{name: "unique_and_rename", setup: uniqueSetup, change: uniqueRenameChange},
	}
}

func uniqueSetup(s *site) {
	s.index("c", d("k", 1), "unique", true)
	s.index("c", d("a", 1, "b", 1), "unique", true, "partialFilterExpression", d("a", d("$exists", true)))
	s.fill("c", 100, func(i int) bson.D { return d("_id", i, "k", i, "a", i, "b", i%7) })
}

func (s *site) setKey(id int, key any) { s.set("c", id, d("$set", d("k", key))) }

func uniqueSwapChange(s *site) {
	for i := 0; i < 100; i += 2 {
		s.setKey(i, "free")
		s.setKey(i+1, i)
		s.setKey(i, i+1)
	}
	for range 5 {
		s.setKey(0, -1)
		s.setKey(1, 1)
		s.setKey(0, 0)
		s.setKey(0, -1)
		s.setKey(1, 0)
		s.setKey(0, 1)
	}
}

func uniqueCycleChange(s *site) {
	for i := 0; i+2 < 99; i += 3 {
		for range 4 { // each time one further
			s.setKey(i, "free")
			s.setKey(i+1, "free2")
			s.setKey(i+2, i)
			s.setKey(i, i+1)
			s.setKey(i+1, i+2)
			s.setKey(i+2, "free")
			s.setKey(i+1, i)
			s.setKey(i+2, i+2)
		}
	}
}

// Each document takes the key of the next, many times over.
func uniqueChainChange(s *site) {
	for range 5 {
		s.setKey(0, -1)
		for i := 1; i < 100; i++ {
			s.setKey(i, i-1+1000) // to a fresh range, then down
		}
		s.setKey(0, 0)
		for i := 1; i < 100; i++ {
			s.setKey(i, i)
		}
	}
	s.setKey(0, -1)
	for i := 1; i < 100; i++ {
		s.setKey(i, i-1)
	}
	s.update("c", d("k", d("$lt", 50)), d("$inc", d("k", -500)), "multi", true)
}

func uniqueDeleteChange(s *site) {
	for i := range 50 {
		s.remove("c", d("_id", i))
		s.insert("c", d("_id", 1000+i, "k", i))
		s.remove("c", d("_id", 1000+i))
		s.setKey(50+i, i)
		s.insert("c", d("_id", i, "k", 50+i))
	}
}

func uniqueTwoChange(s *site) {
	for i := 0; i+1 < 100; i += 2 {
		s.set("c", i, d("$set", d("k", "free", "a", "free")))
		s.set("c", i+1, d("$set", d("k", i, "a", i, "b", i%7)))
		s.set("c", i, d("$set", d("k", i+1, "a", i+1, "b", (i+1)%7)))
		s.set("c", i, d("$unset", d("a", 1)))
		s.set("c", i, d("k", i+1, "whole", true))
	}
}

func uniqueLoadChange(s *site) {
	done := make(chan error, 4)
	for w := range 4 {
		go func() {
			done <- attempt(func() {
				lo := w * 25
				for round := range 15 {
					i, j := lo+round%25, lo+(round*7+1)%25
					if i == j {
						continue
					}
					s.setKey(i, fmt.Sprint("tmp", w))
					s.setKey(j, fmt.Sprint("round", w, round))
					s.setKey(i, fmt.Sprint("was j", w, round))
					s.update("c", d("_id", 5000+w), d("$set", d("k", fmt.Sprint("tmp", w), "n", round)), "upsert", true)
					s.remove("c", d("_id", 5000+w))
				}
			})
		}()
	}
	for range 4 {
		check(<-done)
	}
}

func uniqueArraysSetup(s *site) {
	s.index("c", d("tags", 1), "unique", true)
	for i := range 20 {
		s.insert("c", d("_id", i, "tags", a(i*10, i*10+1)))
	}
}

func uniqueArraysChange(s *site) {
	for i := range 19 {
		s.set("c", i, d("$pull", d("tags", i*10)))
		s.set("c", i+1, d("$push", d("tags", i*10)))
		s.set("c", i+1, d("$push", d("tags", d("$each", a(), "$slice", -2))))
	}
}

func uniqueRenameChange(s *site) {
	s.setKey(0, "free")
	s.setKey(1, 0)
	s.rename(s.ns("c"), s.ns("r"))
	s.set("r", 0, d("$set", d("k", 1)))
	s.fill("c", 10, func(i int) bson.D { return d("_id", i, "k", 5) })
	s.rename(s.ns("r"), s.ns("c"), "dropTarget", true)
	s.setKey(5, "last")
}
