package test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"

	"github.com/millrace/millrace/test/history"
)

// knownLossScenarios hold ways to lose data that other scenarios do not hold
// yet. docs/internals/exactness.md lists all known ways and the tests that cover them.
func knownLossScenarios() []scenario {
	return []scenario{
		{name: "known_truncation_alone", since: "5.0", setup: truncationSetup, change: truncationAloneChange},
		{name: "known_replacement_removes_fields", setup: replaceSetup, change: replacementChange},
		{name: "known_ids_at_both_ends", setup: endIDsSetup, change: endIDsChange},
		{name: "known_tail_while_slicing", setup: tailSetup, change: tailChange},
		{name: "known_keys_move_in_one_batch", setup: manyKeysSetup, change: manyKeysChange},
		{name: "known_unique_beside_plain_index", since: "5.0", setup: besideSetup, change: besideChange},
		{name: "known_rename_before_indexes_are_built", setup: laterIndexesSetup, change: laterIndexesChange},
		{name: "known_validator_and_dotted_field", since: "5.0", setup: strictDottedSetup, change: strictDottedChange},
	}
}

// An update that cuts an array and does nothing else.
func truncationAloneChange(s *site) {
	for i := range 6 {
		s.set("c", i, a(d("$set", d("v", d("$slice", a("$v", 4-i%4))))))
	}
	s.set("c", 6, d("$push", d("v", d("$each", a(), "$slice", 1))))
	s.set("c", 7, d("$pop", d("v", 1)))
}

// A replacement leaves nothing of what was there.
func replacementChange(s *site) {
	for i := range 20 {
		s.set("c", i, d("n", i))
	}
	s.set("c", 20, d())
	s.set("c", 21, a(d("$replaceWith", d("_id", 21, "only", 1))))
	s.findAndModify("c", d("_id", 22), "update", d("only", 1))
}

// The _ids that a comparison bracketed by type, or a range over strings, misses.
func endIDsSetup(s *site) {
	s.insert("c", d("_id", bson.MinKey{}), d("_id", history.Values()["nan"]), d("_id", ""), d("_id", "\x00"),
		d("_id", "\xf4\x8f\xbf\xbf"), d("_id", bson.MaxKey{}))
	s.fill("c", 3000, func(i int) bson.D { return d("_id", fmt.Sprintf("%04d", i)) })
}

func endIDsChange(s *site) {
	s.update("c", d(), d("$set", d("x", 1)), "multi", true)
	for _, id := range []any{bson.MinKey{}, history.Values()["nan"], "", "\xf4\x8f\xbf\xbf", bson.MaxKey{}} {
		s.remove("c", d("_id", d("$eq", id)))
		s.insert("c", d("_id", id, "again", true))
	}
	s.insert("c", d("_id", "\x00\x00"), d("_id", "\xf4\x8f\xbf\xbf\xf4\x8f\xbf\xbf"))
}

// The collection is large enough to be cut; its end moves while it is.
func tailSetup(s *site) {
	s.fill("c", 2500, func(i int) bson.D { return d("_id", i, "pad", pad(8<<10)) })
}

func tailChange(s *site) {
	s.fillFrom("c", 2500, 4500, func(i int) bson.D { return d("_id", i, "tail", true) })
	s.remove("c", d("_id", d("$in", a(0, 2499, 4499)))) // the first and the last records there were
	s.insert("c", d("_id", -1), d("_id", "last"))
}

// So many unique keys go from document to document at once that one command
// meets many duplicates.
func manyKeysSetup(s *site) {
	s.index("c", d("k", 1), "unique", true)
	s.fill("c", 2000, func(i int) bson.D { return d("_id", i, "k", i) })
}

func manyKeysChange(s *site) {
	s.transaction(func(x *site) {
		x.update("c", d("_id", d("$lt", 1000)), a(d("$set", d("k", d("$concat", a("moved", d("$toString", "$k")))))), "multi",
			true)
		x.fill("c", 1000, func(i int) bson.D { return d("_id", 5000+i, "k", i) })
		x.remove("c", d("_id", d("$gte", 1500, "$lt", 2000)))
		x.fill("c", 500, func(i int) bson.D { return d("_id", 7000+i, "k", 1500+i) })
		x.update("c", d("_id", d("$gte", 1000, "$lt", 1500)), a(d("$set", d("k", d("$add", a("$k", 0.5))))), "multi", true)
		x.update("c", d("_id", d("$gte", 1000, "$lt", 1500)), a(d("$set", d("k", d("$add", a("$_id", 1, 1e6))))), "multi",
			true)
	})
}

// Documents that only the unique one of two indexes on the same keys tells apart.
func besideSetup(s *site) {
	s.index("c", d("a", 1), "name", "plain")
	s.index("c", d("a", 1), "name", "unique", "unique", true, "sparse", true)
	s.index("c", d("b", 1), "name", "b unique", "unique", true, "partialFilterExpression", d("b", d("$gt", 0)))
	s.index("c", d("b", 1), "name", "b plain")
	s.fill("c", 50, func(i int) bson.D { return d("_id", i, "a", i, "b", i-25) })
	s.insert("c", d("_id", 50, "b", -5), d("_id", 51, "b", -5))
}

func besideChange(s *site) {
	for i := range 20 { // trade
		s.set("c", i, d("$set", d("a", "free")))
		s.set("c", i+20, d("$set", d("a", i)))
		s.set("c", i, d("$set", d("a", i+20)))
	}
	s.rename(s.ns("c"), s.ns("r"))
	s.dropIndexes("r", "plain")
	s.index("r", d("a", 1), "name", "plain again")
	s.dropIndexes("r", "b unique")
	s.insert("r", d("_id", 100, "a", 100, "b", 3))
}

func laterIndexesSetup(s *site) {
	s.fill("c", 300, func(i int) bson.D { return d("_id", i, "u", i, "t", fmt.Sprint("word", i)) })
	s.index("c", d("u", 1), "unique", true)
	s.index("c", d("n", 1))
	s.index("c", d("at", 1), "expireAfterSeconds", 3600)
	s.index("c", d("t", "text"))
	s.fill("other", 10, func(i int) bson.D { return d("_id", i, "u", i) })
	s.index("other", d("u", -1), "unique", true)
}

func laterIndexesChange(s *site) {
	s.rename(s.ns("c"), s.ns("first"))
	s.insert("first", d("_id", "a", "u", "a"))
	s.rename(s.ns("first"), s.in("x").ns("second"))
	s.in("x").index("second", d("later", 1), "unique", true, "sparse", true)
	s.rename(s.ns("other"), s.ns("c")) // the name that was copied
	s.in("x").dropIndexes("second", "n_1")
	s.rename(s.in("x").ns("second"), s.ns("third"))
	s.set("third", 5, d("$set", d("u", "five")))
	s.insert("c", d("_id", "b", "u", "b"))
}

// Changes that are refused, or land elsewhere, if they are applied as a plain
// update: the validator refuses the result, the field's name holds a dot.
func strictDottedSetup(s *site) {
	s.create("c", "validator", d("n", d("$type", "int")), "validationLevel", "strict", "validationAction", "error")
	for i := range 20 {
		s.bypass("c", rawDoc(bson.E{Key: "_id", Value: i}, bson.E{Key: "a.b", Value: 1}, bson.E{Key: "a", Value: d("b", 2)},
			bson.E{Key: "v", Value: a(1, 2, 3)}))
	}
}

func strictDottedChange(s *site) {
	for i := range 20 {
		var u any
		switch i % 5 {
		case 0:
			u = a(d("$replaceWith", setField("a.b", "$$ROOT", i)))
		case 1:
			u = a(d("$replaceWith", setField("a.b", "$$ROOT", d("c", i))), d("$set", d("v", d("$slice", a("$v", 1)))))
		case 2:
			u = a(d("$replaceWith", d("$unsetField", d("field", "a.b", "input", "$$ROOT"))))
		case 3:
			u = d("$set", d("a.b", i))
		case 4:
			u = d("a.b", i, "a", d("b", "x"))
		}
		s.run(d("update", "c", "updates", a(d("q", d("_id", i), "u", u)), "bypassDocumentValidation", true))
		s.bypass("c", d("_id", 100+i, "n", "refused", "a.b", i))
	}
}

// pair is a test's database on both sides, dropped at its end.
type pair struct {
	t        *testing.T
	src, dst *site
}

func newPair(t *testing.T, base string) *pair {
	p := &pair{t, &site{ctx: t.Context(), client: shared.sourceDB, base: base},
		&site{ctx: t.Context(), client: shared.targetDB, base: base}}
	t.Cleanup(func() {
		for _, s := range []*site{p.src, p.dst} {
			_ = s.client.Database(base).Drop(context.WithoutCancel(s.ctx))
		}
		// A job that failed would keep its names from the next one.
		_, _ = p.dst.client.Database(mongo.StateDB).Collection("jobs").DeleteMany(context.WithoutCancel(t.Context()),
			bson.D{{Key: "_id", Value: bson.Regex{Pattern: "^" + base + "-"}}})
	})
	return p
}

func (p *pair) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

// do runs a step of the test.
func (p *pair) do(step func()) {
	p.t.Helper()
	p.must(attempt(step))
}

// follow starts a job and waits until it follows the source.
func (p *pair) follow(spec job.Spec) *running {
	p.t.Helper()
	spec.Job, spec.Rules = newJob(p.src.base), rulesOf(p.src.base)
	live, err := startJob(p.t, spec)
	p.must(err)
	p.must(live.reach(job.PhaseFollowing))
	return live
}

// slowWrites lets the target take its time for a command on a collection.
// entered waits until one waits; end ends it, when those that wait have gone on.
func slowWrites(t *testing.T, command, ns string, each time.Duration) (entered, end func()) {
	t.Helper()
	admin := &site{ctx: context.WithoutCancel(t.Context()), client: shared.targetDB}
	if !shared.targetVer.AtLeast(4, 4) {
		t.Skip("servers before 4.4 cannot be slowed down so")
	}
	r := admin.admin(d("configureFailPoint", "failCommand", "mode", "alwaysOn", "data",
		d("failCommands", a(command), "namespace", ns, "blockConnection", true, "blockTimeMS", each.Milliseconds())))
	before, _ := r.Lookup("count").AsInt64OK()
	end = func() { admin.admin(d("configureFailPoint", "failCommand", "mode", "off")) }
	t.Cleanup(func() { _ = attempt(end) })
	return func() {
		admin.admin(d("waitForFailPoint", "failCommand", "timesEntered", before+1, "maxTimeMS", 60_000))
	}, end
}

// A schema change waits for what comes before it, however long that takes. What
// is applied after the drop of its collection would bring it back.
func TestKnownSchemaChangesWaitForSlowWrites(t *testing.T) {
	const slow = 3500 * time.Millisecond // longer than the wait of a tool that gives up waiting
	for _, c := range []struct {
		name   string
		change func(*site)
	}{
		{"drop", func(s *site) { s.drop("c") }},
		{"rename", func(s *site) { s.rename(s.ns("c"), s.ns("r")); s.insert("r", d("_id", "new")) }},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, "slowWrites")
			p.do(func() { p.src.insert("c", d("_id", -1)) })
			live := p.follow(job.Spec{})
			entered, end := slowWrites(t, "insert", p.src.ns("c"), slow)
			p.do(func() {
				p.src.fill("c", 300, func(i int) bson.D { return d("_id", i) })
				entered()
				c.change(p.src)
				end()
			})
			p.must(live.caughtUp(t.Context(), connect(t, shared.source)))
			compareDatabase(t, p.src.base+".")
			p.must(live.finalize(t.Context()))
			compareDatabase(t, p.src.base+".")
		})
	}
}

// Finalize is asked for while tens of thousands of operations are on the way.
func TestKnownFinalizeRightAfterBurst(t *testing.T) {
	p := newPair(t, "burst")
	p.do(func() { p.src.fill("old", 5000, func(i int) bson.D { return d("_id", i, "n", 0) }) })
	live := p.follow(job.Spec{})
	p.must(live.SetLimits(t.Context(), pace.Rates{Docs: 500})) // so that they are on the way on a slow source, too
	p.do(func() {
		for _, c := range []string{"x", "y", "z"} {
			p.src.fill(c, 12000, func(i int) bson.D { return d("_id", i, "n", i) })
		}
		p.src.update("old", d(), d("$inc", d("n", 1)), "multi", true)
		p.src.remove("x", d("_id", d("$mod", a(3, 0))))
		p.src.update("y", d("n", d("$mod", a(2, 0))), d("$set", d("m", "even")), "multi", true)
	})
	done := live.Status().Follow.Operations
	p.must(live.SetLimits(t.Context(), pace.Rates{}))
	p.must(live.finalize(t.Context()))
	if done > 40000 {
		t.Errorf("%d of 51000 operations were applied before finalize was asked for: the test shows nothing", done)
	}
	compareDatabase(t, "burst.")
}

// checkpointOf reads the durable position of a job, and how often it was saved.
func checkpointOf(s *site, live string) (applied mongo.OpTime, beat int64) {
	var doc struct {
		Applied mongo.OpTime `bson:"applied"`
		Beat    int64        `bson:"beat"`
	}
	check(s.client.Database("millrace").Collection("jobs").FindOne(s.ctx, d("_id", live)).Decode(&doc))
	return doc.Applied, doc.Beat
}

// await waits for a condition.
func await(t *testing.T, what string, reached func() bool) {
	t.Helper()
	for deadline := time.Now().Add(waitLimit); ; {
		ok := false
		if err := attempt(func() { ok = reached() }); err != nil {
			t.Fatal(err)
		}
		if ok {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("no %s within %s", what, waitLimit)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// One writer is held up by a lock on the target while the others go on; then
// the process is killed. What was not acknowledged is applied after the start.
func TestKnownResumeWithUnacknowledgedEvents(t *testing.T) {
	p := newPair(t, "speeds")
	p.do(func() { p.src.fill("c", 1000, func(i int) bson.D { return d("_id", i, "n", 0) }) })
	bin := BuildMillrace(t)
	live := newJob("speeds")
	args := []string{"sync", "--source", shared.source.URI(), "--target", shared.target.URI(), "--include", "speeds.*",
		"--job", live, "--until"}
	run := Start(t, bin, append(args, "never")...)
	run.AwaitPhase(p.dst.client, live, "following")

	lock := p.dst.begin() // a writer that conflicts with it waits
	defer lock.end()
	p.do(func() { lock.set("c", 500, d("$set", d("n", "locked"))) })
	source := connect(t, shared.source)
	p.do(func() { p.src.set("c", 500, d("$set", d("n", "late"))) })
	pos, err := source.Positions(t.Context())
	p.must(err)
	// Few inserts: a writer has room for some batches behind the one that waits, and when
	// that is full nobody goes on.
	p.do(func() { p.src.fillFrom("c", 1000, 3000, func(i int) bson.D { return d("_id", i) }) })
	await(t, "progress of the other writers", func() bool { return p.dst.count("c", d("_id", d("$gte", 1000))) > 1000 })
	_, saves := checkpointOf(p.dst, live)
	await(t, "further saves of the checkpoint", func() bool {
		at, n := checkpointOf(p.dst, live)
		if !at.Before(pos.Last) {
			fail("the checkpoint %s has passed the update at or before %s, which is not applied", at, pos.Last)
		}
		return n >= saves+2
	})
	run.Kill()
	p.do(lock.abort)
	if err := Start(t, bin, append(args, "caught-up")...).Wait(2 * waitLimit); err != nil {
		t.Fatal(err)
	}
	compareDatabase(t, "speeds.")
}

// While one writer has everything to do, or none has anything, the checkpoint
// moves.
func TestKnownIdleWritersDoNotHoldTheCheckpoint(t *testing.T) {
	p := newPair(t, "idle")
	elsewhere := newPair(t, "unrelated")
	p.do(func() { p.src.fill("c", 100, func(i int) bson.D { return d("_id", i, "n", 0) }) })
	live := p.follow(job.Spec{Partitions: 8})
	source := connect(t, shared.source)
	for round := range 3 {
		p.do(func() {
			for range 50 {
				p.src.set("c", 7, d("$inc", d("n", 1)))
			}
			if round == 2 {
				elsewhere.src.insert("c", d("_id", round)) // not replicated
			}
		})
		pos, err := source.Positions(t.Context())
		p.must(err)
		p.must(live.caughtUp(t.Context(), source))
		p.do(func() {
			if at, _ := checkpointOf(p.dst, live.Status().Job); at.Before(pos.Last) {
				t.Errorf("round %d: the checkpoint is at %s, everything to %s is applied", round, at, pos.Last)
			}
		})
	}
	p.must(live.finalize(t.Context()))
	compareDatabase(t, "idle.")
}

// Several things go wrong in one batch: each is dealt with, none hides another.
func TestKnownErrorsOfOneBatchAreAllSeen(t *testing.T) {
	for _, c := range []struct {
		name   string
		spoil  func(*site) // changes the target behind millrace's back
		change func(*site) // on the source, after that
		id     string      // what the error has to name
	}{
		{"a document that is gone", func(s *site) { s.remove("c", d("_id", 7)) },
			func(s *site) { s.set("c", 7, d("$set", d("b", "x"))) }, "7"},
		{"a document that is gone gets a new field", func(s *site) { s.remove("c", d("_id", 7)) },
			func(s *site) { s.set("c", 7, d("$set", d("x", 1))) }, "7"},
		{"a key that somebody else holds", func(s *site) { s.insert("c", d("_id", "foreign", "k", "taken")) },
			func(s *site) { s.insert("c", d("_id", "ours", "k", "taken")) }, "ours"},
		{"an _id that somebody else holds", func(s *site) { s.insert("c", d("_id", "same", "k", "foreign")) },
			func(s *site) { s.insert("c", d("_id", "same", "k", "ours")) }, "same"},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, "oneBatch")
			p.do(func() { uniqueSetup(p.src) })
			live := p.follow(job.Spec{Partitions: 1})
			p.must(live.caughtUp(t.Context(), connect(t, shared.source)))
			p.do(func() {
				c.spoil(p.dst)
				p.src.transaction(func(x *site) { // comes as one batch
					for i := 10; i < 20; i += 2 {
						x.setKey(i, "free")
						x.setKey(i+1, i)
						x.setKey(i, i+1)
					}
					c.change(x)
					x.remove("c", d("_id", 99))
				})
			})
			select {
			case <-live.done:
			case <-time.After(waitLimit):
				t.Fatal("the job goes on over a change that could not be applied")
			}
			if live.err == nil || !strings.Contains(live.err.Error(), p.src.ns("c")) ||
				!strings.Contains(live.err.Error(), c.id) {
				t.Errorf("the job's end does not name the document %q: %v", c.id, live.err)
			}
		})
	}
}
