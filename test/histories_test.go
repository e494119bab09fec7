package test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/state/deadletter"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/history"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

// The parts of a history, around a job.
const (
	before    = iota // the job
	copying          // the copy, held back
	between          // the copy goes on, indexes are built, the changes meanwhile are applied
	following        // and then the cut-over
	parts
)

// histories is how many histories TestHistories runs by default.
const histories = 8

// TestHistories runs random histories on the source before, during and after
// the copy, several jobs side by side. MILLRACE_TEST_HISTORIES says how many from each
// seed on. One that fails is written to a file and shrunk for MILLRACE_TEST_SHRINK (2m); MILLRACE_TEST_HISTORY is such
// a file, to be run again (and shrunk if MILLRACE_TEST_SHRINK says so).
func TestHistories(t *testing.T) {
	if name := os.Getenv("MILLRACE_TEST_HISTORY"); name != "" {
		h, err := history.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		if os.Getenv("MILLRACE_TEST_SHRINK") == "" {
			t.Setenv("MILLRACE_TEST_SHRINK", "0s")
		}
		runHistory(t, "replayed", h)
		return
	}
	n := int(number(t, "MILLRACE_TEST_HISTORIES", histories))
	room := make(chan struct{}, 3)
	for i, first := range testseed.All(t) {
		for j := range n {
			seed := first + uint64(j)
			t.Run(fmt.Sprint(seed), func(t *testing.T) {
				t.Parallel()
				room <- struct{}{}
				defer func() { <-room }()
				runHistory(t, fmt.Sprint("history", i*n+j), generate(seed))
			})
		}
	}
}

// number is a number from the environment.
func number(t *testing.T, name string, otherwise uint64) uint64 {
	t.Helper()
	s := os.Getenv(name)
	if s == "" {
		return otherwise
	}
	n, err := strconv.ParseUint(s, 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// generate makes a history for the clusters at hand.
func generate(seed uint64) history.History {
	silent := kit.Streamed() && !reportsSchema()
	return history.Generate(history.Options{
		Seed: seed, Writers: 1 + int(seed%4), Parts: []int{20 + int(seed%30), 20 + int(seed%70), 40, 80 + int(seed%90)},
		Streamed: kit.Streamed(), Silent: silent,
		Since: func(major, minor int) bool { // those streams have no time series, which 5.0 brings
			return shared.sourceVer.AtLeast(major, minor) && shared.targetVer.AtLeast(major, minor) && (!silent || major < 5)
		},
	})
}

// runHistory plays a history. If it fails, what is left of it by shrinking is
// printed, and how to run it again.
func runHistory(t *testing.T, base string, h history.History) {
	t.Helper()
	p := newPlayer(t, base, waitLimit)
	err := p.play(h)
	s := p.stats
	t.Logf("seed %d: %d steps, %d of them refused %v, %d left out; job %+v, free %t; %d operations, %d folded, %d parked",
		h.Seed, s.Done, s.Refusals(), s.Refused, s.Left, h.Job, h.Free, p.follow.Operations, p.follow.Folded, p.follow.Parked)
	if err == nil {
		return
	}
	t.Errorf("seed %d: %v\n%s", h.Seed, err, saved(h))
	if os.Getenv("MILLRACE_TEST_SHRINK") != "0s" {
		small, tried := shrink(t, base, h, err)
		var lines strings.Builder
		for _, s := range small.Steps {
			fmt.Fprintf(&lines, "%.2000s\n", s)
		}
		t.Errorf("seed %d: %d of %d steps fail as well (%d tried):\n%s%s", h.Seed, len(small.Steps), len(h.Steps), tried,
			&lines, saved(small))
	}
}

// saved writes a history to a file that stays, and reports how to run it.
func saved(h history.History) string {
	f, err := os.CreateTemp("", fmt.Sprintf("millrace-history-%d-%d-*", h.Seed, len(h.Steps)))
	if err != nil {
		return err.Error()
	}
	if err := errors.Join(h.Write(f), f.Close()); err != nil {
		return err.Error()
	}
	return fmt.Sprintf("again: MILLRACE_TEST_HISTORY=%s go test -count=1 -run TestHistories$ ./test", f.Name())
}

// shrink looks for fewer steps that fail in the same way, when they are run one
// after the other.
func shrink(t *testing.T, base string, h history.History, err error) (history.History, int) {
	t.Helper()
	long := 2 * time.Minute
	if s := os.Getenv("MILLRACE_TEST_SHRINK"); s != "" {
		var bad error
		if long, bad = time.ParseDuration(s); bad != nil {
			t.Fatal(bad)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	h.Free = false
	var n atomic.Int64
	s := history.Shrinker{Parallel: 3, Fails: func(ctx context.Context, steps []history.Step) bool {
		p := newPlayer(t, fmt.Sprint(base, "s", n.Add(1)), 20*time.Second)
		p.ctx = ctx
		again := h
		again.Steps = steps
		return wayOf(p.play(again)) == wayOf(err)
	}}
	h.Steps = s.Shrink(ctx, h.Steps)
	return h, s.Tried
}

// wayOf is the way in which a history failed.
func wayOf(err error) string {
	var diffs differences
	var failed jobError
	switch {
	case err == nil:
		return ""
	case errors.As(err, &diffs):
		return "differs"
	case errors.As(err, &failed):
		return "job"
	}
	return "source"
}

// differences are those that the comparison found.
type differences []Difference

func (d differences) Error() string {
	var lines []string
	for _, diff := range d {
		lines = append(lines, diff.String())
	}
	return strings.Join(lines, "\n")
}

// jobError is what ended the job, or that it does not go on.
type jobError struct{ error }

// player plays histories around a job.
type player struct {
	t         *testing.T
	ctx       context.Context
	base      string
	waitLimit time.Duration
	spec      job.Spec
	job       *running
	stats     history.Stats
	follow    job.FollowStatus
}

func newPlayer(t *testing.T, base string, waitLimit time.Duration) *player {
	return &player{t: t, ctx: t.Context(), base: base, waitLimit: waitLimit}
}

// play runs a history from its beginning and compares the clusters at the end.
func (p *player) play(h history.History) (err error) {
	p.dropAll()
	defer p.dropAll()
	defer func() {
		if p.job != nil {
			p.job.stop()
		}
	}()
	p.spec = job.Spec{Job: newJob(p.base),
		Rules: transform.Config{Include: []string{p.base, p.base + "-*"}, Exclude: p.named(h.Job.Exclude),
			Rename: p.named(h.Job.Rename), Filter: p.named(h.Job.Filter), Fields: p.named(h.Job.Fields),
			SoftDelete: p.named(h.Job.SoftDelete), History: p.named(h.Job.History)}, Partitions: h.Job.Partitions,
		Readers: h.Job.Readers, Writers: h.Job.Writers, Limits: pace.Rates{Docs: h.Job.Docs, Bytes: h.Job.Bytes}}
	if history.MayFail(h.Job.Fields) {
		p.spec.OnConflict = deadletter.Skip
	}
	r := &history.Runner{Client: shared.sourceDB, Database: p.base, Hook: p.hook}
	defer func() {
		err = errors.Join(err, r.Close(context.WithoutCancel(p.ctx)))
		p.stats = r.Stats()
	}()
	for part := range parts {
		if err := p.prepare(part, h.Job.Held); err != nil {
			return jobError{err}
		}
		var steps []history.Step
		for _, s := range h.Steps {
			if s.Part == part {
				steps = append(steps, s)
			}
		}
		run := r.Ordered
		if h.Free {
			run = r.Free
		}
		if err := run(p.ctx, steps); err != nil {
			return err
		}
	}
	if err := r.Close(p.ctx); err != nil {
		return err
	}
	if err := p.limit(pace.Rates{}); err != nil {
		return err
	}
	err = p.job.finalize(p.ctx)
	p.follow = p.job.Status().Follow
	if err != nil && p.job.err != nil {
		return jobError{err}
	}
	return p.compare()
}

// prepare brings the job to where a part begins.
func (p *player) prepare(part int, held bool) error {
	switch part {
	case copying:
		if err := p.start(); err != nil {
			return err
		}
		return p.job.reach(job.PhaseCopying)
	case between:
		return p.limit(pace.Rates{})
	case following:
		if err := p.job.reach(job.PhaseFollowing); err != nil {
			return err
		}
		if held {
			return p.limit(pace.Rates{Docs: 1})
		}
	}
	return nil
}

// limit changes the rates of the job, also for its next start.
func (p *player) limit(r pace.Rates) error {
	p.spec.Limits = r
	return p.job.SetLimits(p.ctx, r)
}

// named puts the database's name into rules.
func (p *player) named(rules []string) (out []string) {
	for _, r := range rules {
		out = append(out, strings.ReplaceAll(r, "DB", p.base))
	}
	return out
}

func (p *player) start() (err error) {
	if p.job, err = startJob(p.t, p.spec); err == nil {
		p.job.waitLimit = p.waitLimit
	}
	return err
}

// hook does the steps that are not for the source.
func (p *player) hook(ctx context.Context, s history.Step) error {
	switch {
	case s.Do == history.Target:
		return history.Command(ctx, shared.targetDB, p.base, s)
	case s.Do == history.Restart && p.job != nil:
		select {
		case <-p.job.done: // by itself
			return jobError{p.job.failed(p.job.err)}
		default:
			p.job.stop()
		}
		if err := p.start(); err != nil {
			return jobError{err}
		}
	}
	return nil
}

func (p *player) compare() error {
	ours := func(ns string) bool { return strings.HasPrefix(ns, p.base+".") || strings.HasPrefix(ns, p.base+"-") }
	diffs, err := Compare(p.ctx, shared.sourceDB, shared.targetDB, CompareOptions{
		Source: func(ns string) bool { return ours(ns) && !excluded(p.spec.Rules.Exclude, ns) },
		Target: ours, Name: newNames(p.spec.Rules.Rename).target, Filter: Filters(p.spec.Rules.Filter),
		Fields: Mappings(p.spec.Rules.Fields), Marked: Marks(p.spec.Rules.SoftDelete), History: p.spec.Rules.History,
	})
	if err == nil && len(diffs) > 0 {
		return differences(diffs)
	}
	return err
}

func (p *player) dropAll() {
	for _, c := range []*mongo.Client{shared.sourceDB, shared.targetDB} {
		for _, db := range history.Databases() {
			_ = c.Database(history.Name(p.base, db)).Drop(context.WithoutCancel(p.ctx))
		}
	}
}

// A step that waits for an open transaction does not hold up the others; one
// that nobody ends is aborted.
func TestHistoryRunsBesideOpenTransactions(t *testing.T) {
	p := newPlayer(t, "beside", waitLimit)
	p.dropAll()
	defer p.dropAll()
	step := func(writer, txn int, do history.Action, cmd ...any) history.Step {
		return history.Step{Writer: writer, Txn: txn, Do: do, Cmd: kit.Raw(d(cmd...))}
	}
	set := func(writer, txn, id int, by string) history.Step {
		return step(writer, txn, history.Run, "update", "c", "updates", a(d("q", d("_id", id), "u", d("$set", d("by", by)))))
	}
	steps := []history.Step{
		step(0, 0, history.Fill, "fill", "c", "from", 0, "to", 10, "pad", 0),
		set(0, 1, 1, "committed"), set(1, 0, 1, "waits"), set(2, 0, 2, "free"), set(1, 0, 2, "waits too"),
		step(0, 1, history.Commit),
		set(0, 2, 3, "aborted"), set(1, 0, 3, "waits"), set(0, 0, 4, "ends the transaction"),
		set(2, 3, 5, "left open"), set(0, 0, 5, "waits"),
		set(1, 4, 6, "refused"), step(1, 4, history.Run, "insert", "c", "documents", a(d("_id", 1))),
		set(1, 4, 7, "left out"), step(1, 4, history.Commit),
	}
	for _, free := range []bool{false, true} {
		r := &history.Runner{Client: shared.sourceDB, Database: "beside"}
		run := r.Ordered
		if free {
			run = r.Free
		}
		if err := errors.Join(run(t.Context(), steps), r.Close(t.Context())); err != nil {
			t.Fatal(err)
		}
		s := r.Stats()
		if free {
			continue // who comes first is not known
		}
		if s.Left != 2 || s.Refusals() != 1 || s.Refused[11000] != 1 {
			t.Errorf("%+v", s)
		}
		for id, by := range map[int]string{1: "waits", 2: "waits too", 3: "waits", 4: "ends the transaction", 5: "waits",
			6: "", 7: ""} {
			var doc struct{ By any }
			if err := shared.sourceDB.Database("beside").Collection("c").FindOne(t.Context(), d("_id", id)).
				Decode(&doc); err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(doc.By); got != by && by != "" || by == "" && got != "0" {
				t.Errorf("document %d was changed by %q, not %q", id, got, by)
			}
		}
	}
}
