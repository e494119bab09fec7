package test

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
)

// skipScenarios leave operations out. Each says by itself what the target is to hold
// then: want makes it in another database, from what setup has made there.
func skipScenarios() []scenario {
	all := func(ops string) []string { return []string{"DB.*=" + ops, "DB-x.*=" + ops} }
	return []scenario{
		{name: "skip_delete", skip: all("delete"), setup: rowsSetup, change: skipDelete, want: wantDelete},
		{name: "skip_insert", skip: all("insert"), setup: rowsSetup, change: skipInsert, want: wantInsert},
		{name: "skip_update", skip: all("update"), setup: rowsSetup, change: skipUpdate, want: wantUpdate},
		{name: "skip_replace", skip: all("replace"), setup: rowsSetup, change: skipUpdate, want: wantReplace,
			late: skipUpdate},
		{name: "skip_update_and_replace", skip: all("update,replace"), setup: rowsSetup, change: skipUpdate,
			want: wantNeither},
		{name: "skip_documents", skip: all("insert,update,replace,delete"), setup: rowsSetup, change: skipAll,
			want: func(*site) {}},
		{name: "skip_create", skip: all("create"), setup: rowsSetup, change: skipCreate, want: wantCreate},
		{name: "skip_drop", skip: all("drop"), setup: rowsSetup, change: skipDrop, want: wantDrop},
		{name: "skip_drop_and_rename", skip: all("drop"), setup: rowsSetup, change: skipDropRename, want: wantDropRename},
		{name: "skip_drop_database", skip: all("drop,dropDatabase"), setup: skipDatabaseSetup, change: skipDatabase,
			want: wantDatabase},
		{name: "skip_rename", skip: all("rename"), setup: rowsSetup, change: skipRename, want: wantRename,
			late: lateRename},
		{name: "skip_create_indexes", skip: all("createIndexes"), setup: skipIndexSetup, change: skipIndexes,
			want: wantCreateIndexes},
		{name: "skip_drop_indexes", skip: all("dropIndexes"), setup: skipIndexSetup, change: skipIndexes,
			want: wantDropIndexes},
		{name: "skip_coll_mod", skip: all("collMod"), setup: skipIndexSetup, change: skipIndexes, want: wantCollMod},
		{name: "skip_first_rule", skip: []string{"DB.c=none", "DB.*=delete"}, setup: rowsSetup, change: skipFirst,
			want: wantFirst},
		{name: "skip_and_filter", skip: all("delete"), filter: []string{`DB.c={"s":"open"}`}, setup: skipFilterSetup,
			change: skipFilter, want: wantFilter},
		{name: "skip_renamed_on_the_way", skip: []string{"DB.c=delete"}, rename: []string{"DB.c=DB.e"},
			setup: skipMappedSetup, change: skipMapped, want: wantMapped},
		{name: "skip_delete_of_an_equal_id", skip: all("delete"), setup: collatedSetup, change: collatedChange,
			want: wantCollated},
		{name: "skip_renamed_elsewhere", skip: []string{"DB.c=delete"}, setup: rowsSetup, change: softRenamedChange,
			want: softRenamedChange},
	}
}

func skipDelete(s *site) {
	s.remove("c", d("n", d("$lt", 30)))
	s.findAndModify("c", d("_id", 40), "remove", true)
	s.insert("c", d("_id", 3, "anew", true)) // of one that was left
	s.set("c", 3, d("$set", d("more", 1)))
	s.set("c", 50, d("$set", d("last", 1)))
	s.remove("c", d("_id", 50))
	s.transaction(func(s *site) {
		s.remove("d", d("_id", 1))
		s.insert("d", d("_id", 1, "anew", true))
		s.remove("d", d("_id", 2))
	})
	for i := range 5 {
		s.remove("d", d("_id", 3))
		s.insert("d", d("_id", 3, "time", i))
	}
}

func wantDelete(s *site) {
	s.update("c", d("_id", 3), d("_id", 3, "anew", true, "more", 1))
	s.set("c", 50, d("$set", d("last", 1)))
	s.update("d", d("_id", 1), d("_id", 1, "anew", true))
	s.update("d", d("_id", 3), d("_id", 3, "time", 4))
}

func skipInsert(s *site) {
	s.fillFrom("c", 200, 220, rowOf)
	s.update("c", d("_id", 230), d("$set", d("n", 1)), "upsert", true)
	s.set("c", 201, d("$set", d("n", 1)))
	s.update("c", d("_id", 202), d("_id", 202, "whole", true))
	s.remove("c", d("_id", 203))
	s.set("c", 1, d("$set", d("n", 1000)))
	s.update("c", d("_id", 2), d("_id", 2, "whole", true))
	s.remove("c", d("_id", 3))
	s.insert("c", d("_id", 3, "anew", true))
	s.set("c", 3, d("$set", d("o.b", 1), "$push", d("v", 1)))
	s.create("fresh")
	s.insert("fresh", d("_id", 1))
	s.set("fresh", 1, d("$set", d("n", 1)))
	s.transaction(func(s *site) {
		s.insert("d", d("_id", 100))
		s.update("d", d("_id", 100), d("_id", 100, "whole", true))
		s.set("d", 1, d("$set", d("n", 1)))
	})
}

func rowOf(i int) bson.D { return d("_id", i, "n", i) }

func wantInsert(s *site) {
	s.set("c", 1, d("$set", d("n", 1000)))
	s.update("c", d("_id", 2), d("_id", 2, "whole", true))
	s.remove("c", d("_id", 3))
	s.create("fresh")
	s.set("d", 1, d("$set", d("n", 1)))
}

func skipUpdate(s *site) {
	s.update("c", d("n", d("$lt", 30)), d("$inc", d("n", 1000)), "multi", true)
	s.update("c", d("_id", 40), d("_id", 40, "other", "shape"))
	s.set("c", 40, d("$set", d("other", d("a", d("b", 1)))))
	s.set("c", 40, d("$set", d("other.a.c", 2)))
	s.insert("c", d("_id", 300, "o", d("a", 1)))
	s.set("c", 300, d("$set", d("o.b", 2)))
	s.update("c", d("_id", 300), d("_id", 300, "whole", true))
	s.remove("c", d("_id", 41))
	s.insert("c", d("_id", 41, "n", 1))
	s.set("c", 41, d("$set", d("n", 2)))
}

func wantUpdate(s *site) {
	s.update("c", d("_id", 40), d("_id", 40, "other", "shape"))
	s.insert("c", d("_id", 300, "whole", true))
	s.update("c", d("_id", 41), d("_id", 41, "n", 1))
}

func wantReplace(s *site) {
	s.update("c", d("n", d("$lt", 30)), d("$inc", d("n", 1000)), "multi", true)
	s.set("c", 40, d("$set", d("other", d("a", d("b", 1)))))
	s.set("c", 40, d("$set", d("other.a.c", 2)))
	s.insert("c", d("_id", 300, "o", d("a", 1, "b", 2)))
	s.update("c", d("_id", 41), d("_id", 41, "n", 2))
}

func wantNeither(s *site) {
	s.insert("c", d("_id", 300, "o", d("a", 1)))
	s.update("c", d("_id", 41), d("_id", 41, "n", 1))
}

func skipAll(s *site) {
	skipDelete(s)
	s.insert("c", d("_id", 401, "n", 1))
	s.update("c", d(), d("$inc", d("n", 1)), "multi", true)
	s.update("c", d("_id", 30), d("_id", 30, "whole", true))
}

func skipCreate(s *site) {
	s.create("e", "validator", d("n", d("$gt", 0)))
	s.insert("e", d("_id", 1, "n", 1))
	s.insert("f", d("_id", 1)) // makes it
	s.index("f", d("n", 1))
	s.set("f", 1, d("$set", d("n", 1)))
	s.create("view", "viewOn", "c", "pipeline", a(d("$match", d("n", 1))))
	s.collMod("view", "viewOn", "d", "pipeline", a())
	s.rename(s.ns("f"), s.ns("g"))
	s.insert("g", d("_id", 2))
	s.drop("e")
	s.drop("c")
	s.insert("c", d("_id", 1, "anew", true)) // the target is not to have it
	s.set("d", 1, d("$set", d("n", 1000)))
}

func wantCreate(s *site) {
	s.drop("c")
	s.set("d", 1, d("$set", d("n", 1000)))
}

func skipDrop(s *site) {
	s.create("view", "viewOn", "c", "pipeline", a())
	s.set("c", 1, d("$set", d("n", 1000)))
	s.drop("view")
	s.drop("c")
	s.insert("c", d("_id", 1, "anew", true), d("_id", 500, "anew", true))
	s.set("c", 1, d("$set", d("more", 1)))
	s.remove("c", d("_id", 500))
	s.index("c", d("other", 1))
	s.drop("d")
}

func wantDrop(s *site) {
	s.create("view", "viewOn", "c", "pipeline", a())
	s.update("c", d("_id", 1), d("_id", 1, "anew", true, "more", 1))
	s.index("c", d("other", 1))
}

func skipDropRename(s *site) {
	s.index("d", d("s", 1), "name", "byS", "expireAfterSeconds", 3600)
	s.index("c", d("o", 1), "name", "byO", "expireAfterSeconds", 3600)
	s.remove("c", d("_id", 7))
	s.drop("c")
	s.insert("d", d("_id", 1000, "n", 1))
	s.remove("d", d("_id", 2))
	s.rename(s.ns("d"), s.ns("c"))
	s.set("c", 1000, d("$set", d("more", 1)))
	s.collMod("c", "index", d("name", "byS", "expireAfterSeconds", 7200))
	s.insert("c", d("_id", 2, "anew", true))
}

func wantDropRename(s *site) {
	s.remove("c", d("_id", 7))
	for i := range 30 {
		s.update("c", d("_id", i), d("_id", i, "s", []string{"open", "closed", "paid"}[i%3], "n", i), "upsert", true)
	}
	s.update("c", d("_id", 2), d("_id", 2, "anew", true))
	s.insert("c", d("_id", 1000, "n", 1, "more", 1))
	s.index("c", d("o", 1), "name", "byO")
	s.index("c", d("s", 1), "name", "byS", "expireAfterSeconds", 7200)
	s.drop("d")
}

func skipDatabaseSetup(s *site) {
	rowsSetup(s)
	rowsSetup(s.in("x"))
}

func skipDatabase(s *site) {
	x := s.in("x")
	x.create("view", "viewOn", "c", "pipeline", a())
	x.run(d("dropDatabase", 1))
	x.insert("c", d("_id", 1, "anew", true))
	s.set("c", 1, d("$set", d("n", 1000)))
}

func wantDatabase(s *site) {
	x := s.in("x")
	x.create("view", "viewOn", "c", "pipeline", a())
	x.update("c", d("_id", 1), d("_id", 1, "anew", true))
	s.set("c", 1, d("$set", d("n", 1000)))
}

func skipRename(s *site) {
	s.set("c", 1, d("$set", d("n", 1000)))
	s.rename(s.ns("c"), s.ns("e"))
	s.set("e", 1, d("$set", d("n", 2000)))
	s.insert("c", d("_id", 2, "anew", true), d("_id", 600, "anew", true)) // goes on as what was left
	s.insert("tmp", d("_id", 1, "tmp", true))
	s.rename(s.ns("tmp"), s.ns("d"), "dropTarget", true)
	s.insert("d", d("_id", 2, "tmp", true))
	s.drop("d")
	s.insert("d", d("_id", 3, "again", true))
}

func wantRename(s *site) {
	s.set("c", 1, d("$set", d("n", 1000)))
	s.update("c", d("_id", 2), d("_id", 2, "anew", true))
	s.insert("c", d("_id", 600, "anew", true))
	s.insert("tmp", d("_id", 1, "tmp", true))
	s.update("d", d("_id", 3), d("_id", 3, "again", true)) // what was dropped never came
}

// lateRename: up to the end of the copy, the collections that keep their names get what is written under others.
func lateRename(s *site) {
	wantRename(s)
	s.set("c", 1, d("$set", d("n", 2000)))
	s.insert("tmp", d("_id", 2, "tmp", true))
}

func skipIndexSetup(s *site) {
	rowsSetup(s)
	s.index("d", d("n", 1), "name", "byN")
	s.index("d", d("s", 1), "name", "byS")
}

func skipIndexes(s *site) {
	s.index("c", d("s", 1, "n", 1))
	s.index("c", d("n", -1), "unique", true)
	s.dropIndexes("d", "byN")
	s.index("d", d("n", 1, "s", 1), "name", "byN")
	s.collMod("c", "validator", d("n", d("$gt", -1)))
	s.collMod("d", "index", d("name", "byS", "hidden", true))
	s.insert("c", d("_id", 700, "n", 700))
}

func wantCreateIndexes(s *site) {
	s.dropIndexes("d", "byN")
	s.collMod("c", "validator", d("n", d("$gt", -1)))
	s.collMod("d", "index", d("name", "byS", "hidden", true))
	s.insert("c", d("_id", 700, "n", 700))
}

func wantDropIndexes(s *site) {
	s.index("c", d("s", 1, "n", 1))
	s.index("c", d("n", -1), "unique", true)
	s.collMod("c", "validator", d("n", d("$gt", -1)))
	s.collMod("d", "index", d("name", "byS", "hidden", true))
	s.insert("c", d("_id", 700, "n", 700))
}

func wantCollMod(s *site) {
	s.index("c", d("s", 1, "n", 1))
	s.index("c", d("n", -1), "unique", true)
	s.dropIndexes("d", "byN")
	s.index("d", d("n", 1, "s", 1), "name", "byN")
	s.insert("c", d("_id", 700, "n", 700))
}

func skipFirst(s *site) {
	s.remove("c", d("n", d("$lt", 10)))
	s.remove("d", d("n", d("$lt", 10)))
}

func wantFirst(s *site) { s.remove("c", d("n", d("$lt", 10))) }

func skipFilterSetup(s *site) {
	s.fill("c", 30, func(i int) bson.D { return d("_id", i, "s", []string{"open", "closed"}[i%2], "n", i) })
}

func skipFilter(s *site) {
	s.remove("c", d("_id", d("$lt", 6)))
	s.insert("c", d("_id", 0, "s", "open", "anew", true), d("_id", 1, "s", "open", "anew", true),
		d("_id", 2, "s", "closed"))
	s.set("c", 2, d("$set", d("n", 1000)))      // not of the one that was left
	s.set("c", 10, d("$set", d("s", "closed"))) // leaves
	s.transaction(func(s *site) {
		s.set("c", 11, d("$set", d("s", "open"))) // would enter
		s.remove("c", d("_id", 11))
	})
	s.remove("c", d("_id", 13))
}

func wantFilter(s *site) {
	s.remove("c", d("s", "closed", "_id", d("$ne", 11)))
	s.update("c", d("_id", 0), d("_id", 0, "s", "open", "anew", true))
	s.insert("c", d("_id", 1, "s", "open", "anew", true))
	s.remove("c", d("_id", 10))
	s.remove("c", d("_id", 2))  // the source has the _id again
	s.remove("c", d("_id", 11)) // gone when its state was read
}

func skipMappedSetup(s *site) {
	s.fill("c", 30, func(i int) bson.D { return d("_id", i, "n", i) })
	s.fill("d", 30, func(i int) bson.D { return d("_id", i, "n", i) })
}

func skipMapped(s *site) {
	s.remove("c", d("_id", 1))
	s.remove("d", d("_id", 1))
}

func wantMapped(s *site) {
	s.remove("d", d("_id", 1))
	s.rename(s.ns("c"), s.ns("e"))
}

// compareWanted compares what a job has made of scenarios that skip operations with
// what they want. Before the job nothing is skipped; what happens before documents are
// copied is skipped or copied, as it comes.
func compareWanted(ctx context.Context, cases []*trial) {
	for _, c := range cases {
		if c.sc.want == nil || c.way == wayCopy || c.way == wayEarly {
			continue
		}
		wanted := &site{ctx: ctx, client: shared.targetDB, base: "w" + c.base}
		err := attempt(func() {
			c.sc.setup(wanted)
			if c.way == wayLate && c.sc.late != nil {
				c.sc.late(wanted)
			} else {
				c.sc.want(wanted)
			}
		})
		if err != nil {
			c.failed(fmt.Errorf("the scenario itself fails, in what it wants: %w", err))
			continue
		}
		diffs, err := Compare(ctx, shared.targetDB, shared.targetDB, CompareOptions{
			Source: func(ns string) bool { return strings.HasPrefix(ns, "w") && c.owns(ns[1:]) },
			Target: c.owns,
			Name:   func(ns string) string { return strings.TrimPrefix(ns, "w") },
		})
		for _, diff := range diffs {
			c.failed(errors.New("wanted as source: " + diff.String()))
		}
		if err != nil {
			c.failed(fmt.Errorf("compare with what is wanted: %w", err))
		}
		for _, db := range []*site{wanted, wanted.in("x")} {
			_ = db.db().Drop(ctx)
		}
	}
}

// verifySame has millrace verify judge a job's scenarios, with the rules of the job.
func verifySame(ctx context.Context, cases []*trial, r transform.Config) error {
	r.Include = nil
	for _, c := range cases {
		if !c.sc.explained() {
			continue
		}
		r.Include = append(r.Include, c.base)
		if c.sc.name == "skip_drop_database" {
			r.Include = append(r.Include, c.base+"-x")
		}
	}
	judge := func() (*verify.Report, error) {
		return verify.Clusters(ctx, verify.Spec{Source: shared.source.URI(), Target: shared.target.URI(), Rules: r})
	}
	report, err := judge()
	if err != nil {
		return err
	}
	if !report.Same {
		return fmt.Errorf("verify finds differences that skipped operations do not explain: %+v %+v", report.Schema,
			report.Differences)
	}
	for _, c := range report.Collections {
		if c.Skipped != nil && cases[0].way == wayCopy {
			return fmt.Errorf("nothing was skipped, and verify expects differences: %s: %s", c.NS, c.Skipped)
		}
		if got, want := fmt.Sprint(c.Skipped), "left on the target: 31, delete skipped"; cases[0].way == wayChange &&
			c.NS == "c_skip_delete.c" && got != want {
			return fmt.Errorf("verify says of %s %q, want %q", c.NS, got, want)
		}
	}
	if cases[0].way != wayChange || r.Skip == nil && r.SoftDelete == nil {
		return nil
	}
	r.Skip, r.SoftDelete = nil, nil
	if report, err = judge(); err == nil && report.Same {
		return errors.New("verify finds no differences without the rules that explain them")
	}
	return err
}
