package crash

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/test"
)

// TestKillInEachPhase kills millrace with SIGKILL in each phase while the
// source is written to, starts it again, and wants an identical target.
func TestKillInEachPhase(t *testing.T) {
	src := lab.ForTest(t, lab.Options{})
	dst := lab.ForTest(t, lab.Options{})
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	bin := test.BuildMillrace(t, raceFlag()...)
	sc, dc := test.Connect(t, src.URI()), test.Connect(t, dst.URI())

	test.LoadChurn(t, sc.Database("crash"))
	churn := test.StartChurn(t, sc.Database("crash"), test.ChurnOptions{Seed: seed})

	args := []string{"sync", "--source", src.URI(), "--target", dst.URI(), "--include", "crash.*", "--job", "crash", "--until"}
	r := rand.New(rand.NewPCG(seed, 7))
	for _, phase := range []string{"catalog", "creating", "copying", "copying", "indexing", "overlap", "following", "following", "following"} {
		p := test.Start(t, bin, append(args, "never")...)
		p.AwaitPhase(dc, "crash", phase)
		select { // somewhere inside the phase
		case <-time.After(time.Duration(r.IntN(700)) * time.Millisecond):
		case <-p.Done():
		}
		p.Kill()
	}
	churn.Stop()
	p := test.Start(t, bin, append(args, "caught-up")...)
	p.AwaitPhase(dc, "crash", "finalizing")
	p.Kill()
	p = test.Start(t, bin, append(args, "caught-up")...)
	if err := p.Wait(2 * time.Minute); err != nil {
		t.Fatalf("last run: %v\n%s", err, p.Output())
	}
	t.Logf("%d operations written meanwhile", churn.Operations())
	diffs, err := test.Compare(t.Context(), sc, dc, test.CompareOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		t.Errorf("seed %d: %s", seed, d)
	}
}

// raceFlag builds the program under test as the test itself is built.
func raceFlag() []string {
	if raceEnabled {
		return []string{"-race"}
	}
	return nil
}
