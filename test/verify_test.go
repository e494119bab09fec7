package test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/test/testseed"
)

// verified is what is read of the JSON report of millrace verify.
type verified struct {
	Same        bool
	Count       int64
	Differences []struct{ NS, TargetNS, Kind, Detail string }
	Schema      []struct{ NS, What, Detail string }
}

// of lists what the report says of databases that a scenario owns.
func (v verified) of(c *trial) (lines []string) {
	for _, d := range v.Differences {
		if c.owns(d.NS) {
			lines = append(lines, fmt.Sprint(d.NS, " ", d.Kind, " ", d.Detail))
		}
	}
	for _, d := range v.Schema {
		if c.owns(d.NS) {
			lines = append(lines, fmt.Sprint(d.NS, " ", d.What, " ", d.Detail))
		}
	}
	return lines
}

// runVerify runs `millrace verify` and checks that its exit code fits the report.
func runVerify(t *testing.T, bin string, args ...string) verified {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), waitLimit)
	defer cancel()
	args = append([]string{"verify", "--source", shared.source.URI(), "--target", shared.target.URI(), "--output", "json"},
		args...)
	cmd := exec.CommandContext(ctx, bin, args...)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	var v verified
	if jsonErr := json.Unmarshal(out, &v); jsonErr != nil {
		t.Fatalf("millrace verify: %v, no report: %v\n%s", err, jsonErr, errs.String())
	}
	var exit *exec.ExitError
	if code := errors.As(err, &exit) && exit.ExitCode() == 1; code == v.Same || err != nil && !code {
		t.Errorf("same: %v, but the command ended with %v\n%s", v.Same, err, errs.String())
	}
	return v
}

// plantsOfVerify are the plants of the comparison and those that show only
// where documents are many, with a random number of other documents around them.
func plantsOfVerify(r *rand.Rand) []planted {
	all := plants()
	both := func(p planted, more func(*site)) planted {
		source, target := p.source, p.target
		p.source = func(s *site) { more(s); source(s) }
		p.target = func(s *site) { more(s); target(s) }
		return p
	}
	create := func(options ...any) func(*site) { return func(s *site) { s.create("c", options...) } }
	series := func(options ...any) func(*site) {
		return func(s *site) { s.run(append(d("create", "c"), d(options...)...)) }
	}
	all = append(all,
		planted{name: "type, the other way", source: create("viewOn", "x", "pipeline", a()), target: create(), want: "."},
		planted{name: "view and documents", source: func(s *site) { s.insert("c", d("_id", 1)) },
			target: create("viewOn", "x", "pipeline", a()), want: "."},
		planted{name: "series and collection", since: "5.0", source: series("timeseries", d("timeField", "t")),
			target: func(s *site) { s.insert("c", d("_id", 1)) }, want: "."},
		planted{name: "collection and series", since: "5.0", source: func(s *site) { s.insert("c", d("_id", 1)) },
			target: series("timeseries", d("timeField", "t")), want: "."},
		planted{name: "extra view", source: func(*site) {}, target: create("viewOn", "x", "pipeline", a()), want: "."},
		planted{name: "view's collation", source: create("viewOn", "x", "pipeline", a(), "collation", d("locale", "en")),
			target: create("viewOn", "x", "pipeline", a()), want: "."},
		planted{name: "validation action", source: create("validator", d("a", 1), "validationAction", "warn"),
			target: create("validator", d("a", 1)), want: "."},
		planted{name: "collation's strength", source: create("collation", d("locale", "en", "strength", 1)),
			target: create("collation", d("locale", "en", "strength", 2)), want: "."},
		planted{name: "index name", source: func(s *site) { s.index("c", d("a", 1), "name", "x") },
			target: func(s *site) { s.index("c", d("a", 1), "name", "y") }, want: "."},
		planted{name: "index sparse", source: func(s *site) { s.index("c", d("a", 1), "sparse", true) },
			target: func(s *site) { s.index("c", d("a", 1)) }, want: "."},
		planted{name: "wildcard projection",
			source: func(s *site) { s.index("c", d("$**", 1), "name", "w", "wildcardProjection", d("a", 1)) },
			target: func(s *site) { s.index("c", d("$**", 1), "name", "w", "wildcardProjection", d("b", 1)) }, want: "."},
	)
	for i, p := range all {
		if n := r.IntN(200); n > 0 {
			all[i] = both(p, func(s *site) { s.in("around").fill("d", n, func(i int) bson.D { return d("_id", i, "v", i) }) })
		}
	}
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all
}

// TestPlantedIsFound plants every sort of difference. The command finds all of them in one
// run, so does the comparison of these tests, and both invent none.
func TestPlantedIsFound(t *testing.T) {
	seed := testseed.Of(t)
	var cases []*trial
	var all []planted
	for i, p := range plantsOfVerify(rand.New(rand.NewPCG(seed, 1))) {
		if (scenario{since: p.since}).runs(wayCopy) {
			all = append(all, p)
			cases = append(cases, &trial{sc: scenario{name: p.name}, base: fmt.Sprintf("vp%d", i)})
		}
	}
	cleanUp(t, cases)
	defer cleanUp(t, cases)
	var g errgroup.Group
	g.SetLimit(8)
	for i, c := range cases {
		g.Go(func() error {
			return attempt(func() {
				all[i].source(c.site(t.Context(), shared.sourceDB))
				all[i].target(c.site(t.Context(), shared.targetDB))
			})
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
	compareFinds(t, all, cases)
	bin := BuildMillrace(t)
	for _, mode := range [][]string{{"--recheck-for", "0"}, {"--recheck-for", "1s"}} {
		v := runVerify(t, bin, append(mode, "--include", "vp*")...)
		for i, c := range cases {
			got := v.of(c)
			if (all[i].want == "") != (len(got) == 0) {
				t.Errorf("%v: planted %q (%s): the report says %q", mode, c.sc.name, c.base, got)
			}
			for _, line := range got {
				if strings.HasPrefix(line, c.base+"-around.") {
					t.Errorf("%v: invented: %s", mode, line)
				}
			}
		}
	}
}

// dropAll drops the databases of the cases on both sides.
func dropAll(ctx context.Context, cases []*trial) error {
	var errs []error
	for _, c := range cases {
		for _, s := range []*site{c.site(ctx, shared.sourceDB), c.site(ctx, shared.targetDB)} {
			for _, db := range []*site{s, s.in("x"), s.in("around")} {
				errs = append(errs, db.db().Drop(ctx))
			}
		}
	}
	return errors.Join(errs...)
}
