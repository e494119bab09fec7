package trial

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/testseed"
	"github.com/millrace/millrace/workshop/lab"
)

// The environment of these tests:
//
//	MILLRACE_TRIAL          a trial's file, for TestTrial
//	MILLRACE_TRIAL_PROGRAM  the program, built with -tags failpoint; else it is built
//	MILLRACE_TRIAL_THEME    the themes of both, separated by commas; else all
//	MILLRACE_TRIAL_FOR      how long TestHunt goes on with a theme
//	MILLRACE_TRIAL_SHRINK   how long what fails is shrunk, such as 5m
//	MILLRACE_TRIAL_VERBOSE  says that TestHunt reports what happened in each trial
//	MILLRACE_TRIAL_OUT      where scripts of what fails go; else a temporary directory

// newRunner is a runner for the time of the test.
func newRunner(t *testing.T) *Runner {
	t.Helper()
	return runnerOf(t, test.BuildMillrace(t, "-tags", "failpoint"))
}

func runnerOf(t *testing.T, bin string) *Runner {
	t.Helper()
	r := &Runner{Bin: bin}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Log(err)
		}
	})
	return r
}

// TestTrial plays the trial of a file; see Trial.Script.
func TestTrial(t *testing.T) {
	name := os.Getenv("MILLRACE_TRIAL")
	if name == "" {
		t.Skip("MILLRACE_TRIAL names a trial's file")
	}
	tr, err := ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	res, _ := verdict(t, newRunner(t), tr)
	t.Logf("%s\n%s", res.Verdict, res.Log)
}

// small shrinks a trial that fails and writes it to a file, if that is wanted.
func small(t *testing.T, r *Runner, tr Trial, res Result) {
	t.Helper()
	if os.Getenv("MILLRACE_TRIAL") != "" && os.Getenv("MILLRACE_TRIAL_SHRINK") == "" {
		return // it comes from such a file
	}
	n := len(tr.Events)
	if long := duration(t, "MILLRACE_TRIAL_SHRINK", 0); long > 0 {
		ctx, cancel := context.WithTimeout(t.Context(), long)
		defer cancel()
		s := Shrinker{Fails: func(ctx context.Context, tr Trial) bool {
			again, err := r.Run(ctx, t, tr)
			return err == nil && again.Verdict == res.Verdict
		}}
		tr = s.Shrink(ctx, tr)
		t.Logf("%d of %d events fail as well, %d trials tried", len(tr.Events), n, s.Tried)
	}
	dir := os.Getenv("MILLRACE_TRIAL_OUT")
	if dir == "" {
		dir = os.TempDir()
	}
	name := filepath.Join(dir, fmt.Sprintf("trial-%s-%d.sh", tr.Theme, tr.Seed))
	if err := os.WriteFile(name, []byte(tr.Script()), 0o700); err != nil {
		t.Error(err)
	}
	t.Logf("again: bash %s\n%s", name, tr.Script())
}

func duration(t *testing.T, name string, otherwise time.Duration) time.Duration {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// TestHunt plays trials of one seed after the other, from its seed on, until one fails, for
// each theme, for so long as MILLRACE_TRIAL_FOR says.
func TestHunt(t *testing.T) {
	long := duration(t, "MILLRACE_TRIAL_FOR", 0)
	if long == 0 {
		t.Skip("MILLRACE_TRIAL_FOR says for how long")
	}
	seed := testseed.Of(t)
	r := newRunner(t)
	for _, theme := range chosen() {
		t.Run(theme.Name, func(t *testing.T) { hunt(t, r, theme, seed, long) })
	}
}

// chosen are the themes that the environment names.
func chosen() []Theme {
	names := os.Getenv("MILLRACE_TRIAL_THEME")
	if names == "" {
		return Themes()
	}
	return slices.DeleteFunc(Themes(), func(x Theme) bool { return !slices.Contains(strings.Split(names, ","), x.Name) })
}

// hunt plays seeds of a theme until one fails.
func hunt(t *testing.T, r *Runner, theme Theme, seed uint64, long time.Duration) {
	began := time.Now()
	for n := uint64(0); time.Since(began) < long; n++ {
		tr := theme.New(seed + n)
		res, err := r.Run(t.Context(), t, tr)
		if err != nil {
			t.Logf("seed %d: no verdict: %v", tr.Seed, err)
			continue
		}
		t.Logf("seed %d: %s after %.1f s", tr.Seed, res.Verdict, res.Took.Seconds())
		if os.Getenv("MILLRACE_TRIAL_VERBOSE") != "" {
			t.Logf("%s\n%s", res.Log, res.Output)
		}
		if !res.Right() {
			t.Errorf("theme %s, seed %d, found after %s, %d trials: %s\n%s\n%s", theme.Name, tr.Seed,
				time.Since(began).Round(time.Second), n+1, res, res.Log, tail(res.Output))
			small(t, r, tr, res)
			return
		}
	}
}

// A difference is found, and only where there is one.
func TestVerdicts(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs servers")
	}
	begin := []Event{Filled("db", "c", 0, 100, 10), Begin("position.before:1=note"), Until("", "phase:following"),
		Until("", "caught-up"), Until("", "point:position.before")}
	change := []Event{Do("db", D("update", "c", "updates", A(D("q", D("_id", 1), "u", D("$set", D("by", 1)))))),
		{Do: Kill}}
	unseen := Foreign("db", D("insert", "c", "documents", A(D("_id", "unseen"))))
	r := newRunner(t)
	for want, events := range map[Verdict][]Event{
		Equal: slices.Concat(begin, change, []Event{{Do: Wake}, {Do: Kill}, {Do: Arm}, {Do: Rejoin}, {Do: Up, On: Target},
			{Do: Release}}),
		Differs: slices.Concat(begin, change, []Event{unseen}),
	} {
		res, err := r.Run(t.Context(), t, Trial{Args: included(), Events: events})
		if err != nil || res.Verdict != want {
			t.Errorf("%s, %v, not %s\n%s", res, err, want, res.Log)
		}
		if !strings.Contains(res.Log, `"want":"point:position.before"}: ok`) {
			t.Errorf("the point was not met: is the program built with the tag failpoint?\n%s", res.Log)
		}
	}
}

// known are trials that lost data once, shrunk.
const known = "testdata/*.trial"

// TestKnownTrials plays the trials that lost data once.
func TestKnownTrials(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("needs servers")
	}
	names, err := filepath.Glob(known)
	if err != nil || len(names) == 0 {
		t.Fatalf("no trials: %v", err)
	}
	const together = 3 // trials wait more than they compute
	idle := make(chan *Runner, together)
	bin := test.BuildMillrace(t, "-tags", "failpoint")
	for range together {
		idle <- runnerOf(t, bin)
	}
	for _, name := range names {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".trial"), func(t *testing.T) {
			t.Parallel()
			lab.Share(t, 4)
			r := <-idle
			defer func() { idle <- r }()
			tr, err := ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			// Where nothing was held up, a good verdict says nothing.
			if res, _ := verdict(t, r, tr); regexp.MustCompile(`"want":"entered:[^\n]*not within`).MatchString(res.Log) {
				t.Errorf("the fail point was not met:\n%s", res.Log)
			}
		})
	}
}

// verdict plays a trial, again if the servers got into its way, and wants it to
// end well.
func verdict(t *testing.T, r *Runner, tr Trial) (Result, bool) {
	t.Helper()
	var err error
	for range 3 {
		var res Result
		if res, err = r.Run(t.Context(), t, tr); err != nil {
			t.Logf("no verdict: %v", err)
			continue
		}
		if !res.Right() {
			t.Errorf("theme %s, seed %d: %s\n%s\n%s", tr.Theme, tr.Seed, res, res.Log, tail(res.Output))
			small(t, r, tr, res)
		}
		return res, true
	}
	t.Errorf("theme %s, seed %d: no verdict: %v", tr.Theme, tr.Seed, err)
	return Result{}, false
}

// TestSoak plays trials of all themes in turn for MILLRACE_SOAK, from its seed on.
func TestSoak(t *testing.T) {
	long := duration(t, "MILLRACE_SOAK", 0)
	if long == 0 {
		t.Skip("MILLRACE_SOAK says for how long; see make soak")
	}
	seed := testseed.Of(t)
	r := newRunner(t)
	count := map[Verdict]int{}
	began := time.Now()
	for n := uint64(0); time.Since(began) < long; n++ {
		for _, theme := range chosen() {
			if time.Since(began) > long {
				break
			}
			t.Run(fmt.Sprint(theme.Name, "-", seed+n), func(t *testing.T) {
				if res, ok := verdict(t, r, theme.New(seed+n)); ok {
					count[res.Verdict]++
				}
			})
		}
		t.Logf("after %s: %v", time.Since(began).Round(time.Second), count)
	}
}

// tail is the end of an output.
func tail(s string) string { return s[max(0, len(s)-3000):] }

// What is written is read as it was.
func TestTrialFile(t *testing.T) {
	for _, theme := range Themes() {
		seeds := uint64(20)
		if theme.Name == "long-statements" {
			seeds = 2 // of some megabytes each
		}
		for seed := range seeds {
			tr := theme.New(seed)
			var b, again bytes.Buffer
			if err := tr.Write(&b); err != nil {
				t.Fatal(err)
			}
			back, err := Read(bytes.NewReader(b.Bytes()))
			if err != nil {
				t.Fatal(err)
			}
			if err := back.Write(&again); err != nil {
				t.Fatal(err)
			}
			if b.String() != again.String() || len(back.Events) != len(tr.Events) {
				t.Fatalf("%s\nis read as\n%s", &b, &again)
			}
		}
	}
}

// Events that belong together are left out together.
func TestShrink(t *testing.T) {
	var tr Trial
	for i := range 40 {
		e := Event{Do: Pause, Process: i}
		if i == 7 || i == 31 {
			e.With = 1
		}
		tr.Events = append(tr.Events, e)
	}
	has := func(t Trial, n int) bool {
		return slices.ContainsFunc(t.Events, func(e Event) bool { return e.Process == n })
	}
	s := Shrinker{Fails: func(_ context.Context, x Trial) bool {
		if has(x, 7) != has(x, 31) {
			t.Error("a part of what belongs together is left out")
		}
		return has(x, 7) && has(x, 20)
	}}
	if got := s.Shrink(t.Context(), tr); len(got.Events) != 3 {
		t.Errorf("%d events are left", len(got.Events))
	}
}
