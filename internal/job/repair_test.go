package job_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/workshop/lab"
)

// uuid is that of the source's collection.
func (c *conflicted) uuid() bson.Binary {
	c.t.Helper()
	list, err := c.src.Database().ListCollectionSpecifications(c.t.Context(), bson.D{{Key: "name", Value: c.src.Name()}})
	if c.must(nil, err); len(list) != 1 {
		c.t.Fatalf("%s: %d collections of the name %s", c.db, len(list), c.src.Name())
	}
	return *list[0].UUID
}

// repairs asks for documents of the target to be repaired, and waits.
func (c *conflicted) repairs(ids ...any) map[string]job.Repair {
	c.t.Helper()
	return c.repairsOf(c.uuid(), ids...)
}

// repairsOf asks for repairs of documents that were found in a collection of the source.
func (c *conflicted) repairsOf(uuid bson.Binary, ids ...any) map[string]job.Repair {
	c.t.Helper()
	var list []*job.Repair
	for _, id := range ids {
		kind, raw, err := bson.MarshalValue(id)
		c.must(nil, err)
		list = append(list, &job.Repair{Target: c.db + "." + c.dst.Name(), UUID: uuid,
			ID: bsonraw.FromRaw(bson.RawValue{Type: kind, Value: raw})})
	}
	out := map[string]job.Repair{}
	c.must(nil, c.j.Repair(c.t.Context(), list, func(now []job.Repair) {
		for i, one := range now {
			out[fmt.Sprint(ids[i])] = one
		}
	}))
	return out
}

// another wants the repair of a document to be refused because the name means another
// collection.
func (c *conflicted) another(uuid bson.Binary, id any) {
	c.t.Helper()
	for _, one := range c.repairsOf(uuid, id) {
		if one.Outcome != job.RepairRefused || !strings.Contains(one.Why, "another collection") {
			c.t.Errorf("%s: repair of %v of collection %x: %s %q", c.db, id, uuid.Data, one.Outcome, one.Why)
		}
	}
}

// repaired wants the outcomes of repairs, by _id; those that begin with "refused" end with
// a part of the reason.
func (c *conflicted) repaired(want map[string]string, ids ...any) {
	c.t.Helper()
	for id, one := range c.repairs(ids...) {
		outcome, why, _ := strings.Cut(want[id], ": ")
		if string(one.Outcome) != outcome || !strings.Contains(one.Why, why) {
			c.t.Errorf("%s: repair of %s: %s %q, want %s", c.db, id, one.Outcome, one.Why, want[id])
		}
	}
}

// versioned is a document whose version only grows.
func versioned(id any, v int64) bson.D {
	return bson.D{{Key: "_id", Value: id}, {Key: "v", Value: v}, {Key: "text", Value: fmt.Sprint("text ", v)}}
}

// writers change documents of the source until stop is called: they set fields, replace,
// and delete and insert again. Each write has a newer version than those before.
func (c *conflicted) writers(ids ...any) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	var version atomic.Int64
	version.Store(100)
	for i, id := range ids {
		wg.Go(func() {
			for n := i; ctx.Err() == nil; n++ {
				v, of := version.Add(1), bson.D{{Key: "_id", Value: id}}
				var err error
				switch n % 5 {
				case 0, 1:
					_, err = c.src.UpdateOne(c.t.Context(), of, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v}}}})
				case 2:
					_, err = c.src.ReplaceOne(c.t.Context(), of, versioned(id, v)[1:], options.Replace().SetUpsert(true))
				case 3:
					_, err = c.src.UpdateOne(c.t.Context(), of, bson.D{{Key: "$set", Value: bson.D{{Key: "v", Value: v},
						{Key: "text", Value: "set"}}}})
				case 4:
					if _, err = c.src.DeleteOne(c.t.Context(), of); err == nil {
						_, err = c.src.InsertOne(c.t.Context(), versioned(id, v))
					}
				}
				if err != nil {
					c.t.Error(err)
					return
				}
				select { // they leave the stream room to go on
				case <-time.After(3 * time.Millisecond):
				case <-ctx.Done():
				}
			}
		})
	}
	stop = func() { cancel(); wg.Wait() }
	c.t.Cleanup(stop) // also after a failure, which a panic of a writer would hide
	return stop
}

// forward watches documents of the target until stop is called: their versions never go
// back.
func (c *conflicted) forward(ids ...any) (stop func()) {
	ctx, cancel := context.WithCancel(c.t.Context())
	var wg sync.WaitGroup
	for _, id := range ids {
		wg.Go(func() {
			last := int64(0)
			for ctx.Err() == nil {
				var d struct{ V int64 }
				err := c.dst.FindOne(c.t.Context(), bson.D{{Key: "_id", Value: id}}).Decode(&d)
				switch {
				case errors.Is(err, driver.ErrNoDocuments):
					continue
				case err != nil:
					c.t.Error(err)
					return
				case d.V < last:
					c.t.Errorf("%s: document %v of the target went from version %d back to %d", c.db, id, last, d.V)
					return
				}
				last = d.V
			}
		})
	}
	return func() { cancel(); wg.Wait() }
}

// behind has the source go on by so many writes while the job is held back. It is not
// paused: what is applied again after that goes back for a while.
func (c *conflicted) behind(writes int64) {
	c.t.Helper()
	c.must(nil, c.j.SetLimits(c.t.Context(), pace.Rates{Docs: 200}))
	c.must(nil, c.wrote(writes))
	c.must(nil, c.j.SetLimits(c.t.Context(), pace.Rates{}))
}

// wrote waits until the source has so many operations more.
func (c *conflicted) wrote(n int64) error {
	from := int64(-1)
	for {
		var s struct {
			Opcounters struct{ Insert, Update int64 }
		}
		if err := c.s.srcDB.Database("admin").RunCommand(c.t.Context(),
			bson.D{{Key: "serverStatus", Value: 1}}).Decode(&s); err != nil {
			return err
		}
		now := s.Opcounters.Insert + s.Opcounters.Update
		if from < 0 {
			from = now
		}
		if now-from >= n {
			return nil
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// equal wants both sides to have the same documents.
func (c *conflicted) equal() {
	c.t.Helper()
	var ids []any
	c.must(nil, c.src.Distinct(c.t.Context(), "_id", bson.D{}).Decode(&ids))
	c.same(ids...)
	n, err := c.dst.CountDocuments(c.t.Context(), bson.D{})
	if c.must(nil, err); n != int64(len(ids)) {
		c.t.Errorf("%s: the source has %d documents, the target %d", c.db, len(ids), n)
	}
}

// TestRepair: a document that was changed on the target, one that is missing and one too
// many become as the source has them, whatever the policy on conflicts.
func TestRepair(t *testing.T) {
	t.Parallel()
	s := start(t)
	for name, test := range map[string]func(*testing.T, servers){"still": testRepairStill, "busy": testRepairBusy,
		"key": testRepairKey, "left": testRepairLeft, "expected": testRepairExpected} {
		t.Run(name, func(t *testing.T) { t.Parallel(); test(t, s) })
	}
}

func testRepairStill(t *testing.T, s servers) {
	for _, policy := range []job.OnConflict{job.ConflictStop, job.ConflictSkip, job.ConflictOverwrite} {
		c := newConflicted(t, s, "repairstill", policy)
		for i := range 5 {
			c.insert(c.src, versioned(i, 1))
		}
		c.run()
		c.caughtUp()
		c.set(c.dst, 1, bson.D{{Key: "text", Value: "changed"}})
		c.remove(c.dst, 2)
		c.insert(c.dst, bson.D{{Key: "_id", Value: "extra"}})
		c.remove(c.dst, 4)
		c.insert(c.dst, bson.D{{Key: "_id", Value: 4.0}, {Key: "v", Value: 1}}) // the same to the server
		c.repaired(map[string]string{"1": "written", "2": "written", "3": "same", "4": "written", "extra": "deleted",
			"none": "same"}, 1, 2, 3, 4, "extra", "none")
		c.equal()
		c.set(c.dst, 1, bson.D{{Key: "text", Value: "changed"}})
		c.another(bson.Binary{}, 1)
		c.another(bson.Binary{Subtype: bson.TypeBinaryUUID, Data: make([]byte, 16)}, 1)
		c.repaired(map[string]string{"1": "written"}, 1)
		if l, st := c.letters(), c.j.Status().Conflicts; len(l) != 0 || st.Open+st.Undecided+st.Settled != 0 {
			t.Errorf("%s: %+v %+v", policy, st, l)
		}
		c.end()
	}
}

// testRepairBusy: while writers change the same documents on the source, and the job has
// a backlog of small batches, so that what is read is ahead of the stream by many of them.
// A repair never brings the target a version that is older than what it had.
func testRepairBusy(t *testing.T, s servers) {
	policies := []job.OnConflict{job.ConflictSkip, job.ConflictStop}
	if lab.Brief() {
		policies = policies[:1]
	}
	for _, policy := range policies {
		c := newConflicted(t, s, "repairbusy", policy)
		c.spec.ApplyBuffer = 100_000
		ids := []any{0, 1, 2, 3, 4}
		for _, id := range ids {
			c.insert(c.src, versioned(id, 1))
		}
		c.run()
		c.caughtUp()
		done := c.writers(0, 1, 2, 3, 4, "new")
		watched := c.forward(0, 1, 2, 3, 4, "new")
		for n := range 3 {
			c.set(c.dst, n%3, bson.D{{Key: "planted", Value: n}})
			if policy == job.ConflictSkip { // else the job ends by itself when it meets them
				c.remove(c.dst, 3)
			}
			c.insert(c.dst, bson.D{{Key: "_id", Value: fmt.Sprint("extra", n)}})
			c.behind(300)
			for id, one := range c.repairs(0, 1, 2, 3, "new", fmt.Sprint("extra", n)) {
				if one.Outcome == job.RepairRefused {
					t.Errorf("%s: %s: %s", policy, id, one.Why)
				}
			}
		}
		done()
		c.caughtUp()
		watched()
		c.repairs(3)
		c.equal()
		c.end()
	}
}

// testRepairLeft: what a run leaves that ends amid a repair, the next one sees through.
func testRepairLeft(t *testing.T, s servers) {
	c := newConflicted(t, s, "repairleft", job.ConflictStop)
	for i := range 3 {
		c.insert(c.src, versioned(i, 1))
	}
	c.run()
	c.caughtUp()
	c.set(c.dst, 1, bson.D{{Key: "planted", Value: true}})
	c.insert(c.dst, bson.D{{Key: "_id", Value: "extra"}})
	// Before there is a backlog: a batch of it would take minutes, and repairs come between two.
	c.must(nil, c.j.SetLimits(t.Context(), pace.Rates{Docs: 5}))
	done := c.writers(0, 1)
	asked := make(chan error, 1)
	list := []*job.Repair{{Target: c.db + ".c", UUID: c.uuid(), ID: bsonraw.IDOf(c.on(c.dst, 1))},
		{Target: c.db + ".c", UUID: c.uuid(), ID: bsonraw.IDOf(c.on(c.dst, "extra"))}}
	go func() { asked <- c.j.Repair(t.Context(), list, func([]job.Repair) {}) }()
	c.await("documents that are held", func() bool {
		l := c.letters()
		return len(l) == 2 && l[0].State == "held" && l[1].State == "held"
	})
	c.end()
	if err := <-asked; !errors.Is(err, job.ErrEnded) {
		t.Errorf("who has asked is told %v", err)
	}
	done()
	c.run()
	c.caughtUp()
	c.await("what was held", func() bool { return len(c.letters()) == 0 })
	c.equal()
	c.end()
}

// testRepairKey: a document that another one's key keeps off the target stays a dead
// letter, and never ends the job.
func testRepairKey(t *testing.T, s servers) {
	for _, policy := range []job.OnConflict{job.ConflictStop, job.ConflictSkip, job.ConflictOverwrite} {
		c := follow(t, s, "repairkey", policy)
		c.remove(c.dst, 1)
		c.insert(c.dst, bson.D{{Key: "_id", Value: "theirs"}, {Key: "k", Value: 1}})
		if policy == job.ConflictOverwrite {
			c.repaired(map[string]string{"1": "written"}, 1)
			c.equal()
			c.end()
			continue
		}
		c.repaired(map[string]string{"1": "refused: dead letter"}, 1)
		c.oneLetter("open", "key", c.on(c.src, 1))
		c.set(c.src, 1, bson.D{{Key: "x", Value: 1}})
		c.caughtUp()
		c.oneLetter("open", "key", c.on(c.src, 1))
		c.repaired(map[string]string{"1": "written", "theirs": "deleted"}, 1, "theirs")
		c.equal()
		// Two that have traded their keys.
		c.set(c.dst, 2, bson.D{{Key: "k", Value: -1}})
		c.set(c.dst, 3, bson.D{{Key: "k", Value: 2}})
		c.set(c.dst, 2, bson.D{{Key: "k", Value: 3}})
		c.repaired(map[string]string{"2": "written", "3": "written"}, 2, 3)
		c.equal()
		c.end()
	}
}

// testRepairExpected: what the rules have on the target alone is not deleted, and what
// cannot be told is left.
func testRepairExpected(t *testing.T, s servers) {
	for name, one := range map[string]struct {
		set  func(*conflicted)
		want map[string]string
	}{
		"skipdelete": {func(c *conflicted) { c.spec.Rules.Skip = []string{c.db + ".*=delete"} },
			map[string]string{"1": "written", "extra": "refused: --skip"}},
		"skipupdate": {func(c *conflicted) { c.spec.Rules.Skip = []string{c.db + ".*=update"} },
			map[string]string{"1": "refused: --skip", "extra": "refused: --skip"}},
		"soft": {func(c *conflicted) { c.spec.Rules.SoftDelete = []string{c.db + ".*=gone"} },
			map[string]string{"1": "written", "extra": "refused: --soft-delete"}},
		"filter": {func(c *conflicted) { c.spec.Rules.Filter = []string{c.db + `.*={"v": {"$gt": 0}}`} },
			map[string]string{"1": "written", "extra": "refused: a part"}},
		"merge": {func(c *conflicted) { c.spec.OnExisting = job.ExistingMerge },
			map[string]string{"1": "written", "extra": "refused: of its own"}},
		"capped": {func(c *conflicted) {
			c.must(nil, s.srcDB.Database(c.db).CreateCollection(t.Context(),
				"c", options.CreateCollection().SetCapped(true).SetSizeInBytes(1<<20)))
		}, map[string]string{"1": "refused: capped", "extra": "refused: capped"}},
		"history": {func(c *conflicted) { c.spec.Rules.History = []string{c.db + ".*"} },
			map[string]string{"1": "refused: history", "extra": "refused: history"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newConflicted(t, s, "repair"+name, job.ConflictStop)
			one.set(c)
			c.insert(c.src, versioned(1, 1))
			c.run()
			c.caughtUp()
			extra := bson.D{{Key: "_id", Value: "extra"}}
			c.insert(c.dst, extra)
			if name != "capped" {
				c.must(c.dst.DeleteOne(t.Context(), bson.D{{Key: "v", Value: 1}}))
			}
			c.repaired(one.want, 1, "extra")
			if c.on(c.dst, "extra") == nil {
				t.Error("a document was deleted")
			}
			if one.want["1"] == "written" {
				c.same(1)
			}
			c.end()
		})
	}
}
