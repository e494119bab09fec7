package worker_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/workshop/lab"
)

// onTarget is the target's collection c of a database.
func (b *bed) onTarget(db string) *driver.Collection {
	b.Helper()
	target, err := driver.Connect(options.Client().ApplyURI(b.dst.URI()))
	b.ok(err)
	b.Cleanup(func() { _ = target.Disconnect(context.Background()) })
	return target.Database(db).Collection("c")
}

// ask asks for a verification.
func (b *bed) ask(name, id string, o service.VerifyOptions) {
	b.Helper()
	_, made, err := b.desk.Verify(b.Context(), b.admin, name, id, o)
	if b.ok(err); !made {
		b.Fatalf("verification %s was there", id)
	}
}

// verification waits until one is as wanted.
func (b *bed) verification(name, id, what string, holds func(*service.Verification) bool) *service.Verification {
	b.Helper()
	for end := time.Now().Add(3 * time.Minute); ; {
		changed, _ := b.desk.View.Changed()
		v := b.desk.View.Verification(name, id)
		if v != nil && holds(v) {
			return v
		}
		if time.Now().After(end) {
			b.Fatalf("verification %s: %s did not come: %+v", id, what, v)
		}
		select {
		case <-changed:
		case <-time.After(200 * time.Millisecond):
		case <-b.Context().Done():
			b.Fatal(what)
		}
	}
}

// result waits for the end of a verification, and gives what the admin sees of it.
func (b *bed) result(name, id string, want service.VerifyState) (*service.Verification, *service.Findings) {
	b.Helper()
	v := b.verification(name, id, "its end", func(v *service.Verification) bool { return v.State().Final() })
	if v.State() != want {
		b.Fatalf("verification %s: %s, want %s: %+v", id, v.State(), want, v.Report)
	}
	_, f, err := b.desk.Verification(b.Context(), b.admin, name, id)
	b.ok(err)
	return v, f
}

// TestVerify: what was changed behind a job's back is found with both sides, by who may
// see them; on a clean target, and while writes go on, nothing is.
func TestVerify(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("clean", 0, 3000)
	b.create("job", "clean", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	if _, _, err := b.desk.Verify(t.Context(), b.admin, "job", "early", service.VerifyOptions{}); err == nil &&
		b.desk.View.Job("job").State() != service.Running {
		t.Error("a job that does not follow is verified")
	}
	b.until("job", "following", following)

	writing, stop := context.WithCancel(t.Context())
	written := make(chan int, 1)
	go func() {
		n := 0
		for ; writing.Err() == nil; n++ {
			_, err := b.source.Database("clean").Collection("c").UpdateOne(context.WithoutCancel(writing),
				bson.D{{Key: "_id", Value: n * 7 % 3000}}, bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}})
			if err != nil {
				t.Error(err)
				break
			}
		}
		written <- n
	}()
	b.ask("job", "busy", service.VerifyOptions{})
	v, f := b.result("job", "busy", service.VerifySame)
	stop()
	if n := <-written; n == 0 || v.Report.Progress.Docs < 6000 || len(f.Collections) != 1 || len(f.Differences) != 0 {
		t.Errorf("%d writes, %+v, %+v", n, v.Report, f)
	}

	behind := b.onTarget("clean")
	_, err := behind.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 5}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "<b>changed</b>"}}}})
	b.ok(err)
	_, err = behind.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 6}})
	b.ok(err)
	_, err = behind.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "extra"}})
	b.ok(err)
	b.ask("job", "changed", service.VerifyOptions{})
	if _, made, err := b.desk.Verify(t.Context(), b.admin, "job", "changed", service.VerifyOptions{}); err != nil || made {
		t.Errorf("the same once more: %v, %v", made, err)
	}
	if _, _, err := b.desk.Verify(t.Context(), b.admin, "job", "changed",
		service.VerifyOptions{SamplePercent: 3}); code(err) != operate.Exists {
		t.Errorf("another of the same id: %v", err)
	}
	if _, _, err := b.desk.Verify(t.Context(), b.admin, "job", "second",
		service.VerifyOptions{}); code(err) != operate.Conflict {
		t.Errorf("a second one at a time: %v", err)
	}
	v, f = b.result("job", "changed", service.VerifyDifferent)
	if v.Report.Progress.Differences != 3 || len(f.Differences) != 3 || !f.WithValues {
		t.Fatalf("%+v %+v", v.Report, f)
	}
	for _, d := range f.Differences {
		switch d.Kind {
		case "content":
			if d.ID != `{"$numberInt":"5"}` || !slices.Equal(d.Fields, []string{"text"}) ||
				!strings.Contains(d.Source, "xxxx") || !strings.Contains(d.Target, "<b>changed</b>") {
				t.Errorf("%+v", d)
			}
		case "missing":
			if d.ID != `{"$numberInt":"6"}` || d.Source == "" || d.Target != "" {
				t.Errorf("%+v", d)
			}
		case "extra":
			if d.ID != `"extra"` || d.Source != "" || d.Target == "" {
				t.Errorf("%+v", d)
			}
		}
	}
	_, f, err = b.desk.Verification(t.Context(), &service.Caller{Name: "vera", Role: service.Viewer}, "job", "changed")
	if b.ok(err); len(f.Differences) != 3 || f.WithValues {
		t.Fatalf("%+v", f)
	}
	for _, d := range f.Differences {
		if d.ID == "" || d.Source != "" || d.Target != "" {
			t.Errorf("a viewer sees %+v", d)
		}
	}
}

func code(err error) operate.Code {
	if e, ok := errors.AsType[*operate.Error](err); ok {
		return e.Code
	}
	return ""
}

// TestVerifyWaits: while a job is paused nothing is called a difference; it is once the
// job follows again, if it still is one.
func TestVerifyWaits(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t)
	b.insert("waits", 0, 500)
	b.create("job", "waits", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	_, err := b.desk.Pause(t.Context(), b.admin, "job")
	b.ok(err)
	b.until("job", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	b.insert("waits", 500, 300)
	_, err = b.onTarget("waits").DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 3}})
	b.ok(err)
	b.ask("job", "v", service.VerifyOptions{PatienceSeconds: 1})
	b.verification("job", "v", "waiting", func(v *service.Verification) bool {
		return v.State() == service.VerifyRunning && v.Report.Progress.Rechecking == 301 &&
			strings.Contains(v.Report.Waits, "paused")
	})
	_, err = b.desk.Resume(t.Context(), b.admin, "job")
	b.ok(err)
	v, f := b.result("job", "v", service.VerifyDifferent)
	if v.Report.Progress.Differences != 1 || len(f.Differences) != 1 || f.Collections[0].Settled != 300 {
		t.Errorf("%+v %+v", v.Report, f)
	}
	// Called off while it waits.
	_, err = b.desk.Pause(t.Context(), b.admin, "job")
	b.ok(err)
	b.until("job", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	b.ask("job", "off", service.VerifyOptions{})
	b.verification("job", "off", "its begin",
		func(v *service.Verification) bool { return v.State() == service.VerifyRunning && v.Report.Waits != "" })
	_, err = b.desk.CancelVerification(t.Context(), b.admin, "job", "off")
	b.ok(err)
	b.verification("job", "off", "its end", func(v *service.Verification) bool {
		return v.Report.State == service.VerifyCanceled && v.Lease == nil && v.Report.EndedAt != nil
	})
}

// TestVerifyWorkerGone: what a worker leaves is begun again by another; what it says
// late does not count.
func TestVerifyWorkerGone(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	b.insert("gone", 0, 2000)
	b.create("job", "gone", "")
	b.until("job", "there", func(*service.Job) bool { return true })
	w1, stop := b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	_, err := b.desk.Pause(t.Context(), b.admin, "job") // so that it waits
	b.ok(err)
	b.until("job", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	b.insert("gone", 2000, 100)
	b.ask("job", "v", service.VerifyOptions{})
	b.verification("job", "v", "w1", func(v *service.Verification) bool {
		return v.State() == service.VerifyRunning && v.Report.Worker == "w1" && v.Report.Waits != ""
	})
	stop()
	if n := len(w1.Jobs()); n != 0 {
		t.Errorf("w1 has %d jobs", n)
	}
	b.verification("job", "v", "w2", func(v *service.Verification) bool {
		return v.State() == service.VerifyRunning && v.Report.Worker == "w2" && v.Report.Attempt == 2
	})
	_, err = b.desk.Resume(t.Context(), b.admin, "job")
	b.ok(err)
	b.result("job", "v", service.VerifySame)
}

// TestVerifyLent: another worker reads parts of a verification, and the result is the same;
// who has read is told.
func TestVerifyLent(t *testing.T) {
	t.Parallel()
	b := newBedOf(t, lab.Options{SetParameters: map[string]string{"enableTestCommands": "1"}})
	b.insert("parts", 0, 20_000)
	b.create("job", "parts", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1", RangeBytes: 64 << 10})
	b.until("job", "following", following)
	b.worker(b.nats.Address(), worker.Options{Name: "w2"})
	reads := func(ms int) { // reads take so long that another one has time to help
		b.ok(b.source.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "configureFailPoint", Value: "failCommand"}, {Key: "mode", Value: "alwaysOn"},
				{Key: "data", Value: bson.D{{Key: "failCommands", Value: bson.A{"find", "aggregate"}},
					{Key: "appName", Value: "millrace-verify"}, {Key: "blockConnection", Value: true},
					{Key: "blockTimeMS", Value: ms}}}}).Err())
	}
	reads(500)
	target := b.onTarget("parts")
	_, err := target.UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 50}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "text", Value: "other"}}}})
	b.ok(err)
	_, err = target.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 19_000}})
	b.ok(err)
	b.ask("job", "v", service.VerifyOptions{})
	v, f := b.result("job", "v", service.VerifyDifferent)
	if len(f.Differences) != 2 || len(f.Collections) != 1 || f.Collections[0].SourceDocs != 20_000 ||
		f.Collections[0].TargetDocs != 19_999 {
		t.Errorf("%+v", f)
	}
	if h := v.Report.Helpers; len(h) != 1 || h[0].Worker == v.Report.Worker || h[0].Docs == 0 || h[0].Parts != 0 ||
		v.Report.Lendable != 0 {
		t.Errorf("helped: %+v", h)
	}
	_, err = b.desk.Limit(t.Context(), b.admin, "job", server.Limits{Source: new(pace.Low)})
	b.ok(err)
	b.until("job", "a low load", func(j *service.Job) bool { return j.Definition.Desired.Loads != nil })
	reads(30) // one after the other
	b.ask("job", "low", service.VerifyOptions{})
	if v, _ = b.result("job", "low", service.VerifyDifferent); len(v.Report.Helpers) != 0 {
		t.Errorf("helped although the load is low: %+v", v.Report.Helpers)
	}
}

// TestVerifySchedule: a job that follows is sampled as its schedule has it, once a time,
// and the newest of what has ended are kept.
func TestVerifySchedule(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t)
	b.insert("sched", 0, 4000)
	b.create("job", "sched", "")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	_, err := b.desk.ScheduleVerifications(t.Context(), b.admin, "job",
		&service.VerifySchedule{EveryHours: 8760, SamplePercent: 5, BytesPerSecond: 5_000_000})
	b.ok(err)
	scheduled := func() *service.Verification {
		for _, v := range b.desk.View.Verifications("job") {
			if v.Request.Scheduled && v.State() == service.VerifySame {
				return &v
			}
		}
		return nil
	}
	b.until("job", "a verification", func(*service.Job) bool { return scheduled() != nil })
	v := scheduled()
	if p := v.Report.Progress; p.Docs == 0 || p.Docs > 2000 { // of 8000 of both sides
		t.Errorf("a sample of 5 percent has read %+v", p)
	}
	for i := range service.KeptVerifications + 2 {
		id := fmt.Sprintf("v%d", i)
		b.ask("job", id, service.VerifyOptions{SamplePercent: 1})
		b.result("job", id, service.VerifySame)
	}
	b.until("job", "the oldest gone",
		func(*service.Job) bool { return len(b.desk.View.Verifications("job")) == service.KeptVerifications+1 })
	if scheduled() == nil || b.desk.View.Verification("job", "v0") != nil {
		t.Error("the schedule's last is gone, or the oldest is there")
	}
	_, err = b.desk.Remove(t.Context(), b.admin, "job")
	b.ok(err)
	for b.desk.View.Job("job") != nil || len(b.desk.View.LeftVerifications("job")) > 0 {
		time.Sleep(20 * time.Millisecond)
	}
}

// TestVerifyMasked: values that a rule masks are shown of the source as they are masked,
// and of the target not at all.
func TestVerifyMasked(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBed(t)
	coll := b.source.Database("masked").Collection("c")
	_, err := coll.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 1}, {Key: "card", Value: "1234-source"},
		{Key: "in", Value: bson.A{bson.D{{Key: "pin", Value: "9999-source"}}}}, {Key: "n", Value: 1}})
	b.ok(err)
	b.create("job", "masked",
		`fields: ['masked.c={"mask": {"card": {"last": 2}, "in.pin": "null"}, "rename": {"card": "number"}}']`+"\n")
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	_, err = b.onTarget("masked").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 1}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "number", Value: "secret-a"}, {Key: "in.0.pin", Value: "secret-b"},
			{Key: "n", Value: 2}}}})
	b.ok(err)
	b.ask("job", "v", service.VerifyOptions{})
	_, f := b.result("job", "v", service.VerifyDifferent)
	if len(f.Differences) != 1 {
		t.Fatalf("%+v", f)
	}
	d := f.Differences[0]
	if !slices.Equal(d.Fields, []string{"in", "n", "number"}) || strings.Contains(d.Source, "1234") ||
		strings.Contains(d.Source+d.Target, "9999") || strings.Contains(d.Target, "secret") ||
		!strings.Contains(d.Source, "ce") || !strings.Contains(d.Target, "hidden") {
		t.Errorf("%+v", d)
	}
	b.ask("job", "names", service.VerifyOptions{NoValues: true})
	_, f = b.result("job", "names", service.VerifyDifferent)
	if len(f.Differences) != 1 || f.WithValues || f.Differences[0].Source+f.Differences[0].Target != "" {
		t.Errorf("%+v", f)
	}
}

// TestLetters: a conflict makes a dead letter, which is listed, shown, exported, and
// tried again once its cause is gone, also of a finalized job.
func TestLetters(t *testing.T) {
	t.Parallel()
	b := newBed(t)
	source, target := b.source.Database("letters").Collection("c"), b.onTarget("letters")
	unique := driver.IndexModel{Keys: bson.D{{Key: "k", Value: 1}}, Options: options.Index().SetUnique(true)}
	_, err := source.Indexes().CreateOne(t.Context(), unique)
	b.ok(err)
	b.create("job", "letters", "on-conflict: skip\n")
	ask := func(state string) []deadletter.Listed {
		t.Helper()
		l, err := b.desk.Letters(t.Context(), b.admin, "job", service.LetterFilter{State: state, Limit: 100})
		b.ok(err)
		return l.Letters
	}
	if _, err := b.desk.Letters(t.Context(), b.admin, "job",
		service.LetterFilter{Limit: 1}); code(err) != operate.Conflict {
		t.Errorf("without a worker: %v", err)
	}
	b.worker(b.nats.Address(), worker.Options{Name: "w1"})
	b.until("job", "following", following)
	if n := len(ask("")); n != 0 {
		t.Errorf("%d letters", n)
	}
	for i := range 3 {
		_, err = target.InsertOne(t.Context(), bson.D{{Key: "_id", Value: fmt.Sprint("theirs", i)}, {Key: "k", Value: i}})
		b.ok(err)
		_, err = source.InsertOne(t.Context(),
			bson.D{{Key: "_id", Value: i}, {Key: "k", Value: i}, {Key: "pad", Value: strings.Repeat("\u202e<b>", 120_000)}})
		b.ok(err)
	}
	b.until("job", "conflicts", func(j *service.Job) bool {
		return j.Report.Status != nil &&
			j.Report.Status.Conflicts.Open == 3
	})
	open := ask("open")
	if len(open) != 3 || open[0].Reason == "" || open[0].Cause != "key" {
		t.Fatalf("%+v", open)
	}
	viewers, err := b.desk.Letters(t.Context(), &service.Caller{Name: "vera", Role: service.Viewer}, "job",
		service.LetterFilter{Limit: 2})
	if b.ok(err); len(viewers.Letters) != 2 || viewers.Next != viewers.Letters[1].ID || viewers.Letters[0].Reason != "" {
		t.Errorf("%+v", viewers)
	}
	rest, err := b.desk.Letters(t.Context(), b.admin, "job", service.LetterFilter{Limit: 2, After: viewers.Next})
	if b.ok(err); len(rest.Letters) != 1 || rest.Next != "" {
		t.Errorf("%+v", rest)
	}
	one, err := b.desk.Letter(t.Context(), b.admin, "job", open[0].ID)
	if b.ok(err); !bytes.Contains(one.Whole, []byte("export has it")) || !bytes.Contains(one.Other, []byte("theirs")) {
		t.Errorf("%.300s %s", one.Whole, one.Other)
	}
	if _, err := b.desk.Letter(t.Context(), b.admin, "job", "none"); code(err) != operate.NotFound {
		t.Errorf("a letter that is none: %v", err)
	}
	var exported bytes.Buffer
	b.ok(b.desk.ExportLetters(t.Context(), b.admin, "job", service.LetterFilter{}, func() io.Writer { return &exported }))
	lines := strings.Split(strings.TrimSuffix(exported.String(), "\n"), "\n")
	for _, line := range lines {
		var doc bson.D
		if err := bson.UnmarshalExtJSON([]byte(line), true, &doc); err != nil || len(line) < 700_000 {
			t.Errorf("a line of %d bytes: %v", len(line), err)
		}
	}
	if len(lines) != 3 {
		t.Errorf("%d lines", len(lines))
	}
	retry := func(id string, want service.LettersRetried) {
		t.Helper()
		got, err := b.desk.RetryLetters(t.Context(), b.admin, "job", id)
		if b.ok(err); *got != want {
			t.Errorf("%+v, want %+v", *got, want)
		}
	}
	retry("", service.LettersRetried{Tried: 3, Open: 3, Done: true})
	_, err = target.DeleteMany(t.Context(), bson.D{{Key: "k", Value: bson.D{{Key: "$lt", Value: 2}}}})
	b.ok(err)
	retry(open[0].ID, service.LettersRetried{Tried: 1, Written: 1, Done: true})
	if n := len(ask("open")); n != 2 {
		t.Errorf("%d letters are open after one was tried", n)
	}
	if _, err := b.desk.RetryLetters(t.Context(), b.admin, "job", open[0].ID); code(err) != operate.Conflict {
		t.Errorf("a settled letter: %v", err)
	}
	retry("", service.LettersRetried{Tried: 2, Written: 1, Open: 1, Done: true})
	_, err = b.desk.Pause(t.Context(), b.admin, "job")
	b.ok(err)
	b.until("job", "the pause", func(j *service.Job) bool { return j.State() == service.Paused })
	if _, err := b.desk.RetryLetters(t.Context(), b.admin, "job", ""); code(err) != operate.Conflict ||
		!strings.Contains(err.Error(), "paused") {
		t.Errorf("of a paused job: %v", err)
	}
	_, err = b.desk.Resume(t.Context(), b.admin, "job")
	b.ok(err)
	_, err = b.desk.Finalize(t.Context(), b.admin, "job", true)
	b.ok(err)
	b.until("job", "its end", func(j *service.Job) bool { return j.State() == service.Finished && j.Lease == nil })
	retry("", service.LettersRetried{Tried: 1, Open: 1, Done: true})
	_, err = target.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "theirs2"}})
	b.ok(err)
	retry("", service.LettersRetried{Tried: 1, Written: 1, Done: true})
	b.same("letters")
}
