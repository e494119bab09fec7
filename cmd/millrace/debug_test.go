package main

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

// looks runs the debug commands after a job of source and target.
func looks(t *testing.T, p *program) {
	source := kit.Client(t, p.source)
	last := lastPosition(t, p.source)
	s, err := source.StartSession()
	if err != nil {
		t.Fatal(err)
	}
	defer s.EndSession(t.Context())
	db := source.Database("shop")
	if err := db.CreateCollection(t.Context(), "late"); err != nil {
		t.Fatal(err)
	}
	if _, err := s.WithTransaction(t.Context(), func(ctx context.Context) (any, error) {
		if _, err := db.Collection("late").
			InsertOne(ctx, bson.D{{Key: "_id", Value: "in a transaction"}, {Key: "secret", Value: 42}}); err != nil {
			return nil, err
		}
		return db.Collection("orders").DeleteOne(ctx, bson.D{{Key: "_id", Value: 1}})
	}); err != nil {
		t.Fatal(err)
	}
	if _, err := db.Collection("orders").UpdateOne(t.Context(), bson.D{{Key: "_id", Value: 2}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "secret", Value: 43}}}}); err != nil {
		t.Fatal(err)
	}
	run := func(args ...string) string {
		t.Helper()
		code, out, stderr := p.run(append([]string{"debug"}, args...)...)
		if code != cli.ExitOK {
			t.Fatalf("%v: %d\n%s%s", args, code, out, stderr)
		}
		return out
	}
	lines := func(out string) []string { return strings.Split(strings.TrimSpace(out), "\n") }

	got := lines(run("oplog", "--from", last.String(), "--include=shop", "--rename=shop=store"))
	want := []string{"", "schema create shop.late",
		`insert shop.late as store.late {"_id":"in a transaction"} transaction `,
		`delete shop.orders as store.orders {"_id":1} transaction `, `update shop.orders as store.orders {"_id":2}`}
	if got = got[len(got)-4:]; len(got) == 4 {
		for i, line := range got {
			if !strings.Contains(line, want[i+1]) || strings.Contains(line, "secret") {
				t.Errorf("line %d: %s\nwant %s", i, line, want[i+1])
			}
		}
	}
	got = lines(run("oplog", "--from", last.String(), "--include=shop", "--exclude=shop.late", "--values",
		"--output=json"))
	var ev struct {
		Position, Kind, NS, Target string
		ID                         int `json:"_id"`
		Value                      map[string]any
	}
	if err := json.Unmarshal([]byte(got[len(got)-1]), &ev); err != nil || ev.Kind != "update" || ev.NS != "shop.orders" ||
		ev.Target != ev.NS || ev.ID != 2 || len(ev.Value) == 0 {
		t.Errorf("%+v, %v of %s", ev, err, got[len(got)-1])
	}
	// The event at the very position is shown, and no more than asked for.
	if got := lines(run("oplog", "--from", ev.Position, "--limit=1", "--include=shop")); len(got) != 1 ||
		!strings.HasPrefix(got[0], ev.Position+" update") {
		t.Errorf("one event from %s: %q", ev.Position, got)
	}
	if got := lines(run("oplog", "--limit=3")); len(got) != 3 {
		t.Errorf("three events from the beginning: %q", got)
	}

	if code, _, stderr := p.run("debug", "slices"); code != cli.ExitUsage || !strings.Contains(stderr, "several jobs") {
		t.Errorf("which job: %d, %s", code, stderr)
	}
	var known struct {
		ID string `bson:"_id"`
	}
	jobs := kit.Client(t, p.target).Database("millrace").Collection("jobs")
	if err := jobs.FindOne(t.Context(), bson.D{{Key: "rules", Value: bson.D{{Key: "$regex", Value: "shop"}}}}).
		Decode(&known); err != nil {
		t.Fatal(err)
	}
	out := run("slices", "--job", known.ID)
	if !strings.Contains(out, "store.orders") || !strings.Contains(out, "done") {
		t.Errorf("slices:\n%s", out)
	}
	for _, wrong := range [][]string{{"oplog", "--from=then"}, {"oplog", "--include=.x"}, {"slices", "--output=xml"}} {
		if code, _, stderr := p.run(append([]string{"debug"}, wrong...)...); code != cli.ExitUsage || stderr == "" {
			t.Errorf("%v: %d, %s", wrong, code, stderr)
		}
	}
	code, out, stderr := p.run("jobs", "show", "--job", known.ID)
	for _, want := range []string{"finalized", "include shop.*; rename shop=store", "applied", "high-water mark"} {
		if code != cli.ExitOK || !strings.Contains(out, want) {
			t.Errorf("job: no %q in\n%s%s", want, out, stderr)
		}
	}
}

func lastPosition(t *testing.T, uri string) mongo.OpTime {
	t.Helper()
	c, err := mongo.Connect(t.Context(), uri, mongo.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at, err := c.Committed(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return at
}
