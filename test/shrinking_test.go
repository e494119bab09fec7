package test

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// A difference planted among the steps of a history, which only two of them
// together make, is found, and little more than these two is left.
func TestHistoriesShrink(t *testing.T) {
	lab.Nightly(t)
	h := generate(7)
	// what is planted stays, under its name
	h.Free, h.Job.Exclude, h.Job.Rename, h.Job.Filter, h.Job.Fields, h.Job.SoftDelete, h.Job.History = false, nil, nil,
		nil, nil, nil, nil
	// a short one
	h.Steps = slices.DeleteFunc(h.Steps, func(s history.Step) bool {
		return s.Collection() != "plain" && s.Collection() != "hot" || s.Part != before && len(s.String())%9 > 0 ||
			len(s.String())%3 > 0
	})
	plant := func(part int, do history.Action, cmd bson.D) {
		i, _ := slices.BinarySearchFunc(h.Steps, part+1, func(s history.Step, part int) int { return s.Part - part })
		h.Steps = slices.Insert(h.Steps, i, history.Step{Part: part, Do: do, Cmd: kit.Raw(cmd)})
	}
	filter := d("_id", "guilty")
	plant(before, history.Run, d("insert", "plain", "documents", a(d("_id", "innocent"), append(filter, d("a", 1)...))))
	plant(following, history.Target, d("update", "plain", "updates", a(d("q", filter, "u", d("$set", d("else", 1))))))
	err := newPlayer(t, "planted", waitLimit).play(h)
	if wayOf(err) != "differs" || !strings.Contains(err.Error(), "guilty") {
		t.Fatalf("what was planted was not found: %v", err)
	}
	t.Setenv("MILLRACE_TEST_SHRINK", "5m")
	small, tried := shrink(t, "planted", h, err)
	t.Logf("%d steps of %d are left after %d tries: %v", len(small.Steps), len(h.Steps), tried, small.Steps)
	if len(small.Steps) > 4 {
		t.Errorf("%d steps of %d are left", len(small.Steps), len(h.Steps))
	}
	for _, part := range []string{"insert", "update"} {
		if !slices.ContainsFunc(small.Steps, func(s history.Step) bool {
			return strings.Contains(s.String(), `{"`+part) && strings.Contains(s.String(), "guilty")
		}) {
			t.Errorf("the guilty %s is not left: %v", part, small.Steps)
		}
	}
	if err := newPlayer(t, "planted", waitLimit).play(small); wayOf(err) != "differs" {
		t.Errorf("what is left does not fail: %v", err)
	}
}
