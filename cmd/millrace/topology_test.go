package main

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/topology"
	"github.com/millrace/millrace/workshop/lab"
)

// The commands of topology on a real set, as an operator uses them.
func TestTopology(t *testing.T) {
	c := lab.ForTest(t, lab.Options{Topology: "rs:3", CacheGB: 0.25})
	p := newProgram(t, "", "")
	p.env = append(p.env, "MILLRACE_URI="+c.URI())
	expect := func(want int, args ...string) (stdout, stderr string) {
		t.Helper()
		code, stdout, stderr := p.run(append([]string{"topology"}, args...)...)
		if code != want {
			t.Fatalf("topology %v: exit code %d\n%s%s", args, code, stdout, stderr)
		}
		return stdout, stderr
	}
	must := func(args ...string) (stdout, stderr string) { t.Helper(); return expect(cli.ExitOK, args...) }
	without := func(args ...string) (stdout string) { // --yes
		t.Helper()
		stdout, stderr := expect(cli.ExitUsage, args...)
		if !strings.Contains(stderr, "nothing was changed") || !strings.Contains(stderr, "hint: add --yes") {
			t.Errorf("%v: %s", args, stderr)
		}
		return stdout
	}
	show := func() (set topology.Set) {
		t.Helper()
		out, _ := must("show", "--output=json")
		if err := json.Unmarshal([]byte(out), &set); err != nil || len(set.Members) != 3 || set.Primary() == nil {
			t.Fatalf("%v\n%s", err, out)
		}
		return set
	}
	// A new set's members look for their sources for a while.
	for deadline := time.Now().Add(time.Minute); ; {
		if set := show(); len(set.Tree()) == 2 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the members find no sources")
		}
	}
	if out, _ := must("show"); !strings.Contains(out, "primary") || !strings.Contains(out, "─ "+c.Members()[1].Host()) {
		t.Errorf("show says\n%s", out)
	}
	out, _ := must("advise", "--output=json")
	var advice []topology.Advice
	if err := json.Unmarshal([]byte(out), &advice); err != nil || len(advice) != 2 || advice[0].Members != 3 ||
		len(advice[1].Outcomes) != 3 {
		t.Fatalf("%v\n%s", err, out)
	}
	before := show()
	// The set found a tree by itself: plan another.
	other := []string{"--policy=fan-out", "--fan-out=1"}
	if chained(&before) {
		other = []string{"--policy=latency"}
	}
	if out := without(append([]string{"apply"}, other...)...); !strings.Contains(out, "planned") {
		t.Errorf("without --yes it says\n%s", out)
	}
	out, _ = must(append([]string{"plan", "--output=json"}, other...)...)
	var plan topology.Plan
	if err := json.Unmarshal([]byte(out), &plan); err != nil || len(plan.Seats) != 2 {
		t.Fatalf("%v\n%s", err, out)
	}
	must(append([]string{"apply", "--yes"}, other...)...)
	set := show()
	for _, s := range plan.Seats {
		if src := set.Member(s.Host).Source; src != s.Source {
			t.Errorf("%s is under %s, planned under %s", s.Host, src, s.Source)
		}
	}
	if out := without("release"); !strings.Contains(out, "was under") {
		t.Errorf("release would\n%s", out)
	}
	must("release", "--yes")
	if _, errs := must("release", "--yes"); !strings.Contains(errs, "nothing to release") {
		t.Error(errs)
	}
	now := show()
	for _, m := range before.Members {
		if m.Source != "" && now.Member(m.Host).Source != m.Source {
			t.Errorf("%s is under %s, was under %s", m.Host, now.Member(m.Host).Source, m.Source)
		}
	}
	without("chaining", "off")
	must("chaining", "off", "--yes")
	if show().Chaining {
		t.Error("chaining is still on")
	}
	if _, errs := must("chaining", "off", "--yes"); !strings.Contains(errs, "already") {
		t.Error(errs)
	}
}

// chained reports whether a member is under another than the primary.
func chained(set *topology.Set) bool {
	for _, source := range set.Tree() {
		if source != set.Primary().Host {
			return true
		}
	}
	return false
}

// What needs no server, and what is refused.
func TestTopologyUsage(t *testing.T) {
	p := newProgram(t, "", "")
	for _, c := range []struct {
		code int
		args string
		says string
	}{
		{cli.ExitOK, "what-if --members 50 --zones 3", "balanced"},
		{cli.ExitOK, "what-if --published", "14785"},
		{cli.ExitOK, "what-if --members 7 --output json", "prediction"},
		{cli.ExitOK, "advise --members 7 --write-concern majority", "weigh throughput (off) against"},
		{cli.ExitOK, "advise --members 9 --zones 3 --spread-voters --output json", "published"},
		{cli.ExitUsage, "what-if --members 51", "51 members"},
		{cli.ExitUsage, "advise --members 51", "51 members"},
		{cli.ExitUsage, "advise --members 7 --write-concern 2", "concern"},
		{cli.ExitUsage, "advise --members 7 --uri mongodb://a", "members"},
		{cli.ExitUsage, "advise --zones 2 --uri mongodb://a", "--members"},
		{cli.ExitUsage, "advise", "MILLRACE_URI"},
		{cli.ExitUsage, "what-if --cores 0", "--cores"},
		{cli.ExitUsage, "show", "MILLRACE_URI"},
		{cli.ExitUsage, "show --uri nonsense", "mongodb://"},
		{cli.ExitUsage, "show --uri mongodb://a --output png", "png"},
		{cli.ExitUsage, "show --uri mongodb://a --interval 1ms", "interval"},
		{cli.ExitUsage, "chaining maybe --uri mongodb://a", "maybe"},
		{cli.ExitUsage, "hold --uri mongodb://a --log-level loud", "loud"},
		{cli.ExitFailure, "show --uri mongodb://u:hidden@127.0.0.1:1 --timeout 200ms", "127.0.0.1:1"},
	} {
		code, out, errs := p.run(append([]string{"topology"}, strings.Fields(c.args)...)...)
		if code != c.code || !strings.Contains(out+errs, c.says) || strings.Contains(out+errs, "hidden") {
			t.Errorf("topology %s: exit code %d\n%s%s", c.args, code, out, errs)
		}
	}
	p.env = append(p.env, "MILLRACE_URI=mongodb://a") // a flag wins over a variable that cannot go with it
	if code, out, errs := p.run("topology", "advise", "--members", "7"); code != cli.ExitOK {
		t.Errorf("with MILLRACE_URI: exit code %d\n%s%s", code, out, errs)
	}
}

// The table of the published cells in the documentation is what the program says.
func TestPublishedCellsInDocs(t *testing.T) {
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "internals", "topology.md"))
	if err != nil {
		t.Fatal(err)
	}
	change := func(v float64) string { return strings.ReplaceAll(fmt.Sprintf("%+.1f %%", 100*v), "-", "−") }
	for _, c := range topology.PublishedFit() {
		concern := "1"
		if c.Majority {
			concern = topology.Majority
		}
		line := fmt.Sprintf("| %d, %s, %s | %.0f | %.0f | %s | %s | %s | %s | %s | %s |", c.Members, concern,
			onOff(c.Chaining), c.OpsPerSecond, c.Model, change(c.Error), change(c.LeftOutError), percent(c.CPU),
			percent(c.ModelCPU), change(c.CPUError), change(c.LeftOutCPUError))
		if !strings.Contains(string(page), line) {
			t.Errorf("docs/internals/topology.md lacks\n%s", line)
		}
	}
}
