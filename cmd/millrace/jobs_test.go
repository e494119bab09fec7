package main

import (
	"encoding/json"
	"errors"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// jobsBench is a job with a conflict, and the commands that look at it.
type jobsBench struct {
	*program

	src, dst *driver.Collection
}

// expect runs a command and wants its exit code, and texts in what it prints.
func (b *jobsBench) expect(code int, line string, texts ...string) string {
	b.t.Helper()
	got, out, stderr := b.run(strings.Fields(line)...)
	if got != code {
		b.t.Errorf("%s: exit code %d, want %d\n%s%s", line, got, code, out, stderr)
	}
	for _, w := range texts {
		if !strings.Contains(out+stderr, w) {
			b.t.Errorf("%s: no %q in\n%s%s", line, w, out, stderr)
		}
	}
	return out
}

func (b *jobsBench) list() (list []jobInfo) {
	b.t.Helper()
	if err := json.Unmarshal([]byte(b.expect(cli.ExitOK, "jobs list --output json")), &list); err != nil {
		b.t.Fatal(err)
	}
	return list
}

// letter is the id of the one open letter.
func (b *jobsBench) letter() string {
	b.t.Helper()
	var l deadletter.Summary
	if err := json.Unmarshal([]byte(b.expect(cli.ExitOK,
		"deadletters list --job orders --ns shop --state open --output json")), &l); err != nil || l.ID == "" {
		b.t.Fatalf("%+v, %v", l, err)
	}
	return l.ID
}

func (b *jobsBench) must(_ any, err error) {
	b.t.Helper()
	if err != nil {
		b.t.Fatal(err)
	}
}

func (b *jobsBench) has(id any) bool {
	b.t.Helper()
	n, err := b.dst.CountDocuments(b.t.Context(), bson.D{{Key: "_id", Value: id}})
	b.must(nil, err)
	return n == 1
}

// TestJobsWithoutAProcess: what the target knows of a job, while it runs, after it
// was killed, and when it is finalized.
func TestJobsWithoutAProcess(t *testing.T) {
	p := newProgram(t, lab.ForTest(t, lab.Options{}).URI(), lab.ForTest(t, lab.Options{}).URI())
	b := &jobsBench{p, kit.Client(t, p.source).Database("shop").Collection("orders"),
		kit.Client(t, p.target).Database("shop").Collection("orders")}
	unique := driver.IndexModel{Keys: bson.D{{Key: "n", Value: 1}}, Options: options.Index().SetUnique(true)}
	for _, coll := range []*driver.Collection{b.src, b.dst} {
		b.must(coll.Indexes().CreateOne(t.Context(), unique))
	}
	b.must(b.src.InsertMany(t.Context(),
		[]any{bson.D{{Key: "_id", Value: 1}, {Key: "n", Value: 1}}, bson.D{{Key: "_id", Value: 2}, {Key: "n", Value: 2}}}))
	b.expect(cli.ExitOK, "jobs list", "has no jobs")
	b.expect(cli.ExitUsage, "jobs show --job orders", "has no job orders")
	b.expect(cli.ExitUsage, "jobs drop --job orders --yes", "has no job orders")

	const flags = "sync --job orders --include shop.* --on-existing merge --on-conflict skip --until "
	sync, _, errs := p.command(strings.Fields(flags + "never")...)
	b.must(nil, sync.Start())
	p.waitFor("following", errs, func(s job.Status) bool { return s.Phase == job.PhaseFollowing })
	theirs := bson.D{{Key: "_id", Value: "theirs"}, {Key: "n", Value: 10}}
	b.must(b.dst.InsertOne(t.Context(), theirs))
	b.must(b.src.InsertOne(t.Context(),
		bson.D{{Key: "_id", Value: 10}, {Key: "n", Value: 10}, {Key: "big", Value: int64(1) << 60}}))
	p.waitFor("open letter", errs, func(s job.Status) bool { return s.Conflicts.Open == 1 })

	b.expect(cli.ExitOK, "__complete jobs show --job o", "orders\tfollowing")
	b.expect(cli.ExitOK, "__complete status --job o", "orders\thttp://127.0.0.1:")
	if list := b.list(); len(list) != 1 || list[0].State != state.Running || list[0].Phase != state.PhaseFollowing ||
		list[0].Letters.Open != 1 ||
		list[0].Owner == nil || list[0].Owner.PID != sync.Process.Pid || list[0].Applied == "" || list[0].Resume != "" {
		t.Errorf("running: %+v", list)
	}
	b.expect(cli.ExitOK, "jobs list", "orders", "running on", "following", "include shop.*")
	b.expect(cli.ExitUsage, "jobs drop --job orders --yes", "nothing was removed", "running on", "stop its process first")
	b.expect(cli.ExitUsage, strings.Replace(flags, "merge", "drop", 1)+"never --restart",
		"cannot restart job orders: ", "runs it")
	id := b.letter()
	b.expect(cli.ExitOK, "deadletters show "+id, "dup key", `"_id":10`, "on the target, with the key", `"theirs"`)
	b.expect(cli.ExitFailure, "deadletters retry", "1 dead letter tried, 0 settled, 1 open", "deadletters show")
	b.must(b.dst.DeleteOne(t.Context(), theirs))
	b.expect(cli.ExitOK, "deadletters retry", "1 dead letter tried, 1 settled, 0 open")
	if !b.has(10) {
		t.Error("the letter's document is not on the target")
	}

	running := b.expect(cli.ExitOK, "status --output json")
	// Killed with an open letter.
	b.must(b.dst.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "again"}, {Key: "n", Value: 11}}))
	b.must(b.src.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 11}, {Key: "n", Value: 11}}))
	p.waitFor("open letter", errs, func(s job.Status) bool { return s.Conflicts.Open == 1 })
	b.must(nil, sync.Process.Kill())
	_ = sync.Wait()
	list := b.list()
	if len(list) != 1 || list[0].State != state.Stopped ||
		!strings.Contains(list[0].Resume, "millrace sync --job orders --source mongodb://127.0.0.1:") ||
		!strings.HasSuffix(list[0].Resume, "--include 'shop.*' --on-conflict skip") || list[0].Error != "" {
		t.Errorf("killed: %+v", list)
	}
	b.expect(cli.ExitFailure, "status", "is dead", "job orders is stopped at", "resumes by: millrace sync --job orders")
	b.sameForm(running,
		b.expect(cli.ExitFailure, "status --job orders --output json", `"state": "stopped"`, `"resume": "millrace sync`))
	b.expect(cli.ExitUsage, "deadletters retry", "tries its open dead letters itself", "start it: millrace sync")
	for _, command := range []string{"pause", "resume", "finalize", "throttle --max-rate-docs 1"} {
		b.expect(cli.ExitUsage, command, "job orders: no process runs it", "start it: millrace sync")
	}
	p.env = append(p.env, "MILLRACE_TARGET=")
	b.expect(cli.ExitFailure, "status", "job orders does not run: its process", "has died",
		"status --job orders --target mongodb://")
	p.env = append(p.env, "MILLRACE_TARGET="+p.target)
	b.stopped(strings.Replace(flags, "skip", "stop", 1) + "never")

	code, out, stderr := p.run(strings.Fields(flags + "caught-up")...)
	if code != cli.ExitOK || !strings.Contains(stderr, "the target lacks documents of the finalized job") {
		t.Fatalf("finalizing: %d\n%s%s", code, out, stderr)
	}
	if list := b.list(); len(list) != 1 || list[0].State != state.Finalized || list[0].Letters.Open != 1 ||
		list[0].Letters.Settled != 1 {
		t.Errorf("finalized: %+v", list)
	}
	b.expect(cli.ExitOK, "status", "finalized", "orders", "target position")
	b.expect(cli.ExitOK, "status --output json", `"state": "finished"`, `"targetPosition": "17`, `"finalizedAt": "20`)
	b.expect(cli.ExitOK, "finalize --target "+p.target, "orders: already finalized at 20", "reverse --job orders",
		"1 not on the target, 1 settled; see millrace deadletters list --job orders")
	b.expect(cli.ExitUsage, "pause", "cannot pause job orders: it was finalized at 20")
	b.expect(cli.ExitOK, "jobs show --output json", `"targetPosition": "17`)
	b.expect(cli.ExitOK, "jobs show", "slices copied", "1 of 1", "1 not on the target, 1 settled")
	b.finalized()
}

// stopped has a conflict end a run, whose reason the target then tells, and removes the conflict.
func (b *jobsBench) stopped(run string) {
	t := b.t
	t.Helper()
	sync, _, errs := b.command(strings.Fields(run)...)
	b.must(nil, sync.Start())
	b.waitFor("following again", errs, func(s job.Status) bool { return s.Phase == job.PhaseFollowing })
	b.must(b.dst.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "third"}, {Key: "n", Value: 12}}))
	b.must(b.src.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 12}, {Key: "n", Value: 12}}))
	if err := sync.Wait(); err == nil {
		t.Error("a conflict has not stopped the run")
	}
	b.expect(cli.ExitFailure, "status", "stopped, last sign", "job orders is stopped at", ": insert in shop.orders, _id {",
		"--on-conflict skip or overwrite; resumes by: millrace sync")
	b.expect(cli.ExitFailure, "status --output json", `"error": "insert in shop.orders, _id {`)
	b.must(b.dst.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "third"}}))
	b.must(b.src.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 12}}))
}

// sameForm fails unless two statuses have the same fields, but for what is stored and why it
// failed.
func (b *jobsBench) sameForm(texts ...string) {
	b.t.Helper()
	var fields [2][]string
	for i, text := range texts {
		var st struct {
			jobStatus
			Error string
		}
		var all map[string]any
		if err := errors.Join(json.Unmarshal([]byte(text), &st), json.Unmarshal([]byte(text), &all)); err != nil ||
			st.Name != "orders" ||
			st.Phase != job.PhaseFollowing || st.Report.Status.Follow.Applied == "" || (st.Stored != nil) != (i == 1) {
			b.t.Errorf("%v: %s", err, text)
		}
		delete(all, "stored")
		fields[i] = slices.Sorted(maps.Keys(all))
	}
	if !slices.Equal(fields[0], fields[1]) {
		b.t.Errorf("%v, and where none runs %v", fields[0], fields[1])
	}
}

// finalized tries letters of a job that no process runs again, keeps them, and
// drops the job.
func (b *jobsBench) finalized() {
	t := b.t
	b.expect(cli.ExitFailure, "deadletters retry", "1 dead letter tried, 0 settled, 1 open",
		"shop.orders, _id {", "dup key")
	// An application has written a document with the _id since: it stays.
	b.must(b.dst.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: "again"}}))
	b.must(b.dst.InsertOne(t.Context(), bson.D{{Key: "_id", Value: 11}, {Key: "n", Value: 99}}))
	b.expect(cli.ExitFailure, "deadletters retry", "another document with this _id")
	if n, err := b.dst.CountDocuments(t.Context(), bson.D{{Key: "_id", Value: 11}, {Key: "n", Value: 99}}); n != 1 ||
		err != nil {
		t.Errorf("an application's document was replaced: %d, %v", n, err)
	}
	b.must(b.dst.DeleteOne(t.Context(), bson.D{{Key: "_id", Value: 11}}))

	file := filepath.Join(t.TempDir(), "letters.jsonl")
	b.expect(cli.ExitOK, "deadletters export --file "+file, "2 dead letters in")
	if info, err := os.Stat(file); err != nil || info.Mode() != fs.FileMode(0o600) {
		t.Errorf("%v, %v", info, err)
	}
	if raw := read(t, file); strings.Count(raw, "\n") != 2 ||
		!strings.Contains(raw, `"big":{"$numberLong":"1152921504606846976"}`) || !strings.Contains(raw, `"state":"settled"`) {
		t.Errorf("exported: %s", raw)
	}
	if out := b.expect(cli.ExitOK, "deadletters export --state open"); strings.Count(out, "\n") != 1 ||
		strings.Contains(out, "settled") {
		t.Errorf("exported: %s", out)
	}
	b.expect(cli.ExitOK, "deadletters retry", "1 dead letter tried, 1 settled, 0 open")
	if !b.has(11) {
		t.Error("the letter's document is not on the target")
	}
	b.expect(cli.ExitOK, "deadletters retry", "0 dead letters tried")

	b.expect(cli.ExitUsage, "jobs drop --job orders", "would be removed", "nothing was removed", "--yes")
	b.expect(cli.ExitUsage, "jobs drop --yes", "job")
	if list := b.list(); len(list) != 1 {
		t.Errorf("removed without --yes: %+v", list)
	}
	b.expect(cli.ExitOK, "jobs drop --job orders --yes", "removed", "replicated data")
	if list := b.list(); len(list) != 0 {
		t.Errorf("after drop: %+v", list)
	}
	left := kit.Client(t, b.target).Database("millrace")
	for _, coll := range []string{"jobs", "collections", "slices", "skipped", "held", "deadletters", "deadletters.parts"} {
		if n, err := left.Collection(coll).CountDocuments(t.Context(), bson.D{}); n != 0 || err != nil {
			t.Errorf("left in %s: %d, %v", coll, n, err)
		}
	}
	if n, err := b.dst.CountDocuments(t.Context(), bson.D{}); n != 4 || err != nil {
		t.Errorf("%d documents of the user, %v", n, err)
	}
}

// TestResumeCommand: the command line brings back the rules, however they are named.
func TestResumeCommand(t *testing.T) {
	for rules, want := range map[string]string{
		"everything": "--target t",
		"include shop.*; exclude shop.x; rename shop=it's": `--include 'shop.*' --exclude shop.x --rename 'shop=it'\''s'`,
		`include a\;b.*`:   `--include 'a\;b.*'`,
		`include shop.a,b`: `--include '"shop.a,b"'`,
		"include a; b":     "with the rules include a; b",
	} {
		got := resumeLine(&state.Job{ID: "j", Source: "s", Target: "t", Mode: state.ModeAll, Rules: rules})
		if !strings.HasPrefix(got, "millrace sync --job j --source s --target t") || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %s", rules, got)
		}
	}
	all, err := transform.New(transform.Config{Include: []string{"shop.*"}, Filter: []string{`shop.a={"x": 1}`},
		Skip: []string{"shop.*=delete,drop"}, Fields: []string{`shop.a={"drop": ["y"]}`},
		SoftDelete: []string{"b.*=gone"}})
	if err != nil {
		t.Fatal(err)
	}
	got := resumeLine(&state.Job{ID: "j", Source: "s", Target: "t", Mode: state.ModeAll, Rules: all.String()})
	for _, want := range []string{"--filter 'shop.a={", "--skip 'shop.*=", "--fields 'shop.a={",
		"--soft-delete 'b.*=gone"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s is missing: a job goes on with its rules alone: %s", want, got)
		}
	}
	if got := resumeLine(&state.Job{Mode: state.ModeIncremental, Rules: "everything"}); !strings.Contains(got,
		"--start-at checkpoint") {
		t.Error(got)
	}
	got = resumeLine(&state.Job{ID: "j", Source: "s", Target: "t", Mode: state.ModeIncremental, Rules: "everything",
		Settings: []string{"--target", "t/?replicaSet=x", "--copy", "files"}})
	if got != "millrace sync --job j --source s --target 't/?replicaSet=x' --copy files" {
		t.Error(got)
	}
}

// TestUnreadableJob: a document that is no job's hides no other job.
func TestUnreadableJob(t *testing.T) {
	uri := lab.ForTest(t, lab.Options{}).URI()
	b := &jobsBench{program: newProgram(t, uri, uri)}
	jobs := kit.Client(t, uri).Database("millrace").Collection("jobs")
	b.must(jobs.InsertOne(t.Context(), bson.D{{Key: "_id", Value: "broken"}, {Key: "phase", Value: 5}}))
	b.expect(cli.ExitFailure, "jobs show", "read job broken")
	b.must(jobs.InsertOne(t.Context(), state.Job{ID: "orders", Phase: state.PhaseFollowing, Rules: "include shop.*"}))
	b.expect(cli.ExitFailure, "jobs list", "orders", "following", "broken", "unreadable", "millrace: read job broken: ")
	b.expect(cli.ExitFailure, "jobs list --output json", `"error": "read job broken: `, `"job": "orders"`,
		`"state": "unreadable"`)
	b.expect(cli.ExitOK, "jobs show --job orders", "following", "resumes by")
	b.expect(cli.ExitUsage, "jobs show", "several jobs: broken, orders")
	b.expect(cli.ExitOK, "__complete jobs show --job o", "orders\tfollowing")
	for _, command := range []string{"jobs show", "jobs drop", "deadletters retry"} {
		b.expect(cli.ExitFailure, command+" --job broken", "read job broken")
	}
}
