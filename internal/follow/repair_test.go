package follow

import (
	"errors"
	"strings"
	"testing"

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

func broken(id int32) *Repair {
	return &Repair{Target: "d.c", UUID: uuid(1), ID: bsonraw.IDOf(kit.Raw(kit.D("_id", id)))}
}

// TestRepair: between two batches documents are read from the source and deferred, all up to the
// newest that was read. The outcome is the sink's, and comes after a later batch.
func TestRepair(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.docs[1], r.moves = kit.Raw(kit.D("_id", 1, "v", "a")), 1
	f := r.start()
	list := []*Repair{broken(1), broken(2)}
	f.Repairs.Add(list)
	_, open, changed := f.Repairs.Look(list)
	r.log = nil
	if err := f.emit(t.Context(), batch(12)); err != nil || open != 2 {
		t.Fatal(err, open)
	}
	r.want("drain", "commit 12", "commit 12", `defer {"$numberInt":"1"}`, `defer {"$numberInt":"2"}`)
	if l := r.sink.deferred; len(l) != 2 || l[0].Doc == nil || l[1].Doc != nil || l[0].Until != at(1002) ||
		l[1].Source != "d.c" {
		t.Errorf("kept %+v", l)
	}
	if begun, next := f.Repairs.some(); len(begun) != 2 || len(next) != 0 {
		t.Errorf("%d begun, %d to begin", len(begun), len(next))
	}
	r.sink.outcome = resolve.RepairDeleted
	if err := f.emit(t.Context(), batch(13)); err != nil || list[0].Outcome != resolve.RepairDeleted ||
		list[1].Outcome != resolve.RepairDeleted {
		t.Errorf("%v: %+v", err, list[0])
	}
	select {
	case <-changed:
	default:
		t.Error("nobody learns of the outcome")
	}
	if now, open, _ := f.Repairs.Look(list); open != 0 || now[0].Outcome != resolve.RepairDeleted {
		t.Errorf("%d open: %+v", open, now)
	}
}

// TestRepairIsLost: what the sink knows nothing of was dropped or renamed. A new run begins again
// with what has no outcome, and what was given up is not begun.
func TestRepairIsLost(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	one, two := broken(1), broken(2)
	f.Repairs.Add([]*Repair{one, two})
	if err := f.emit(t.Context(), batch(12)); err != nil {
		t.Fatal(err)
	}
	f.Repairs.again()
	f.Repairs.Remove([]*Repair{two})
	if begun, next := f.Repairs.some(); len(begun) != 0 || len(next) != 1 || next[0] != one {
		t.Errorf("begun %v, to begin %v", begun, next)
	}
	f.Repairs.begin(one)
	if err := f.emit(t.Context(), batch(13)); err != nil || one.Outcome != RepairRefused || one.Why == "" {
		t.Errorf("%v: %+v", err, one)
	}
}

// TestRepairIsRefused: what cannot be exact is refused with a reason, and so is what fails for
// good. No repair ends a job, but a failure that passes ends the attempt.
func TestRepairIsRefused(t *testing.T) {
	for _, c := range []struct {
		want  string
		rules transform.Config
		set   func(*rig, *follower, *Repair)
	}{
		{"time-series", transform.Config{}, func(_ *rig, _ *follower, one *Repair) { one.Target = "d.system.buckets.t" }},
		{"no such collection", transform.Config{}, func(_ *rig, _ *follower, one *Repair) { one.Target = "d.x" }},
		{"another collection", transform.Config{}, func(_ *rig, _ *follower, one *Repair) { one.UUID = uuid(9) }},
		{"being finalized", transform.Config{}, func(_ *rig, f *follower, _ *Repair) { f.finalAt = at(99) }},
		{"has dropped", transform.Config{}, func(r *rig, _ *follower, _ *Repair) {
			r.findErrs, r.vanished = []error{errDropped}, true
		}},
		{"disk full", transform.Config{}, func(r *rig, _ *follower, _ *Repair) {
			r.fail["commit"] = []error{errors.New("disk full")}
		}},
		{"disk full", transform.Config{}, func(r *rig, _ *follower, _ *Repair) {
			r.fail["defer"] = []error{errors.New("disk full")}
		}},
		{"with history", transform.Config{History: []string{"d.c"}}, nil},
		{"operations of its", transform.Config{Skip: []string{"d.c=update"}}, nil},
		{"no such document, and the job leaves out", transform.Config{Skip: []string{"d.c=delete"}}, nil},
		{"no such document, and the job marks", transform.Config{SoftDelete: []string{"d.c=gone"}}, nil},
		{"no such document, and a rule keeps", transform.Config{Filter: []string{`d.c={"v":"a"}`}}, nil},
		{"no such document, and the target had", transform.Config{}, func(_ *rig, f *follower, _ *Repair) {
			f.OnExisting = state.ExistingMerge
		}},
		{"view or time-series", transform.Config{}, func(_ *rig, f *follower, _ *Repair) {
			f.Source.Names.Change(schema.NameChange{Put: []schema.Name{{NS: "d.c", Target: "d.c", Type: schema.TypeView,
				UUID: uuid(1)}}})
		}},
	} {
		r := newRig(t, c.rules)
		f := r.start()
		one := broken(1)
		if c.set != nil {
			c.set(r, f, one)
		}
		f.Repairs.Add([]*Repair{one})
		if err := f.repair(t.Context(), at(12)); err != nil || one.Outcome != RepairRefused ||
			!strings.Contains(one.Why, c.want) {
			t.Errorf("%s: %v, %s %q", c.want, err, one.Outcome, one.Why)
		}
	}
	r := newRig(t, transform.Config{})
	f := r.start()
	one := broken(1)
	f.Repairs.Add([]*Repair{one})
	r.fail["commit"] = []error{mongo.Retry("no primary", nil, "")}
	if err := f.repair(t.Context(), at(12)); mongo.Classify(err) != mongo.ClassRetry || one.Outcome != "" {
		t.Errorf("%v, %s", err, one.Outcome)
	}
}

// TestRepairWaits: nothing is repaired while the target may be ahead of the stream, and at most
// some documents between two batches. A document that the target refuses is refused here, too.
func TestRepairWaits(t *testing.T) {
	r := newRig(t, transform.Config{})
	f := r.start()
	f.overlapEnd = at(20)
	var list []*Repair
	for id := range int32(repairsAtOnce + 1) {
		r.docs[id] = kit.Raw(kit.D("_id", id))
		list = append(list, broken(id))
	}
	f.Repairs.Add(list)
	if err := f.emit(t.Context(), batch(19)); err != nil || len(r.sink.deferred) != 0 {
		t.Errorf("%v: %d in the overlap", err, len(r.sink.deferred))
	}
	half := batch(21, put("d.c", 99, "x")) // amid the events of a position
	half.End, half.Partial = at(20), true
	if err := f.emit(t.Context(), half); err != nil || len(r.sink.deferred) != 0 {
		t.Errorf("%v: %d amid a position", err, len(r.sink.deferred))
	}
	if err := f.emit(t.Context(), batch(21)); err != nil || len(r.sink.deferred) != repairsAtOnce {
		t.Errorf("%v: %d at once", err, len(r.sink.deferred))
	}
	l := deadletter.Letter{Origin: stream.Origin{NS: "d.c"}, DocID: list[0].ID, Doc: r.docs[0], State: deadletter.Open}
	if err := f.Letters.Write(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	f.Letters.Tried("d.c", list[0].ID)
	if f.repaired(list[0]); list[0].Outcome != RepairRefused || !strings.Contains(list[0].Why, "target refuses it") {
		t.Errorf("%+v", list[0])
	}
}

// TestCappedEvents: of the events of a capped collection count those of the collection that has
// the name, after its copy and before the next schema change; after one that was noted it is empty.
func TestCappedEvents(t *testing.T) {
	r := newRig(t, transform.Config{})
	r.job.Intent = at(15)
	f := r.start()
	l := cappedLook{follower: f, left: mostCappedBytes,
		copied: map[string]mongo.OpTime{"00000000000000000000000000000001": at(12)}}
	c := &cappedSeen{sources: []string{"d.c"}, target: "d.c", past: at(10)}
	c.limited(kit.Raw(kit.D("size", int64(1000), "max", int32(7))), "size", "max")
	if c.limit != (limit{bytes: 1024, docs: 7}) {
		t.Errorf("limit %+v", c.limit)
	}
	l.all, l.bySource = []*cappedSeen{c}, map[string]*cappedSeen{"d.c": c}
	id := [16]byte{15: 1}
	insert := func(n uint32) stream.Event {
		ev := ofTime(n, put("d.c", int32(n), "v"))
		ev.Kind, ev.UUID = stream.Insert, &id
		return ev
	}
	look := func(want int, closed bool, events ...stream.Event) {
		t.Helper()
		r.events = events
		if err := l.through(t.Context(), at(10), at(30)); err != nil || len(c.events) != want || c.closed != closed {
			t.Errorf("%v: %d events, closed %t, past %v", err, len(c.events), c.closed, c.past)
		}
	}
	look(1, false, insert(11), insert(12), insert(13)) // two are in the copy
	other := changed(stream.Change{Kind: stream.ChangeDrop, NS: "d.other"})
	look(2, false, ofTime(14, other), insert(14))
	mod := stream.Change{Kind: stream.ChangeCollMod, NS: "d.c", Options: kit.Raw(kit.D("cappedMax", 3))}
	look(0, false, ofTime(15, changed(mod)))
	if c.past != at(15) || c.limit.docs != 3 || c.inserts != 0 {
		t.Errorf("past %v, limit %+v, %d inserts", c.past, c.limit, c.inserts)
	}
	look(1, true, insert(16), ofTime(17, changed(mod)), insert(18))
	c.closed, l.left = false, 1
	r.events = []stream.Event{insert(19)}
	if err := l.through(t.Context(), at(10), at(30)); !errors.Is(err, errEnough) {
		t.Errorf("without end: %v", err)
	}
}
