package main

import (
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// structured is a job in the midst of a structure.
func structured() job.Status {
	return job.Status{Job: "orders", Phase: job.PhaseIndexing, StartedAt: now(), Structure: &progress.Structure{
		Collections: 3, CollectionsTotal: 3, Views: 1, ViewsTotal: 1, Indexes: 2, IndexesTotal: 6, Sharded: 1,
		List: []progress.Made{{Source: "shop.orders", Target: "shop.orders", Type: schema.TypeCollection, Indexes: 2,
			Made: true}}}}
}

func TestStructureIsShown(t *testing.T) {
	got := view(structured(), now(), 100, 24)
	want :=
		"  made      ████████████░░░░░░░░  60%  3 collections  1 views  2 of 6 " +
			"indexes"
	if !slices.Contains(got, want) {
		t.Errorf("no %q in\n%s", want, strings.Join(got, "\n"))
	}
	text := textOf("status", structured()) + textOf("summary", summary{Status: structured()})
	for _, want := range []string{"│ indexes built       │ 2 of 6", "│ collections sharded │ 1",
		"ended in phase indexing"} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	for _, none := range []string{"documents", "changes", "durable", "behind", "oplog"} {
		if strings.Contains(text+strings.Join(got, "\n"), none) {
			t.Errorf("%q in\n%s", none, text)
		}
	}
}

// The program makes a structure on real servers, says what it made, and says once more
// that it has. A standalone source has no oplog, and needs none.
func TestStructureOnRealServers(t *testing.T) {
	target := lab.ForTest(t, lab.Options{}).URI()
	for name, topology := range map[string]string{"set": "rs:1", "alone": "standalone"} {
		t.Run(name, func(t *testing.T) {
			p := newProgram(t, lab.ForTest(t, lab.Options{Topology: topology}).URI(), target)
			structureOf(t, p, name)
		})
	}
}

func structureOf(t *testing.T, p *program, db string) {
	source := kit.Client(t, p.source)
	insert(t, source, db, 0, 10)
	for _, cmd := range []bson.D{
		{{Key: "createIndexes", Value: "orders"}, {Key: "indexes", Value: bson.A{
			bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"},
				{Key: "expireAfterSeconds", Value: 3600}}}}},
		{{Key: "create", Value: "v"}, {Key: "viewOn", Value: "orders"}},
	} {
		if err := source.Database(db).RunCommand(t.Context(), cmd).Err(); err != nil {
			t.Fatal(err)
		}
	}
	sync := func(args ...string) []string {
		return append([]string{"sync", "--mode=structure", "--job=" + db, "--include=" + db + ".*", "--output=json"}, args...)
	}
	if code, out, stderr := p.run(sync("--until=never")...); code != cli.ExitUsage ||
		!strings.Contains(stderr, "leave it out") {
		t.Errorf("until never: %d\n%s%s", code, out, stderr)
	}
	for _, again := range []bool{false, true} {
		code, out, stderr := p.run(sync("--verify")...)
		var sum summary
		if err := json.Unmarshal([]byte(out), &sum); err != nil || code != cli.ExitOK || !sum.Finalized ||
			sum.Already != again || sum.Verify == nil || !sum.Verify.StructureOnly {
			t.Fatalf("again %v: %d %v\n%s%s", again, code, err, out, stderr)
		}
		if s := sum.Status.Structure; !again && (s == nil || s.Collections != 1 || s.Views != 1 || s.Indexes != 1 ||
			len(s.List) != 2 || !s.List[0].Done || !s.List[1].Done) {
			t.Errorf("made: %+v", s)
		}
	}
	if n, err := kit.Client(t, p.target).Database(db).Collection("orders").
		CountDocuments(t.Context(), bson.D{}); err != nil || n != 0 {
		t.Errorf("%d documents: %v", n, err)
	}
	if code, out, stderr := p.run("sync", "--mode=full", "--job="+db, "--include="+db+".*"); code != cli.ExitUsage ||
		!strings.Contains(stderr, "started with --mode structure") {
		t.Errorf("another mode: %d\n%s%s", code, out, stderr)
	}
	verify := []string{"verify", "--structure", "--include=" + db + ".*"}
	if code, out, stderr := p.run(verify...); code != cli.ExitOK || !strings.Contains(out, "no documents") {
		t.Errorf("verify: %d\n%s%s", code, out, stderr)
	}
	if err := kit.Client(t, p.target).Database(db).Collection("v").Drop(t.Context()); err != nil {
		t.Fatal(err)
	}
	verify = append(verify, "--recheck-for=1s") // by default what differs has to stay so for 10 s
	if code, out, stderr := p.run(verify...); code != cli.ExitFailure || !strings.Contains(out, db+".v: view") {
		t.Errorf("verify without the view: %d\n%s%s", code, out, stderr)
	}
}
