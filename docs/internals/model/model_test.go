package main

import (
	"strings"
	"testing"
)

func scenarioNamed(t *testing.T, name string) world {
	t.Helper()
	for _, sc := range scenarios() {
		if sc.name == name {
			return sc.world
		}
	}
	t.Fatalf("no scenario is called %q", name)
	return world{}
}

// small is a bound that is searched whole in a second or two.
func small(w world) world {
	w.runs = min(w.runs, 2)
	w.late = 1
	return w
}

// TestTodayIsWrong: a model that does not find what was proven on real servers
// would be no check of anything.
func TestTodayIsWrong(t *testing.T) {
	for _, c := range []struct {
		point, scenario, seek string
		late                  int
	}{
		{"1: a checkpoint that fails the term check is already written", "failover", "a document is missing", 0},
		{"4: --restart is not fenced", "restart", "a deleted document is there", 0},
		{"6: abandoned commands are not fenced", "late", "a deleted document is there", 1},
		{"7: a restart hides conflicts", "foreign", "this job cannot have written", 0},
		{"7: a restart hides conflicts, and after it was reported", "conflict", "a conflict is hidden", 0},
		{"12: finalize believes an isolated primary", "source", "newest majority write", 0},
		{"an update is judged on a primary of another term", "failover", "conflict that is none", 0},
		{"a restart takes a collection that somebody dropped for one that it has renamed", "rename", "a document is missing",
			0},
	} {
		t.Run(c.point, func(t *testing.T) {
			t.Parallel()
			w := scenarioNamed(t, c.scenario)
			w.rules, w.seek, w.late = today, c.seek, c.late
			f := search(&w, 4_000_000)
			if f.wrong == "" {
				t.Fatalf("nothing wrong in %d states", f.states)
			}
			t.Logf("%s, in %d steps:\n%s", f.wrong, len(f.trace), strings.Join(f.trace, "\n"))
		})
	}
}

// TestNewIsRight searches small worlds; `go run ./docs/internals/model` searches larger ones.
func TestNewIsRight(t *testing.T) {
	for _, sc := range scenarios() {
		t.Run(sc.name, func(t *testing.T) {
			t.Parallel()
			w := small(sc.world)
			if sc.large {
				t.Skip("large")
			}
			w.rules = allRules
			f := search(&w, 2_000_000)
			if f.wrong != "" {
				t.Fatalf("%s:\n%s", f.wrong, strings.Join(f.trace, "\n"))
			}
			if !f.whole || f.ends == 0 {
				t.Fatalf("searched %d states, in %d of them the job is finalized, whole: %v", f.states, f.ends, f.whole)
			}
		})
	}
}

// TestEachRuleIsNeeded: the new rules less one are wrong somewhere.
func TestEachRuleIsNeeded(t *testing.T) {
	at := map[rules]string{
		proveFirst: "schema", oneTerm: "failover", fenceEachAttempt: "conflict", fenceNeverReused: "restart",
		storeFenced: "late", lease: "restart", endRuns: "restart", allMembers: "failover-back", lookProof: "schema",
		boundWindow: "foreign", reachMajority: "schema", rememberSkips: "conflict", holdPosition: "conflict",
		noteRefusal: "foreign", refusalMajority: "foreign", proveRefusal: "refusal", noteIntent: "schema",
		intentMajority: "schema", noteBefore: "rename",
		changeMajority: "schema", linearizable: "source",
	}
	for i, n := range ruleNames() {
		rule := rules(1 << i)
		t.Run(n[0], func(t *testing.T) {
			t.Parallel()
			w := scenarioNamed(t, at[rule])
			w.rules = allRules &^ rule
			if rule == lookProof { // asked together, all members need no proof which is the primary
				w.rules &^= allMembers
			}
			if f := search(&w, 4_000_000); f.wrong == "" {
				t.Fatalf("nothing wrong in %d states", f.states)
			}
		})
	}
}
