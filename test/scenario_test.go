package test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// scenario is something that a user's cluster may hold, and what happens to it.
type scenario struct {
	name string
	// since is the first version, as in "5.0", that has the feature; empty
	// is every one.
	since string
	// alike: only where both sides are of 7.0 or newer, or neither is.
	alike bool
	// setup is what exists before, change what happens then. Each may be nil.
	// Neither runs a command that needs the whole server for itself, which
	// would wait for a find that is held up while a job copies.
	setup, change func(*site)
	// exclude, rename, filter, skip, fields, softDelete and history are rules of the job. DB stands for the name of the
	// scenario's database.
	exclude, rename, filter, skip, fields, softDelete, history []string
	// want makes of what setup has made what the target is to hold, where skip leaves
	// operations out. The source is not compared then, unless all happens before the job.
	want func(*site)
	// late is want for changes during the copy, where it differs: what the copy may have read is not left out.
	late func(*site)
	// check looks at both sides at the end, further than the comparison.
	check func(source, target *site)
	// only names the ways in which the scenario is run, all when empty.
	only []string
	// alone: nothing else happens on the source meanwhile.
	alone bool
	// leavesOut: the job goes on without documents that the rules cannot map.
	leavesOut bool
}

// The ways in which every scenario is run.
const (
	// wayCopy: all of it is there before the job starts.
	wayCopy = "copy"
	// wayChange: the change happens while the job follows the source.
	wayChange = "change"
	// wayEarly: the change happens when the catalog is pinned, and before the
	// first document is copied.
	wayEarly = "early"
	// wayLate: the change happens when the scenario's documents are copied,
	// and before the copy has ended.
	wayLate = "late"
)

// scenarios are all of them, by subject.
func scenarios() []scenario {
	return slices.Concat(typeScenarios(), idScenarios(), updateScenarios(), writeScenarios(), kindScenarios(),
		cappedScenarios(), seriesScenarios(),
		viewScenarios(), indexScenarios(), indexChangeScenarios(), ddlScenarios(), renameScenarios(), filterScenarios(),
		rowScenarios(), skipScenarios(), ttlScenarios(), fieldScenarios(), unmappedScenarios(), softScenarios(),
		versionScenarios(),
		mappingScenarios(), txnScenarios(), uniqueScenarios(), knownLossScenarios())
}

// together is how many scenarios are run in one job. A server copies its list
// of all collections at each schema change, so that the cost of each grows with
// all that are there.
const together = 40

// TestScenarios runs every scenario in every way: many of one way together, in
// one job, each in databases of its own. A scenario that ends the job is found
// by the namespace in the error or else by halving, and the others are run
// without it. A single one: -run 'TestScenarios/change/rename_chain$'. In make test a
// part of them runs, see drawWays. What a scenario leaves on the source is copied by a job
// of mode structure, too, see structureOf.
func TestScenarios(t *testing.T) {
	seed := testseed.Of(t)
	drawn := map[string][]string{}
	for _, sc := range scenarios() {
		drawn[sc.name] = drawWays(seed, sc)
	}
	for _, w := range [][]string{{wayCopy}, {wayChange}, {wayEarly, wayLate}} {
		var cases []*trial
		for _, sc := range scenarios() {
			for _, way := range w {
				if slices.Contains(drawn[sc.name], way) && selected(way, sc.name) {
					c := newTrial(way, sc)
					c.structure = sc.runs(wayCopy) && way == drawn[sc.name][0]
					cases = append(cases, c)
				}
			}
		}
		for _, cases := range apart(cases) {
			for some := range slices.Chunk(cases, together) {
				runTogether(t, some)
			}
		}
		for _, way := range w {
			t.Run(way, func(t *testing.T) {
				for _, c := range cases {
					if c.way == way {
						t.Run(c.sc.name, func(t *testing.T) { c.report(t) })
					}
				}
			})
		}
	}
}

// drawWays are the ways in which a scenario is run: all, or in make test one that the seed
// and the name decide.
func drawWays(seed uint64, sc scenario) []string {
	ways := slices.DeleteFunc([]string{wayCopy, wayChange, wayEarly, wayLate},
		func(way string) bool { return !sc.runs(way) })
	if !lab.Brief() {
		return ways
	}
	h := fnv.New64a()
	_, _ = io.WriteString(h, sc.name)
	r := rand.New(rand.NewPCG(seed, h.Sum64()))
	r.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	return ways[:min(1, len(ways))]
}

// runs reports whether the scenario exists on the clusters at hand and in this way.
func (sc scenario) runs(way string) bool {
	if len(sc.only) > 0 && !slices.Contains(sc.only, way) {
		return false
	}
	if sc.alike && shared.sourceVer.AtLeast(7, 0) != shared.targetVer.AtLeast(7, 0) {
		return false
	}
	if kit.Streamed() && !sc.streams(way) {
		return false
	}
	if sc.since == "" {
		return true
	}
	var major, minor int
	if _, err := fmt.Sscanf(sc.since, "%d.%d", &major, &minor); err != nil {
		panic(err)
	}
	return shared.sourceVer.AtLeast(major, minor) && shared.targetVer.AtLeast(major, minor)
}

// selected reports whether -run asks for a subtest, before it is run.
func selected(way, name string) bool {
	f := flag.Lookup("test.run")
	if f == nil || f.Value.String() == "" {
		return true
	}
	parts := strings.Split(f.Value.String(), "/")
	for i, s := range []string{"TestScenarios", way, name} {
		if i >= len(parts) {
			return true
		}
		if re, err := regexp.Compile(parts[i]); err == nil && !re.MatchString(s) {
			return false
		}
	}
	return true
}

// trial is one scenario in one way.
type trial struct {
	way string
	sc  scenario
	// base is the main database's name, n makes it new at each run.
	base string
	// structure: a job of mode structure copies what is there at the end, too.
	structure bool
	errs      []error
	outcome   // of a job by change streams
}

func newTrial(way string, sc scenario) *trial {
	return &trial{way: way, sc: sc, base: way[:1] + "_" + sc.name}
}

func (c *trial) report(t *testing.T) {
	if what := c.outcome.String(); what != "" {
		t.Log(what)
		return
	}
	for _, err := range c.errs {
		t.Error(err)
	}
}

func (c *trial) failed(err error) { c.errs = append(c.errs, err) }

func (c *trial) site(ctx context.Context, client *mongo.Client) *site {
	return &site{ctx: ctx, client: client, base: c.base}
}

// owns reports whether a namespace belongs to the scenario.
func (c *trial) owns(ns string) bool {
	db, _, _ := strings.Cut(ns, ".")
	return db == c.base || strings.HasPrefix(db, c.base+"-")
}

func (c *trial) rules(list []string) []string {
	var out []string
	for _, r := range list {
		out = append(out, strings.ReplaceAll(r, "DB", c.base))
	}
	return out
}

// runTogether runs scenarios in one job; after a failure of the job the ones
// left, anew.
func runTogether(t *testing.T, cases []*trial) {
	for len(cases) > 0 {
		cleanUp(t, cases)
		left, err := runJob(t, cases)
		cases = left
		if err == nil {
			break
		}
		first, _, _ := strings.Cut(err.Error(), "\nthe job's log")
		t.Logf("%s: a job of %d scenarios fails: %s", cases[0].way, len(cases), first)
		forget(t)
		guilty := blame(cases, err)
		if len(guilty) == 0 && len(cases) > 1 {
			cleanUp(t, cases)
			runTogether(t, cases[:len(cases)/2])
			runTogether(t, cases[len(cases)/2:])
			if !slices.ContainsFunc(cases, func(c *trial) bool { return len(c.errs) > 0 }) {
				t.Errorf("a job of %d scenarios failed, those of its halves did not: %v", len(cases), err)
			}
			return
		}
		if len(guilty) == 0 {
			guilty = cases
		}
		for _, c := range guilty {
			if c.rejected = refusal(t, c, err); c.rejected != "" {
				continue
			}
			if c.unreported(t.Context()) {
				c.named = []string{first}
				continue
			}
			c.failed(err)
		}
		cleanUp(t, cases)
		cases = slices.DeleteFunc(slices.Clone(cases), func(c *trial) bool { return slices.Contains(guilty, c) })
	}
	cleanUp(t, cases)
}

// forget removes the job that has failed, whose names are its own until then.
func forget(t *testing.T) {
	jobs := shared.targetDB.Database("millrace").Collection("jobs")
	if _, err := jobs.DeleteMany(t.Context(), d("_id", d("$regex", "^scenarios-"))); err != nil {
		t.Fatal(err)
	}
}

// blame finds the scenarios that an error names.
func blame(cases []*trial, err error) []*trial {
	text, _, _ := strings.Cut(err.Error(), "\nthe job's log")
	var out []*trial
	for _, c := range cases {
		re := regexp.MustCompile(`(^|[^a-z0-9_])` + regexp.QuoteMeta(c.base) + `[-.]`)
		if re.MatchString(text) {
			out = append(out, c)
		}
	}
	return out
}

// runJob runs the scenarios in one job and compares each. It returns those
// that are not done when the job failed, with its error.
func runJob(t *testing.T, cases []*trial) ([]*trial, error) {
	ctx := t.Context()
	way := cases[0].way
	began := time.Now()
	lap := func(what string) { took(t, way, what, began); began = time.Now() }
	cases = each(ctx, cases, "setup", func(c *trial, s *site) {
		if c.sc.setup != nil {
			c.sc.setup(s)
		}
	})
	lap("setup")
	change := func(cases []*trial) []*trial {
		lap("start")
		defer lap("change")
		changing(t, cases)
		return each(ctx, cases, "change", func(c *trial, s *site) {
			if c.sc.change != nil {
				c.sc.change(s)
			}
		})
	}
	spec := job.Spec{Job: newJob("scenarios"), Rules: rules(cases), Readers: 8}
	if slices.ContainsFunc(cases, func(c *trial) bool { return c.sc.leavesOut }) {
		spec.OnConflict = deadletter.Skip
	}
	if way == wayCopy {
		cases = change(cases)
		spec.Until = "caught-up"
	}
	if len(cases) == 0 {
		return nil, nil
	}
	var live *running
	var err error
	switch way {
	case wayCopy:
		if live, err = startJob(t, spec); err == nil {
			err = live.wait()
		}
	case wayChange:
		if live, err = startJob(t, spec); err == nil {
			err = live.reach(job.PhaseFollowing)
		}
		if err == nil {
			cases = change(cases)
			err = live.finalize(ctx)
		}
	default:
		live, cases, err = duringCopy(t, spec, cases, change)
	}
	if live != nil {
		live.stop()
	}
	if err != nil {
		if rest := differing(ctx, cases, live, err); rest != nil {
			return rest, err
		}
	}
	f := live.Status().Follow
	lap(fmt.Sprintf("job (%d operations, %d schema changes)", f.Operations, f.SchemaChanges))
	if slices.ContainsFunc(cases, func(c *trial) bool { return c.sc.explained() }) {
		if err := verifySame(ctx, cases, spec.Rules); err != nil {
			t.Error(err)
		}
	}
	compareAll(ctx, cases)
	compareWanted(ctx, cases)
	lap("comparison")
	structureOf(t, cases)
	lap("structure")
	return nil, nil
}

// differing returns the cases if the error is one that ended the job. What
// finalize merely found to differ, the comparison finds too.
func differing(ctx context.Context, cases []*trial, live *running, err error) []*trial {
	if live == nil || live.err != nil {
		return cases
	}
	guilty := blame(cases, err)
	for _, c := range guilty {
		var lines []string
		for _, l := range strings.Split(err.Error(), "\n") {
			if strings.Contains(l, c.base) {
				lines = append(lines, l)
			}
		}
		if c.unreported(ctx) {
			c.named = lines
			continue
		}
		c.failed(fmt.Errorf("finalize: %s", strings.Join(lines, "\n")))
	}
	if len(guilty) == 0 {
		return cases
	}
	return nil
}

// rules are those of all scenarios together.
func rules(cases []*trial) transform.Config {
	var r transform.Config
	for _, c := range cases {
		r.Include = append(r.Include, c.base, c.base+"-*")
		r.Exclude = append(r.Exclude, c.rules(c.sc.exclude)...)
		r.Rename = append(r.Rename, c.rules(c.sc.rename)...)
		r.Filter = append(r.Filter, c.rules(c.sc.filter)...)
		r.Skip = append(r.Skip, c.rules(c.sc.skip)...)
		r.SoftDelete = append(r.SoftDelete, c.rules(c.sc.softDelete)...)
		r.History = append(r.History, c.rules(c.sc.history)...)
		r.Fields = append(r.Fields, c.rules(c.sc.fields)...)
	}
	r.Include = append(r.Include, ballast)
	return r
}

// each runs a step of every scenario on the source, several at once, and
// returns those that did it.
func each(ctx context.Context, cases []*trial, what string, step func(*trial, *site)) []*trial {
	var mu sync.Mutex
	var out []*trial
	var g errgroup.Group
	g.SetLimit(8)
	one := func(c *trial) error {
		err := attempt(func() { step(c, c.site(ctx, shared.sourceDB)) })
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			c.failed(fmt.Errorf("the scenario itself fails, in its %s: %w", what, err))
			return nil
		}
		out = append(out, c)
		return nil
	}
	for _, c := range cases {
		if !c.sc.alone {
			g.Go(func() error { return one(c) })
		}
	}
	_ = g.Wait()
	for _, c := range cases {
		if c.sc.alone {
			_ = one(c)
		}
	}
	slices.SortFunc(out, func(x, y *trial) int { return strings.Compare(x.base, y.base) })
	return out
}

// compareAll compares the scenarios' databases.
func compareAll(ctx context.Context, cases []*trial) {
	of := func(ns string) *trial {
		for _, c := range cases {
			if c.owns(ns) {
				return c
			}
		}
		return nil
	}
	config := rules(cases)
	same := slices.DeleteFunc(slices.Clone(cases), func(c *trial) bool { return c.sc.want != nil && c.way != wayCopy })
	owned := func(ns string) bool { return slices.ContainsFunc(same, func(c *trial) bool { return c.owns(ns) }) }
	diffs, err := Compare(ctx, shared.sourceDB, shared.targetDB, CompareOptions{
		Source: func(ns string) bool { return owned(ns) && !excluded(config.Exclude, ns) },
		Target: owned,
		Name:   newNames(config.Rename).target,
		Filter: Filters(config.Filter),
		Fields: Mappings(config.Fields),
		Marked: Marks(config.SoftDelete), History: config.History,
	})
	for _, diff := range diffs {
		of(diff.NS).failed(errors.New(diff.String()))
	}
	for _, c := range cases {
		if err != nil {
			c.failed(fmt.Errorf("compare: %w", err))
		}
		if c.sc.check == nil {
			continue
		}
		err := attempt(func() { c.sc.check(c.site(ctx, shared.sourceDB), c.site(ctx, shared.targetDB)) })
		if err != nil {
			c.failed(err)
		}
	}
}

// excluded reports whether a pattern, in which * is the only wildcard, excludes a
// collection, or the time-series collection of which it holds the buckets.
func excluded(patterns []string, ns string) bool {
	ns = strings.Replace(ns, "."+bucketsPrefix, ".", 1)
	return slices.ContainsFunc(patterns, func(p string) bool {
		re := "^" + strings.ReplaceAll(regexp.QuoteMeta(p), `\*`, ".*") + "$"
		return regexp.MustCompile(re).MatchString(ns)
	})
}

// cleanUp drops the scenarios' databases on both sides.
func cleanUp(t *testing.T, cases []*trial) { cleanUpOn(t, cases, shared.sourceDB, shared.targetDB) }

func cleanUpOn(t *testing.T, cases []*trial, clients ...*mongo.Client) {
	var g errgroup.Group
	g.SetLimit(8)
	for _, client := range clients {
		dbs, err := client.ListDatabaseNames(t.Context(), bson.D{})
		if err != nil {
			t.Fatal(err)
		}
		for _, db := range dbs {
			if slices.ContainsFunc(cases, func(c *trial) bool { return c.owns(db + ".") }) || db == ballast {
				g.Go(func() error { return client.Database(db).Drop(t.Context()) })
			}
		}
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// took logs how long a part of a run took.
func took(t *testing.T, way, what string, since time.Time) {
	t.Logf("%s: %s took %s", way, what, time.Since(since).Round(time.Millisecond))
}
