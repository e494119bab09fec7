package worker_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
)

// TestRepair: documents that a verification has found are made as the source has them by
// the job itself, while the source goes on, and are compared again. Who has asked for it
// is noted, and so is what has come of it.
func TestRepair(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("repair", 0, 1000)
	b.create("job", "repair", "on-conflict: skip\n")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	source, behind := b.source.Database("repair").Collection("c"), b.onTarget("repair")
	_, err := behind.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 5}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "<b>changed</b>"}}}})
	b.ok(err)
	_, err = behind.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 6}})
	b.ok(err)
	_, err = behind.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "<b>\u202eextra"}})
	b.ok(err)
	_, err = behind.InsertOne(t.Context(), bson.D{{Key: "_id", Value: strings.Repeat("long", 500)}})
	b.ok(err)
	b.ask("job", "found", service.VerifyOptions{})
	if _, _, err := b.desk.Repair(t.Context(), b.admin, "job", "early",
		operate.RepairWhat{Of: "found", All: true}); code(err) != operate.Conflict {
		t.Errorf("before its end: %v", err)
	}
	_, f := b.result("job", "found", service.VerifyDifferent)
	keys := map[string]operate.RepairDocument{}
	for _, d := range f.Differences {
		keys[d.Kind+" "+d.ID[:min(len(d.ID), 20)]] = operate.RepairDocument{NS: d.NS, Key: d.Key}
	}
	if len(keys) != 4 {
		t.Fatalf("%+v", keys)
	}

	for what, refused := range map[string]struct {
		who  *service.Caller
		of   string
		what operate.RepairWhat
		want operate.Code
	}{
		"a viewer": {&service.Caller{Name: "vera", Role: service.Viewer}, "found", operate.RepairWhat{All: true},
			operate.Forbidden},
		"others' job": {&service.Caller{Name: "otto", Role: service.Operator, Jobs: []string{"other"}}, "found",
			operate.RepairWhat{All: true}, operate.NotFound},
		"nothing": {b.admin, "found", operate.RepairWhat{}, operate.Invalid},
		"both": {b.admin, "found",
			operate.RepairWhat{All: true, Documents: []operate.RepairDocument{{NS: "repair.c", Key: "x"}}}, operate.Invalid},
		"another": {b.admin, "found",
			operate.RepairWhat{Documents: []operate.RepairDocument{{NS: "repair.c",
				Key: service.DocumentKey(bson.RawValue{Type: bson.TypeInt32, Value: []byte{7, 0, 0, 0}})}}}, operate.Invalid},
		"no name": {b.admin, "found", operate.RepairWhat{Documents: []operate.RepairDocument{{NS: "repair.c"}}},
			operate.Invalid},
		"verification": {b.admin, "none", operate.RepairWhat{All: true}, operate.NotFound},
	} {
		if _, _, err := b.desk.Repair(t.Context(), refused.who, "job", "x",
			refused.what.In(refused.of)); code(err) != refused.want {
			t.Errorf("%s: %v, want %s", what, err, refused.want)
		}
	}

	// One of them first, and then all, while the source goes on with the same documents.
	one := operate.RepairWhat{Documents: []operate.RepairDocument{keys[`content {"$numberInt":"5"}`]}}
	_, made, err := b.desk.Repair(t.Context(), b.admin, "job", "one", one.In("found"))
	if b.ok(err); !made {
		t.Error("it was there")
	}
	if _, made, err := b.desk.Repair(t.Context(), b.admin, "job", "one", one.In("found")); err != nil || made {
		t.Errorf("the same once more: %v, %v", made, err)
	}
	if _, _, err := b.desk.Repair(t.Context(), b.admin, "job", "one",
		operate.RepairWhat{Of: "found", All: true}); code(err) != operate.Exists {
		t.Errorf("another of the same id: %v", err)
	}
	if _, _, err := b.desk.Verify(t.Context(), b.admin, "job", "one",
		service.VerifyOptions{}); code(err) != operate.Exists {
		t.Errorf("a verification of the id of a repair: %v", err)
	}
	v, f := b.result("job", "one", service.VerifySame)
	if r := v.Report.Repair; r == nil || *r != (service.RepairProgress{Written: 1}) || len(f.Repaired) != 1 ||
		f.Repaired[0].Outcome != "written" || f.Repaired[0].ID != `{"$numberInt":"5"}` {
		t.Errorf("%+v %+v", v.Report, f.Repaired)
	}
	if left, err := behind.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: 6}}); err != nil || left != 0 {
		t.Errorf("what nobody chose was repaired: %d, %v", left, err)
	}
	writing, stop := context.WithCancel(t.Context())
	written := make(chan error, 1)
	go func() {
		var err error
		for n := 0; err == nil && writing.Err() == nil; n++ {
			_, err = source.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 5 + n%2}},
				bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
		}
		written <- err
	}()
	_, _, err = b.desk.Repair(t.Context(), b.admin, "job", "all", operate.RepairWhat{Of: "found", All: true})
	b.ok(err)
	b.verification("job", "all", "the repair", func(v *service.Verification) bool {
		return v.Report != nil && v.Report.Repair != nil && *v.Report.Repair != service.RepairProgress{} &&
			v.Report.Repair.Refused == 0 &&
			v.Report.Repair.Written+v.Report.Repair.Same+v.Report.Repair.Deleted == 3
	})
	stop()
	b.ok(<-written)
	v, f = b.result("job", "all", service.VerifySame)
	if v.Report.Repair.Deleted != 1 || len(f.Repaired) != 3 || len(f.Collections) != 1 {
		t.Errorf("%+v %+v", v.Report.Repair, f)
	}
	b.ask("job", "after", service.VerifyOptions{})
	// the long one
	if _, f := b.result("job", "after", service.VerifyDifferent); len(f.Differences) != 1 || f.Differences[0].Key != "" {
		t.Errorf("%+v", f.Differences)
	}
	if _, _, err := b.desk.Repair(t.Context(), b.admin, "job", "", operate.RepairWhat{Of: "after", All: true}); code(
		err) != operate.Conflict || !strings.Contains(err.Error(), "named") {
		t.Errorf("of what cannot be named: %v", err)
	}

	// It is seen who has done it, and what has come of it.
	trail, err := b.desk.Trail(t.Context(), b.admin, "job", service.Page{Limit: 100})
	b.ok(err)
	for _, what := range []string{"repair 1 documents of verification found as one",
		"repair 3 documents of verification found as all"} {
		if !slices.ContainsFunc(trail, func(c service.Change) bool {
			return c.What == what && c.Who == "test" &&
				c.Refused == ""
		}) {
			t.Errorf("the trail lacks %s", what)
		}
	}
	if !slices.ContainsFunc(trail, func(c service.Change) bool {
		return c.What == "repair" && c.Who == "vera" &&
			c.Refused != ""
	}) {
		t.Error("the trail lacks a refusal")
	}
	said := ""
	b.until("job", "its log", func(*service.Job) bool {
		entries, err := b.desk.Log(t.Context(), b.admin, "job", "", service.Page{Before: 0, Limit: 500})
		b.ok(err)
		said = fmt.Sprint(entries)
		return strings.Contains(said, "1 deleted") && strings.Contains(said, "document repaired by request")
	})
	if !strings.Contains(said, "1 documents of the target are to be repaired, as test has asked (verification one)") {
		t.Error(said)
	}

	// A job that is paused repairs nothing, and a finalized one never again.
	_, err = b.desk.Pause(t.Context(), b.admin, "job")
	b.ok(err)
	b.until("job", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	if _, _, err := b.desk.Repair(t.Context(), b.admin, "job", "", operate.RepairWhat{Of: "found", All: true}); code(
		err) != operate.Conflict || !strings.Contains(err.Error(), "paused") {
		t.Errorf("of a paused job: %v", err)
	}
	_, err = b.desk.Resume(t.Context(), b.admin, "job")
	b.ok(err)
	_, err = b.desk.Finalize(t.Context(), b.admin, "job", true)
	b.ok(err)
	b.until("job", "its end", func(j *service.Job) bool { return j.State() == service.Finished && j.Lease == nil })
	if _, _, err := b.desk.Repair(t.Context(), b.admin, "job", "", operate.RepairWhat{Of: "found", All: true}); code(
		err) != operate.Conflict || !strings.Contains(err.Error(), "finalized") {
		t.Errorf("of a finalized job: %v", err)
	}
}
