package follow

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/sink/mongo/resolve"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestOrderOfSchemaChange: everything before a schema change is acknowledged when it is noted
// with the position, which comes before it is made. What follows comes after it.
func TestOrderOfSchemaChange(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	r.log = nil
	drop := changed(stream.Change{Kind: stream.ChangeDrop, NS: "d.c", UUID: uuid(1)})
	one, two, four := put("d.c", 1, "1"), put("d.c", 2, "2"), put("d.c2", 4, "4")
	for i, ev := range []*stream.Event{&one, &two, &drop, &four} {
		ev.At = at(uint32(11 + i))
	}
	if err := f.emit(t.Context(), batch(14, one, two, drop, four)); err != nil {
		t.Fatal(err)
	}
	r.want("note reach", `send d.c "1"`, `send d.c "2"`, "drain", "prepare drop d.c", "complete 12",
		"secure applied mark intent before", "apply drop d.c", "note names -1 +0", `send d.c2 "4"`)
	if r.job.Applied != at(12) || r.job.Intent != at(13) || r.job.Before.NS != "d.c" {
		t.Errorf("stored %v, intent %v, before %v", r.job.Applied, r.job.Intent, r.job.Before)
	}
	if _, there := f.Source.Names.Source("d.c"); there || len(r.target) > 0 {
		t.Errorf("the collection is there still: %v", r.target)
	}
	if o := r.applied[0]; o.Overlap || o.Maybe || o.Cut || o.Before.NS != "d.c" {
		t.Errorf("applied with %+v", o)
	}
}

// TestSchemaChangeFails: a change that cannot be prepared is not noted, and none that fails
// changes the names. Nothing after it is sent.
func TestSchemaChangeFails(t *testing.T) {
	full := errors.New("disk full")
	for _, c := range []struct {
		step  string
		noted bool
	}{{"prepare", false}, {"complete", false}, {"secure", false}, {"apply", true}, {"note names", true}} {
		r := newRig(t, transform.Config{})
		f := r.start()
		r.fail[c.step] = []error{full}
		drop := changed(stream.Change{Kind: stream.ChangeDrop, NS: "d.c", UUID: uuid(1)})
		err := f.emit(t.Context(), batch(12, drop, put("d.c2", 1, "late")))
		if !errors.Is(err, full) {
			t.Fatalf("%s: %v", c.step, err)
		}
		if c.step == "apply" && !strings.Contains(err.Error(), "drop of d.c at ") {
			t.Errorf("%s: %v does not say of what", c.step, err)
		}
		if noted := r.job.Intent == at(12); noted != c.noted {
			t.Errorf("%s: noted %t", c.step, noted)
		}
		_, there := f.Source.Names.Source("d.c")
		if there != (c.step != "note names") || strings.Contains(strings.Join(r.log, " "), "late") {
			t.Errorf("%s: the name is there: %t; did %q", c.step, there, r.log)
		}
	}
}

// TestSchemaChangeAgain: after a restart the change that was noted is made as one that may
// have happened, with what the target had then; only that one, and only once.
func TestSchemaChangeAgain(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.job.Intent, r.job.Before = at(12), schema.Before{NS: "d.seen"}
	f := r.start()
	create := func(n uint32) *stream.Batch {
		return batch(n, changed(stream.Change{Kind: stream.ChangeCreate, NS: fmt.Sprintf("d.c%d", n)}))
	}
	for _, n := range []uint32{11, 12, 13} {
		if err := f.emit(t.Context(), create(n)); err != nil {
			t.Fatal(err)
		}
	}
	for i, maybe := range []bool{false, true, false} {
		if r.applied[i].Maybe != maybe {
			t.Errorf("change %d: may have happened %t", i, r.applied[i].Maybe)
		}
	}
	if !f.intent.IsZero() {
		t.Errorf("%v is expected still", f.intent)
	}
}

// TestReachComesFirst: events are sent once it is durable how far they may reach. A note holds
// for some seconds of the source, and without events there is none.
func TestReachComesFirst(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	r.log = nil
	full := errors.New("disk full")
	r.fail["note reach"] = []error{full}
	if err := f.emit(t.Context(), batch(20, put("d.c", 1, "a"))); !errors.Is(err, full) {
		t.Fatal(err)
	}
	r.want("note reach")
	f.reach.known = mongo.OpTime{}
	for _, b := range []*stream.Batch{batch(21), batch(22, put("d.c", 1, "a")), batch(25, put("d.c", 1, "b"))} {
		if err := f.emit(t.Context(), b); err != nil {
			t.Fatal(err)
		}
	}
	r.want("note reach", `send d.c "a"`, `send d.c "b"`)
	if r.job.Reach.TS.T != 22+reachAhead {
		t.Errorf("up to %v", r.job.Reach)
	}
	late := batch(23, put("d.c", 1, "c"))
	late.Until = at(40) // the state in which a document was read
	if err := f.emit(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	r.want("note reach", `send d.c "c"`)
	if r.job.Reach.TS.T != 40+reachAhead || f.overlapEnd != at(40) {
		t.Errorf("up to %v, overlap up to %v", r.job.Reach, f.overlapEnd)
	}
}

// TestOverlapEnds: the overlap ends after the batch that reaches its end. Then the target is
// drained, that is proven, and what waited for it is built after the position is stored.
func TestOverlapEnds(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.job.Phase, r.job.Consistent, r.job.Reach, r.newest = state.PhaseOverlap, at(12), at(14), at(13)
	r.waiting = schema.Waiting{Indexes: true}
	f := r.start()
	if f.overlapEnd != at(13) {
		t.Errorf("the overlap ends at %v: neither the reach nor what the source had", f.overlapEnd)
	}
	r.log = nil
	half := batch(13, put("d.c", 1, "a"))
	half.End, half.Partial = at(12), true
	for _, b := range []*stream.Batch{batch(12), half} {
		if err := f.emit(t.Context(), b); err != nil || f.phase != state.PhaseOverlap {
			t.Fatal(err, f.phase)
		}
	}
	r.want(`send d.c "a"`)
	if err := f.emit(t.Context(), batch(13, put("d.c", 2, "b"))); err != nil {
		t.Fatal(err)
	}
	r.want(`send d.c "b"`, "drain", "prove", "complete 13", "save applied mark", "build deferred but 0", "secure phase")
	if r.job.Phase != state.PhaseFollowing || r.job.Applied != at(13) || r.job.Mark != "m13" {
		t.Errorf("stored %s at %v, %s", r.job.Phase, r.job.Applied, r.job.Mark)
	}
}

// TestOverlapOfFreshCopy: a run that has sent nothing yet asks nobody, and its overlap is the
// copy's.
func TestOverlapOfFreshCopy(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.job.Applied, r.job.Reach = r.job.Start, mongo.OpTime{}
	f := &follower{Options: r.options, job: r.job}
	if fresh, err := f.openOverlap(t.Context()); !fresh || err != nil || f.overlapEnd != at(5) {
		t.Errorf("fresh %t, %v, overlap up to %v", fresh, err, f.overlapEnd)
	}
	r.want()
	f.job.Applied = at(3)
	if fresh, _ := f.openOverlap(t.Context()); fresh {
		t.Error("fresh though changes are applied")
	}
}

// TestCheckpoint: a position is stored when it has moved, after the updates that were skipped up
// to it. Documents that a conflict stopped the job at are named until the position is past them.
// What the position before needs is kept.
func TestCheckpoint(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.job.Reach = at(1 << 30)
	f := r.start()
	f.refused = at(12)
	f.reach.known = at(1 << 29)
	r.log = nil
	if err := f.saveAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want()
	r.sink.pos, r.sink.skipped = stream.Position{At: at(11), Mark: "x"}, 2
	if err := f.saveAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("complete 11", "save skipped", "save applied mark")
	r.sink.pos.At = at(12)
	if err := f.saveAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("complete 12", "save applied mark refused")
	r.sink.pos.At = at(13)
	full := errors.New("disk full")
	r.fail["save"] = []error{full}
	if err := f.saveAhead(t.Context()); !errors.Is(err, full) || f.saved.At != at(12) {
		t.Errorf("%v, saved %v", err, f.saved)
	}
	if len(r.passed) != 2 || r.passed[1] != at(11) {
		t.Errorf("given back up to %v", r.passed)
	}
}

// TestReachMovesOn: the write that stores a position notes a new reach, too. Where the position
// stands still the reach is noted alone.
func TestReachMovesOn(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.newest = at(100)
	f := r.start()
	r.log = nil
	if err := f.saveAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("note reach")
	f.reach.known = at(200)
	r.sink.pos.At = at(11)
	if err := f.saveAhead(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.want("complete 11", "save applied mark reach")
	if r.job.Reach.TS.T != 200+reachAhead {
		t.Errorf("up to %v", r.job.Reach)
	}
}

// TestConflictSaysHowFar: a conflict that ends a run has what the target had and what was sent.
func TestConflictSaysHowFar(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	f.overlapEnd = at(5)
	r.sink.fed.At = at(17)
	err := f.standing(fmt.Errorf("write: %w", &resolve.ConflictError{NS: "d.c"}))
	c, _ := errors.AsType[*resolve.ConflictError](err)
	if c.Applied != at(10) || c.Sent != at(17) {
		t.Errorf("applied %v, sent %v", c.Applied, c.Sent)
	}
}

// TestKilledAnywhere: whichever step a run is killed at, before or after it is done, the next
// one brings the target to what the source has. No schema change is made twice but as one that
// may have happened.
func TestKilledAnywhere(t *testing.T) {
	script := func() []*stream.Batch {
		return inRow(
			batch(11, put("d.c", 1, "a"), put("d.c", 2, "b")),
			batch(12, put("d.c", 1, "c")),
			batch(14, ofTime(13, changed(stream.Change{Kind: stream.ChangeDrop, NS: "d.c", UUID: uuid(1)})),
				ofTime(14, changed(stream.Change{Kind: stream.ChangeCreate, NS: "d.c", UUID: uuid(2)}))),
			batch(15, put("d.c", 1, "d")),
			batch(17, ofTime(16, put("d.c", 3, "e")),
				ofTime(17, changed(stream.Change{Kind: stream.ChangeRename, NS: "d.c", To: "d.e", UUID: uuid(2)}))),
			batch(18, put("d.e", 3, "f")),
			batch(20),
		)
	}
	steps, late := 0, false
	for killAt := 0; ; killAt++ {
		r := newRig(t, transform.Config{})
		r.batches, r.newest = script(), at(18)
		r.options.Finalize.Request()
		r.killAt, r.late = killAt, late
		for runs := 0; ; runs++ {
			err := r.run()
			if errors.Is(err, ErrFinished) {
				break
			}
			if !errors.Is(err, errKilled) || runs > 0 {
				t.Fatalf("killed at %d, late %t: %v after %q", killAt, late, err, r.log)
			}
			// The next process: what was not stored is gone.
			steps = max(steps, killAt)
			again := newRig(t, transform.Config{})
			again.job, again.target, again.batches, again.newest = r.job, r.target, r.batches, r.newest
			again.options.Finalize.Request()
			again.options.Source.Names = namesAt(r.job)
			again.ended, again.made = r.ended, r.made
			r = again
		}
		want := map[string]map[string]string{"d.e": {}}
		for _, ev := range []stream.Event{put("d.e", 1, "d"), put("d.e", 3, "f")} {
			r2 := &rig{target: want}
			r2.write(ev)
		}
		if !maps.EqualFunc(r.target, want, maps.Equal) || r.ended == nil {
			t.Fatalf("killed at %d, late %t: %v, want %v; did %q", killAt, late, r.target, want, r.log)
		}
		if steps < killAt { // nothing was killed
			if late {
				return
			}
			late, killAt, steps = true, -1, 0
		}
	}
}

// inRow has each batch start where the one before ends.
func inRow(list ...*stream.Batch) []*stream.Batch {
	for i, b := range list[1:] {
		b.Start = list[i].End
	}
	return list
}

func ofTime(n uint32, ev stream.Event) stream.Event {
	ev.At = at(n)
	return ev
}

// namesAt are the names that a job of TestKilledAnywhere has at its position.
func namesAt(job state.Job) *schema.Names {
	name := schema.Name{NS: "d.c", Target: "d.c", Type: schema.TypeCollection, UUID: uuid(1)}
	switch n := job.Applied.TS.T; {
	case n == 13:
		return schema.NewNames(nil)
	case n >= 17:
		name.NS, name.Target = "d.e", "d.e"
		fallthrough
	case n > 13:
		name.UUID = uuid(2)
	}
	return schema.NewNames([]schema.Name{name})
}

// TestEventsAreOfTheSource: what the rules leave out is not sent, and no reach is noted for it.
func TestEventsAreOfTheSource(t *testing.T) {
	r := newRig(t, transform.Config{Exclude: []string{"d.out"}})
	f := r.start()
	r.log = nil
	if err := f.emit(t.Context(), batch(20, put("d.out", 1, "x"), put("d.c", 1, "y"))); err != nil {
		t.Fatal(err)
	}
	r.want("note reach", `send d.c "y"`)
	if err := f.emit(t.Context(), batch(2000, put("d.out", 1, "x"))); err != nil {
		t.Fatal(err)
	}
	r.want()
}
