package failover

import (
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/workshop/lab"
)

// some are the faults named, where the machine can have them, and n others that
// are drawn; or all with MILLRACE_TEST_FAULTS=all.
func some(all []Fault, r *rand.Rand, n int, named ...string) []Fault {
	r.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	if os.Getenv("MILLRACE_TEST_FAULTS") == "all" {
		return all
	}
	var out []Fault
	for _, f := range all {
		if slices.Contains(named, f.Name) {
			out = append(out, f)
		} else if n > 0 {
			out = append(out, f)
			n--
		}
	}
	return out
}

// TestFaultsWhileFollowing lets faults drawn from the seed strike either side while a job
// follows; it goes on by itself each time. Then millrace is killed at the same time.
func TestFaultsWhileFollowing(t *testing.T) {
	lab.Nightly(t)
	b := newBench(t, time.Second, unhurried)
	r := rand.New(rand.NewPCG(b.seed, 1))
	p := b.start("--until", "never")
	b.awaitPhase(p, job.PhaseFollowing)
	b.mark(p, "start")
	named := []string{"target: all members moved", "source: majority lost"}
	for _, f := range some(b.faults(), r, 1, named[r.IntN(2)]) {
		b.sufferWaiting(p, f, r)
		b.mark(p, f.Name)
	}
	for _, f := range some(b.faults(), r, 0, "source: all members moved") {
		p = b.sufferKilled(p, f, r, "--until", "never")
		b.mark(p, f.Name+", killed")
	}
	b.finish(p)
}

// TestFaultsWhileCopying does the same during a copy that is held back until all
// have struck.
func TestFaultsWhileCopying(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := newBench(t, 4*time.Second, unhurried)
	r := rand.New(rand.NewPCG(b.seed, 2))
	b.loadBulk()
	slow := []string{"--until", "never", "--max-rate-bytes", "1500KB", "--readers", "1", "--writers", "1"}
	p := b.start(slow...)
	b.copies(p, "start")
	for _, f := range some(b.faults(), r, 0, "target: majority lost", "target: disks full") {
		b.sufferWaiting(p, f, r)
		b.copies(p, f.Name)
	}
	for _, f := range some(b.faults(), r, 1) {
		p = b.sufferKilled(p, f, r, slow...)
		b.copies(p, f.Name+", killed")
	}
	b.unleash(p, "all faults")
	b.awaitPhase(p, job.PhaseOverlap)
	goOn := b.churn.Hold() // on slow servers the writers would run away from the job
	b.awaitPhase(p, job.PhaseFollowing)
	goOn()
	b.mark(p, "the copy")
	b.finish(p)
}
