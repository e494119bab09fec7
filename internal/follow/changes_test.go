package follow

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// intoFilter is a rename that brings a collection among those that are kept.
func intoFilter(n uint32) *stream.Batch {
	return batch(n, changed(stream.Change{Kind: stream.ChangeRename, NS: "other.c", To: "d.in", UUID: uuid(7)}))
}

// TestCopiedAnew: a collection that a rename brings is copied no older than the rename, and the
// target may be ahead up to where the source stood after it. A restart does not copy it again.
func TestCopiedAnew(t *testing.T) {
	r := newRig(t, transform.Config{})
	id := uuid(7)
	r.effects["renameCollection"] = schema.Effect{Applied: true, Resync: &id, ResyncNS: "d.in"}
	r.found = &schema.Collection{NS: "other.now", Type: schema.TypeCollection, UUID: id,
		Indexes: []stream.Index{{Name: "k_1", Spec: kit.Raw(kit.D("name", "k_1", "key", kit.D("k", 1)))}}}
	r.slices = []bson.Raw{kit.Raw(kit.D("collection", "00000000000000000000000000000007", "at", at(44)))}
	r.newest = at(50)
	f := r.start()
	r.log = nil
	if err := f.emit(t.Context(), intoFilter(12)); err != nil {
		t.Fatal(err)
	}
	r.want("note reach", "drain", "prepare renameCollection other.c", "complete 11", "secure applied mark intent before",
		"apply renameCollection other.c", "commit 12", "commit 12", "create own d.in", "copy d.in to d.in after 12",
		"build 1 of d.in", "newest", "secure consistent phase", "note names -0 +1", "complete 12",
		"save applied mark intent")
	if r.job.Phase != state.PhaseOverlap || r.job.Consistent != at(50) || r.job.Applied != at(12) ||
		!r.job.Intent.IsZero() {
		t.Errorf("stored %+v", r.job)
	}
	if one, _ := f.Source.Names.Source("d.in"); one.Copied != at(50) || f.CopyEnd("d.in") != at(50) ||
		f.CopyEnd("d.c") != at(5) {
		t.Errorf("copied up to %v", one.Copied)
	}
	if start := r.sink.starts["d.in"]; start.Past != at(44) {
		t.Errorf("events of it count from %v on", start.Past)
	}
}

// TestCopiedAnewInto: where collections of the target are kept, one that is there is taken.
func TestCopiedAnewInto(t *testing.T) {
	r := newRig(t, transform.Config{})
	id := uuid(7)
	r.effects["renameCollection"] = schema.Effect{Applied: true, Resync: &id, ResyncNS: "d.in"}
	r.found = &schema.Collection{NS: "d.in", Type: schema.TypeCollection, UUID: id}
	r.options.OnExisting = state.ExistingMerge
	f := r.start()
	if err := f.emit(t.Context(), intoFilter(12)); err != nil || !slices.Contains(r.log, "create d.in") {
		t.Errorf("%v, did %q", err, r.log)
	}
	r = newRig(t, transform.Config{History: []string{"d.in"}})
	r.effects["renameCollection"] = schema.Effect{Applied: true, Resync: &id, ResyncNS: "d.in"}
	r.found = &schema.Collection{NS: "d.in", Type: schema.TypeCollection, UUID: id}
	f = r.start()
	if err := f.emit(t.Context(), intoFilter(12)); err == nil || mongo.HintOf(err) == "" {
		t.Errorf("a history has two beginnings: %v", err)
	}
}

// TestRenamedAndGone: of a renamed collection that the source has dropped since, nothing is
// applied until its drop comes. What the target has of it stays where the copy may have met it.
func TestRenamedAndGone(t *testing.T) {
	for _, cut := range []bool{false, true} {
		r := newRig(t, transform.Config{})
		id := uuid(7)
		r.effects["renameCollection"] = schema.Effect{Applied: true, Resync: &id, ResyncNS: "d.in"}
		if cut {
			r.job.Copied, r.target["d.in"] = at(12), map[string]string{}
		}
		f := r.start()
		if err := f.emit(t.Context(), intoFilter(12)); err != nil {
			t.Fatal(err)
		}
		if one, _ := f.Source.Names.Source("d.in"); one.Gone == cut || slices.Contains(r.log, "create own d.in") {
			t.Errorf("cut %t: gone %t, did %q", cut, one.Gone, r.log)
		}
	}
}

// TestJoin: documents come into the collection that was left on the target, before the names
// are noted.
func TestJoin(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.effects["drop"] = schema.Effect{Applied: true, JoinNS: "d.left", Join: &schema.Collection{NS: "d.c"}}
	f := r.start()
	r.log = nil
	drop := batch(12, changed(stream.Change{Kind: stream.ChangeDrop, NS: "d.c", UUID: uuid(1)}))
	if err := f.emit(t.Context(), drop); err != nil {
		t.Fatal(err)
	}
	if got := r.log[6:]; !slices.Equal(got, []string{"copy d.c within to d.left", "take over d.c as d.left",
		"note names -1 +0"}) {
		t.Errorf("did %q", got)
	}
	r.fail["copy"] = []error{errors.New("disk full")}
	ev := drop.Events[0]
	if err := f.join(t.Context(), &ev, r.effects["drop"], true); err == nil ||
		!strings.Contains(err.Error(), "come into d.left") {
		t.Error(err)
	}
}

// TestNamesMove: sink and letters follow a collection that is renamed, and forget one that is
// dropped or leaves what is kept.
func TestNamesMove(t *testing.T) {
	for _, c := range []struct {
		change stream.Change
		effect schema.Effect
		want   string
	}{
		{stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "d.e"}, schema.Effect{Applied: true}, "d.c>d.e"},
		{stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "x.e"},
			schema.Effect{Applied: true, Dropped: []string{"d.c"}}, "d.c>"},
		{stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "d.e"}, schema.Effect{Dropped: []string{"d.e"}}, "d.e>"},
		{stream.Change{Kind: stream.ChangeDrop, NS: "d.c"}, schema.Effect{Applied: true, Dropped: []string{"d.c"}}, "d.c>"},
		{stream.Change{Kind: stream.ChangeCreate, NS: "d.c"}, schema.Effect{Applied: true}, ""},
	} {
		r := newRig(t, transform.Config{})
		f := r.start()
		ev := changed(c.change)
		if err := f.moveNames(t.Context(), &ev, c.effect); err != nil || strings.Join(r.sink.renamed, " ") != c.want {
			t.Errorf("%s of %s: %v, %q, want %q", c.change.Kind, c.change.NS, err, r.sink.renamed, c.want)
		}
	}
}

// TestExisting: what the source makes replaces a collection of the target where that is
// permitted, takes it where others have filled the target, and else is refused.
func TestExisting(t *testing.T) {
	for _, c := range []struct {
		mode   state.Mode
		policy state.OnExisting
		at     uint32
		want   schema.Existing
	}{
		{state.ModeAll, state.ExistingFail, 20, schema.RefuseExisting},
		{state.ModeAll, state.ExistingDrop, 20, schema.DropExisting},
		{state.ModeAll, state.ExistingMerge, 20, schema.KeepExisting},
		{state.ModeIncremental, state.ExistingFail, 10, schema.KeepExisting},
		{state.ModeIncremental, state.ExistingDrop, 11, schema.DropExisting},
	} {
		f := &follower{job: state.Job{Mode: c.mode, Copied: at(10)}, Options: Options{OnExisting: c.policy}}
		if got := f.existing(at(c.at)); got != c.want {
			t.Errorf("mode %s, %s, at %d: %v", c.mode, c.policy, c.at, got)
		}
	}
}

// TestIndexesArePutOff: where documents were read for rules in a state after an index was made,
// it is built when the target is consistent again.
func TestIndexesArePutOff(t *testing.T) {
	index := stream.Change{Kind: stream.ChangeCreateIndexes, NS: "d.c", UUID: uuid(1)}
	for _, c := range []struct {
		what     string
		rules    transform.Config
		at, read uint32
		off      bool
	}{
		{"nothing was read", transform.Config{}, 12, 0, false},
		{"it was read before", transform.Config{}, 12, 11, false},
		{"it was read later", transform.Config{}, 12, 13, true},
		{"during the overlap", transform.Config{}, 5, 13, false},
		{"an earlier run may have read", transform.Config{Filter: []string{`d.c={"v":"a"}`}}, 12, 0, true},
	} {
		r := newRig(t, c.rules)
		f := r.start()
		f.newest, f.overlapEnd = at(c.read), at(13)
		ev := changed(index)
		ev.At = at(c.at)
		if err := f.putIndexesOff(t.Context(), &ev); err != nil || (r.job.Phase == state.PhaseOverlap) != c.off {
			t.Errorf("%s: %v, in phase %s", c.what, err, r.job.Phase)
		}
	}
}

// refused is what a build stumbles over, with the index named or not.
func refused(index string) error {
	reply := kit.Raw(kit.D("errmsg", "E11000 duplicate key error collection: d.c index: "+index+" dup key: { k: 1 }"))
	err := driver.CommandError{Code: mongo.CodeDuplicateKey, Raw: reply}
	return &schema.IndexConflict{NS: "d.c", Specs: []bson.Raw{kit.Raw(kit.D("name", "k_1"))}, Err: err}
}

// TestUntangled: documents that a unique index does not take are decided about, and the index is
// built again. A case that is not clear goes back to the checkpoint, but not for ever.
func TestUntangled(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	r.log = nil
	r.fail["build deferred"] = []error{refused("k_1"), refused("k_1")}
	if err := f.buildDeferred(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("build deferred but 0", "duplicates", "untangle k_1", "build deferred but 0", "duplicates", "untangle k_1",
		"build deferred but 0")
	if c := r.sink.clashes[0]; c.NS != "d.c" || len(c.Docs) != 2 || c.Partial {
		t.Errorf("asked about %+v", c)
	}
	for n := range mostUnclear + 1 {
		r.fail["build deferred"] = []error{refused("k_1")}
		r.fail["untangle"] = []error{&resolve.ConflictError{Undecided: true}}
		err := f.buildDeferred(t.Context())
		if retried := mongo.Classify(err) == mongo.ClassRetry; retried != (n < mostUnclear) {
			t.Errorf("time %d: %v", n, err)
		}
	}
	r.log = nil
	other := refused("other")
	r.fail["build deferred"] = []error{other}
	if err := f.buildDeferred(t.Context()); !errors.Is(err, other) {
		t.Errorf("of an index that was not to be built: %v", err)
	}
	r.want("build deferred but 0")
}

// TestPartialIndex: of an index that a shard of the source may not have, the documents decide.
// The others are built without it, and at finalize the target goes without it.
func TestPartialIndex(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.options.Parts = true
	f := r.start()
	r.log = nil
	sourced := &resolve.ConflictError{Sourced: true}
	r.fail["build deferred but 0"], r.fail["untangle"] = []error{refused("k_1")}, []error{sourced}
	if err := f.buildDeferred(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("build deferred but 0", "duplicates", "untangle k_1", "build deferred but 1")
	f.finalAt = at(20)
	r.fail["build deferred but 0"], r.fail["untangle"] = []error{refused("k_1")}, []error{sourced}
	if err := f.buildDeferred(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("build deferred but 0", "duplicates", "untangle k_1", "give up k_1", "build deferred but 1")
	r.fail["build deferred but 0"] = []error{refused("k_1"), refused("k_1")}
	r.fail["untangle"] = []error{sourced, sourced}
	r.fail["build deferred but 1"] = []error{refused("k_1")}
	if err := f.buildDeferred(t.Context()); !errors.Is(err, sourced) {
		t.Errorf("it is left out and refuses documents: %v", err)
	}
}

// TestShardsBuildOneByOne: an index of a sharded source that documents do not fit yet is put off
// until the target has caught up; that of a replica set is a conflict.
func TestShardsBuildOneByOne(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.options.Parts, r.newest = true, at(30)
	f := r.start()
	r.log = nil
	r.fail["apply"] = []error{refused("k_1")}
	index := stream.Change{Kind: stream.ChangeCreateIndexes, NS: "d.c"}
	if _, err := f.applyChange(t.Context(), index, schema.ApplyOptions{}); err != nil {
		t.Fatal(err)
	}
	r.want("apply createIndexes d.c", "newest", "secure consistent phase", "apply createIndexes d.c")
	if r.applied[0].Overlap || !r.applied[1].Overlap || f.overlapEnd != at(30) {
		t.Errorf("overlap %t, then %t, up to %v", r.applied[0].Overlap, r.applied[1].Overlap, f.overlapEnd)
	}
	r.fail["apply"] = []error{refused("k_1")}
	if _, err := f.applyChange(t.Context(), index, schema.ApplyOptions{Overlap: true}); !schema.IsRefused(err) {
		t.Errorf("during the overlap: %v", err)
	}
}

// TestRewrites: the ends of commands before which documents may have to be compared.
func TestRewrites(t *testing.T) {
	r := newRig(t, transform.Config{Filter: []string{`d.some={"v":"a"}`}})
	r.options.Rules = r.options.Rules.ByCommand()
	f := r.start()
	for _, c := range []struct {
		ch   stream.Change
		want bool
	}{
		{stream.Change{Kind: stream.ChangeRename, NS: "d.tmp", To: "d.some", Command: mongo.CommandOut}, true},
		{stream.Change{Kind: stream.ChangeRename, NS: "d.tmp", To: "d.some", Command: mongo.CommandCapped}, true},
		{stream.Change{Kind: stream.ChangeRename, NS: "d.tmp", To: "d.some"}, false},
		{stream.Change{Kind: stream.ChangeRename, NS: "d.tmp", To: "x.some", Command: mongo.CommandOut}, false},
		{stream.Change{Kind: stream.ChangeDrop, NS: "d.tmp", From: "x.c", To: "d.some"}, true},
		{stream.Change{Kind: stream.ChangeDrop, NS: "d.some"}, false},
		{stream.Change{Kind: stream.ChangeCreate, NS: "d.some"}, false},
	} {
		if got := f.rewrites(changed(c.ch)); got != c.want {
			t.Errorf("%s of %s to %s by %v: %t", c.ch.Kind, c.ch.NS, c.ch.To, c.ch.Command, got)
		}
	}
}

// TestPassedInPieces: a batch is cut before the end of a command, whose position stays that of
// the batch before until the command is done.
func TestPassedInPieces(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.options.Rules = r.options.Rules.ByCommand()
	f := r.start()
	r.log = nil
	end := changed(stream.Change{Kind: stream.ChangeRename, NS: "d.tmp", To: "d.c", Command: mongo.CommandOut})
	b := batch(13, ofTime(11, put("d.c", 1, "a")), ofTime(12, end), ofTime(13, put("d.c", 2, "b")))
	if err := f.emit(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if drained := slices.Index(r.log, "drain"); drained != 2 || r.log[1] != `send d.c "a"` ||
		r.log[len(r.log)-1] != `send d.c "b"` {
		t.Errorf("did %q", r.log)
	}
	if f.mark != "m13" {
		t.Errorf("stands at %s", f.mark)
	}
}

// TestChunks: documents are handed on some at a time, and what is left at the end.
func TestChunks(t *testing.T) {
	var sizes []int
	c := chunk{next: func(_ context.Context, docs []bson.Raw) error { sizes = append(sizes, len(docs)); return nil }}
	for range mostCompared + 1 {
		if err := c.add(t.Context(), kit.Raw(kit.D("_id", 1))); err != nil {
			t.Fatal(err)
		}
	}
	large := kit.Raw(kit.D("_id", 1, "v", strings.Repeat("x", mostComparedBytes)))
	if err := errors.Join(c.add(t.Context(), large), c.end(t.Context()), c.end(t.Context())); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(sizes, []int{mostCompared, 2}) {
		t.Errorf("handed on %v", sizes)
	}
}

// TestLeaves: documents that cannot be mapped end the job or become letters, by its policy. Those
// that an earlier run has left out are looked after in any case.
func TestLeaves(t *testing.T) {
	log := slog.New(slog.DiscardHandler)
	letters := deadletter.Over(keeper{}, "job")
	id := bsonraw.IDOf(kit.Raw(kit.D("_id", 1)))
	why := errors.New("no number")
	u := transform.Unmapped{Origin: stream.Origin{NS: "d.c", Source: "d.c"}, ID: id, Doc: kit.Raw(kit.D("_id", 1)),
		At: at(1), Err: why}
	if Leaves(letters, deadletter.Stop, log) != nil {
		t.Error("there is nothing to look after")
	}
	stop := LeftOut{letters, true, log}
	if err := stop.LeaveOut(t.Context(), u); !errors.Is(err, why) || stop.IsUnmapped("d.c", id) {
		t.Errorf("the job goes on: %v", err)
	}
	if err := Leaves(letters, deadletter.Skip, log).LeaveOut(t.Context(), u); err != nil ||
		!letters.IsUnmapped("d.c", id) {
		t.Errorf("not kept: %v", err)
	}
	later := Leaves(letters, deadletter.Stop, log)
	if later == nil || later.LeaveOut(t.Context(), u) != nil {
		t.Error("what was left out before ends the job")
	}
}
