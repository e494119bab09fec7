package failover

import (
	"context"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// counts is what a soak did.
type counts struct {
	rounds, marks, kills, killsAtFaults, rolls, comparisons, differences int
	operations, steps, refused                                           int64
	faults                                                               map[string]int
}

// String is a report of several lines.
func (n counts) String() string {
	var s strings.Builder
	total := 0
	for _, name := range slices.Sorted(maps.Keys(n.faults)) {
		total += n.faults[name]
		fmt.Fprintf(&s, "  %4d × %s\n", n.faults[name], name)
	}
	return fmt.Sprintf("histories %d, operations %d, of them random steps %d (%d refused by the server)\n"+
		"faults %d, kills of millrace %d, of them at the same time as a fault %d, oplogs rolled past the job %d, waits "+
		"until caught up %d\n"+
		"comparisons %d, differences %d\nfaults by kind:\n%s",
		n.rounds, n.operations, n.steps, n.refused, total, n.kills, n.killsAtFaults, n.rolls, n.marks, n.comparisons,
		n.differences, s.String())
}

// TestSoak goes on for MILLRACE_SOAK (such as 30m): in each round new clusters,
// writers of the next seed, and faults and kills of millrace drawn from it, with
// other settings after each kill. At the end of a round millrace verify and the
// comparison of package test must both find nothing.
func TestSoak(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("MILLRACE_SOAK"))
	if err != nil {
		t.Skip("MILLRACE_SOAK says for how long; see make soak")
	}
	done := counts{faults: map[string]int{}}
	seed := testseed.Of(t)
	for began := time.Now(); time.Since(began) < long && !t.Failed(); seed++ {
		testseed.Set(t, seed)
		t.Run("round", func(t *testing.T) { soakRound(t, &done, min(long-time.Since(began), 5*time.Minute)) })
		t.Logf("after %s:\n%s", time.Since(began).Round(time.Second), done)
	}
}

func soakRound(t *testing.T, done *counts, long time.Duration) {
	b := newBench(t, soakSchema, 0)
	histories := b.writeHistories()
	r := rand.New(rand.NewPCG(b.seed, 3))
	p := b.start(settings(r)...)
	all := b.faults()
	roll := never
	if r.IntN(2) == 0 {
		roll = time.Duration(r.Int64N(int64(long)))
	}
	for began := time.Now(); time.Since(began) < long; {
		f := all[r.IntN(len(all))]
		switch n := r.IntN(8); {
		case time.Since(began) > roll:
			t.Logf("%-40s", "the oplog rolls past the job")
			p = b.rollPast(p, settings(r)...)
			done.rolls++
			done.kills++
			roll = never
		case n < 2:
			t.Logf("%-40s", f.Name+", killed")
			p = b.sufferKilled(p, f, r, settings(r)...)
			done.faults[f.Name]++
			done.kills++
			done.killsAtFaults++
		case n == 2:
			p.Kill()
			done.kills++
			p = b.start(settings(r)...)
		default:
			t.Logf("%-40s", f.Name)
			b.suffer(f, r)
			done.faults[f.Name]++
		}
		if r.IntN(2) == 0 { // else the next comes while it has not caught up
			b.unleash(p, f.Name)
			b.mark(p, f.Name)
			done.marks++
		}
	}
	steps := histories()
	done.differences += b.finish(p)
	done.rounds++
	done.steps += steps.Done
	done.refused += steps.Refusals()
	done.operations += b.churn.Operations() + steps.Done
	args := []string{"verify", "--source", uri(b.source), "--target", uri(b.target), "--include", database + ".*",
		"--include", database + "-x.*"}
	v := test.Start(t, b.bin, append(args, b.rules()...)...)
	if err := v.Wait(6 * time.Minute); err != nil {
		t.Errorf("seed %d: verify: %v\n%s", b.seed, err, v.Output())
		done.differences++
	}
	done.comparisons += 2
}

// soakSchema is the pause of either kind of writers between schema changes: a
// target of three members on two processors takes half a second for one, and
// has to catch up after each fault.
const soakSchema = 2 * time.Second

// never is later than any round.
const never = time.Duration(math.MaxInt64)

// writeHistories lets three more writers do random steps (test/history), and
// returns what ends them. Capped collections are left out as in newBench.
func (b *bench) writeHistories() (end func() history.Stats) {
	b.t.Helper()
	r := &history.Runner{Client: b.sc, Database: database, Tolerate: func(error) bool { return true }}
	o := history.Options{Seed: b.seed, Writers: 3, NoCapped: true, Streamed: kit.Streamed(), Ruled: true,
		Since: func(major, _ int) bool { return major <= 6 }}
	if err := r.Ordered(b.t.Context(), history.NewGenerator(o).Setup()); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Endless(ctx, o, history.Pace{Step: 2 * time.Millisecond, Schema: soakSchema}); err != nil {
			b.t.Errorf("seed %d: %v", b.seed, err)
		}
	}()
	end = func() history.Stats {
		cancel()
		<-done
		return r.Stats()
	}
	b.t.Cleanup(func() { end() })
	return end
}

// settings are drawn anew for each process of a job. A slow copy is struck by
// more than one fault.
func settings(r *rand.Rand) []string {
	drawn := []string{"", "--partitions 1", "--partitions 3 --write-concern 2", "--read-preference secondaryPreferred",
		"--readers 1 --writers 2", "--spool-max 0"}[r.IntN(6)] +
		[]string{"", " --max-rate-bytes 8MB", " --max-rate-bytes 1MB", " --max-rate-bytes 500KB"}[r.IntN(4)]
	return append(strings.Fields(drawn), "--until", "never")
}
