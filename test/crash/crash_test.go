package crash

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// TestKillInEachPhase kills millrace with SIGKILL in each phase while the
// source is written to, starts it again, and wants an identical target.
func TestKillInEachPhase(t *testing.T) {
	t.Parallel()
	src := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_SOURCE")})
	dst := lab.ForTest(t, lab.Options{Version: os.Getenv("MILLRACE_TEST_TARGET")})
	seed := testseed.Of(t)
	bin := test.BuildMillrace(t, raceFlag()...)
	sc, dc := kit.Client(t, src.URI()), kit.Client(t, dst.URI())

	test.LoadChurn(t, sc.Database("crash"))
	churn := test.StartChurn(t, sc.Database("crash"),
		test.ChurnOptions{Seed: seed, SchemaEvery: 100 * time.Millisecond, Pause: 4 * time.Millisecond})

	histories := writeHistories(t, sc, seed)

	kept, filters, mappings := history.HistoriesOf(seed, "crash", history.FiltersOf(seed, "crash"),
		history.FieldsOf(seed, "crash"))
	t.Logf("histories of %v, filters %v", kept, filters)
	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "crash.*", "--include",
		"crash-x.*", "--allow-missing", "--job", "crash"}
	for _, rule := range filters {
		args = append(args, "--filter", rule)
	}
	for _, rule := range mappings {
		args = append(args, "--fields", rule)
	}
	for _, pattern := range kept {
		args = append(args, "--history", pattern)
	}
	if history.MayFail(mappings) {
		args = append(args, "--on-conflict", "skip")
	}
	args = append(args, "--until")
	r := rand.New(rand.NewPCG(seed, 7))
	for _, phase := range []string{"catalog", "creating", "copying", "copying", "indexing", "overlap", "following",
		"following", "following"} {
		p := test.Start(t, bin, append(args, "never")...)
		func() {
			if phase == "following" { // on a busy machine the job would never catch up
				defer churn.Hold()()
			}
			p.AwaitPhase(dc, "crash", phase)
		}()
		select { // somewhere inside the phase
		case <-time.After(time.Duration(r.IntN(700)) * time.Millisecond):
		case <-p.Done():
		}
		p.Kill()
	}
	churn.Stop()
	steps := histories()
	p := test.Start(t, bin, append(args, "caught-up")...)
	p.AwaitPhase(dc, "crash", "finalizing")
	p.Kill()
	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(6 * time.Minute); err != nil {
		t.Fatalf("last run: %v\n%s", err, p.Output())
	}
	t.Logf("%d operations and %d steps of histories written meanwhile", churn.Operations(), steps.Done)
	diffs, err := test.Compare(t.Context(), sc, dc,
		test.CompareOptions{Filter: test.Filters(filters), Fields: test.Mappings(mappings), History: kept})
	if err != nil {
		t.Fatal(err)
	}
	for _, pattern := range kept {
		if strings.HasSuffix(pattern, ".plain") || strings.HasSuffix(pattern, ".txn2") { // no others keep their names
			more, err := test.CompareVersions(t.Context(), sc, dc, test.VersionsOf{Source: pattern, Target: pattern, Most: 1000})
			if err != nil {
				t.Fatal(err)
			}
			diffs = append(diffs, more...)
		}
	}
	for _, d := range diffs {
		t.Errorf("seed %d: %s", seed, d)
	}
}

// writeHistories lets two more writers do random steps (test/history), and
// returns what ends them.
func writeHistories(t *testing.T, source *mongo.Client, seed uint64) (end func() history.Stats) {
	t.Helper()
	r := &history.Runner{Client: source, Database: "crash"}
	o := history.Options{Seed: seed, Writers: 2, Streamed: kit.Streamed(), Ruled: true,
		Since: func(major, _ int) bool { return major <= 6 }}
	if err := r.Ordered(t.Context(), history.NewGenerator(o).Setup()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Endless(ctx, o, history.Pace{Step: 5 * time.Millisecond, Schema: 200 * time.Millisecond}); err != nil {
			t.Errorf("seed %d: %v", seed, err)
		}
	}()
	end = func() history.Stats {
		cancel()
		<-done
		return r.Stats()
	}
	t.Cleanup(func() { end() })
	return end
}

// raceFlag builds the program under test as the test itself is built.
func raceFlag() []string {
	if raceEnabled {
		return []string{"-race"}
	}
	return nil
}
