package main

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestLeftOut: what no job can copy is reported in the plan, at the end of the job and by a
// comparison, and is no difference.
func TestLeftOut(t *testing.T) {
	t.Parallel()
	source, target := lab.ForTest(t, lab.Options{Topology: "rs:2"}), lab.ForTest(t, lab.Options{Topology: "rs:2"})
	c := kit.Client(t, source.URI())
	insert(t, c, "left", 0, 10)
	insert(t, c, "millrace", 0, 10) // of a user
	if err := c.Database("left").CreateCollection(t.Context(), "system.users"); err != nil {
		t.Fatal(err)
	}
	p := newProgram(t, source.URI(), target.URI())
	users, own := "left.system.users: names that begin with system.", "millrace.orders: the database millrace is that of"
	reports := func(where, text, before string) {
		t.Helper()
		for _, what := range []string{users, own} {
			if !strings.Contains(text, before+what) {
				t.Errorf("%s lacks %q:\n%s", where, before+what, text)
			}
		}
	}
	code, out, stderr := p.run("sync", "--dry-run", "--output=json")
	if code != cli.ExitOK {
		t.Errorf("%d\n%s", code, stderr)
	}
	reports("the plan", out, "")
	if code, out, stderr = p.run("sync", "--until=caught-up", "--verify"); code != cli.ExitOK {
		t.Errorf("%d\n%s", code, stderr)
	}
	reports("the precheck", stderr, "")
	reports("the summary", out, "left out: ")
	reports("the comparison", out, "note: left out: ")
	// Of the state that the job has kept there nothing is reported.
	code, out, stderr = newProgram(t, target.URI(), source.URI()).
		run("sync", "--dry-run", "--output=json", "--on-existing=merge")
	if code != cli.ExitOK || strings.Contains(out, "leftOut") {
		t.Errorf("%d\n%s%s", code, out, stderr)
	}
}
