package failover

import (
	"context"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/history"
)

// tally is what a soak did.
type tally struct {
	rounds, marks, comparisons, kills int
	operations                        int64
	faults                            map[string]int
}

// TestSoak goes on for MILLRACE_SOAK (such as 30m): in each round new clusters,
// writers of a new seed, and faults and kills of millrace drawn from it, with
// other settings after each kill. At the end of a round millrace verify and the
// comparison of package test must both find nothing.
func TestSoak(t *testing.T) {
	long, err := time.ParseDuration(os.Getenv("MILLRACE_SOAK"))
	if err != nil {
		t.Skip("MILLRACE_SOAK says for how long; see make soak")
	}
	done := tally{faults: map[string]int{}}
	for began := time.Now(); time.Since(began) < long && !t.Failed(); done.rounds++ {
		t.Run("round", func(t *testing.T) { soakRound(t, &done, min(long-time.Since(began), 5*time.Minute)) })
		t.Logf("after %s: %d rounds, %d operations, %d kills, %d marks, %d comparisons, faults %v", time.Since(began).Round(time.Second),
			done.rounds+1, done.operations, done.kills, done.marks, done.comparisons, done.faults)
	}
}

func soakRound(t *testing.T, done *tally, long time.Duration) {
	b := newBench(t)
	histories := b.writeHistories()
	r := rand.New(rand.NewPCG(b.seed, 3))
	p := b.start(append(settings(r), "--until", "never", "--max-rate-bytes", "8MB")...)
	all := b.faults()
	for began := time.Now(); time.Since(began) < long; {
		f := all[r.IntN(len(all))]
		if r.IntN(3) == 0 {
			p.Kill()
			done.kills++
			p = b.start(append(settings(r), "--until", "never")...)
		}
		b.suffer(f, r)
		done.faults[f.Name]++
		if r.IntN(2) == 0 { // else the next comes while it has not caught up
			b.mark(p, f.Name)
			done.marks++
		}
	}
	steps := histories()
	b.finish(p)
	done.operations += b.churn.Operations() + steps.Done
	done.comparisons++
	v := test.Start(t, b.bin, "verify", "--source", uri(b.source), "--target", uri(b.target), "--include", database+".*", "--include", database+"-x.*")
	if err := v.Wait(2 * time.Minute); err != nil {
		t.Errorf("seed %d: verify: %v\n%s", b.seed, err, v.Output())
	}
}

// writeHistories lets three more writers do random steps (test/history), and
// returns what ends them. Capped collections are left out as in newBench.
func (b *bench) writeHistories() (end func() history.Stats) {
	b.t.Helper()
	r := &history.Runner{Client: b.sc, Database: database, Tolerate: func(error) bool { return true }}
	o := history.Options{Seed: b.seed, Writers: 3, NoCapped: true, Since: func(major, _ int) bool { return major <= 6 }}
	if err := r.Ordered(b.t.Context(), history.NewGenerator(o).Setup()); err != nil {
		b.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(b.t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := r.Endless(ctx, o, history.Pace{Step: 2 * time.Millisecond, Schema: 500 * time.Millisecond}); err != nil {
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

// settings are drawn anew for each process of a job.
func settings(r *rand.Rand) []string {
	return strings.Fields([]string{
		"", "--partitions 1", "--partitions 3 --write-concern 2", "--read-preference secondaryPreferred", "--readers 1 --writers 2", "--spool-max 0",
	}[r.IntN(6)])
}
