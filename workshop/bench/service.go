package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/millrace/millrace/internal/mongo"
)

// ServiceOptions shape the scenario service; the zero value is complete.
type ServiceOptions struct {
	// Definitions are all jobs that the service knows, Jobs those of them that
	// follow; 0 is 1000 and 100. Of the others one half is paused, and the other
	// waits for a worker that is not there.
	Definitions, Jobs int
	// Workers are the processes that run the jobs, beside serve; 0 is 2.
	Workers int
	// Requests are sent each second to the API, one kind after the other; 0 is 50.
	Requests float64
	// Writes are those a second to the source of each job, where it is written; 0
	// is 3.
	Writes float64
}

const maxDefinitions = 100_000

func (o ServiceOptions) complete() (ServiceOptions, error) {
	o.Definitions, o.Jobs, o.Workers = cmp.Or(o.Definitions, 1000), cmp.Or(o.Jobs, 100), cmp.Or(o.Workers, 2)
	o.Requests, o.Writes = cmp.Or(o.Requests, 50), cmp.Or(o.Writes, 3)
	switch {
	case o.Jobs < 1 || o.Definitions < o.Jobs || o.Definitions > maxDefinitions:
		return o, fmt.Errorf("%d definitions with %d jobs that follow cannot be measured; a job has a definition, and there are up to %d", o.Definitions, o.Jobs, maxDefinitions)
	case o.Workers < 1 || o.Workers > 50:
		return o, fmt.Errorf("%d workers cannot be measured; use 1 to 50", o.Workers)
	case o.Requests < 1 || o.Requests > 10_000 || o.Writes <= 0 || o.Writes > 1000:
		return o, errors.New("requests have to be from 1 to 10000 a second, and writes of a job above 0 and up to 1000")
	}
	return o, nil
}

// The figures of the scenario service.
const (
	allFollow    = "all follow s"
	workersMB    = "workers MB"
	eachMB       = "MB a job"
	serveMB      = "serve MB"
	workersShare = coreShare + "workers"
	serveShare   = coreShare + "serve"
	eachShare    = coreShare + "a job"
	writeRate    = "writes/s"
	inTime       = "requests/s"
)

// What the service is meant to hold.
const (
	goalLatency = 50.0 // ms, the 99th percentile
	goalMemory  = 12.0 // MB of the workers for a job that follows
	goalShare   = 0.3  // % of a core for a job that has nothing to do
)

// The contenders of jobs.
const (
	nothingRuns = "no job runs"
	jobsIdle    = "idle"
	jobsWritten = "lightly written"
)

// serving is the experiment of the service of many jobs.
type serving struct{}

func (serving) run(ctx context.Context, b *bench, s scenario) error {
	o, err := b.o.Service.complete()
	if err != nil {
		return err
	}
	if b.o.Servers.given() {
		return mongo.WithHint(errors.New("this measurement makes a database for each job, which is not done to given clusters"),
			"run it without --source-uri and --target-uri")
	}
	return b.onServers(ctx, s, followed(990), func(st *site) (err error) {
		f := &fleet{bench: b, st: st, o: o, pace: b.o.Scale.Duration}
		defer func() { err = errors.Join(err, f.stop(ctx)) }()
		b.say("%s: loading %d databases", s.name, o.Jobs)
		if err := f.load(ctx); err != nil {
			return err
		}
		if err := b.compete(ctx, st, f.jobsCase(s), f.lives()); err != nil {
			return err
		}
		b.judge((*Case).judgeJobs)
		for _, written := range []bool{false, true} {
			if err := b.compete(ctx, st, f.apiCase(s, written), f.requests(written)); err != nil {
				return err
			}
			b.judge((*Case).judgeAPI)
		}
		return nil
	})
}

// judge adds to the last case how its figures stand to what is meant to be held.
func (b *bench) judge(by func(*Case) []string) {
	c := &b.report.Cases[len(b.report.Cases)-1]
	c.Notes = append(c.Notes, by(c)...)
}

// jobsCase is what jobs cost that follow.
func (f *fleet) jobsCase(s scenario) Case {
	return Case{
		Scenario: s.name, Variant: "jobs", Unit: "jobs", Count: f.o.Jobs, Ceiling: "none; the workers and serve with all definitions while no job runs are measured first",
		RatioOf: eachShare,
		Columns: []string{allFollow, workersMB, eachMB, serveMB, workersShare, serveShare, eachShare, writeRate},
		Work: fmt.Sprintf("%s definitions, %d of which follow a database each of %d collections with %d documents, all of one source to one target, in %d workers; others: a half paused, a half waiting for a label that no worker has; each for %s",
			grouped(int64(f.o.Definitions)), f.o.Jobs, jobCollections, jobDocs, f.o.Workers, f.pace),
	}
}

// lives are what happens to the service, in this order.
func (f *fleet) lives() []contender {
	return []contender{
		{name: nothingRuns, kind: KindReference, how: "millrace serve --no-worker; millrace worker", prepare: f.anew, run: f.rest},
		{name: jobsIdle, kind: KindMillrace, how: fmt.Sprintf("the same with %d jobs, made at once; until all follow, and then with nothing written", f.o.Jobs),
			prepare: f.follow, run: f.restFollowing, check: f.arrived},
		{name: jobsWritten, kind: KindMillrace, how: fmt.Sprintf("the same while %g documents a second of each job are updated", f.o.Writes),
			prepare: nothing, run: f.whileWritten(f.rest), check: f.arrived},
	}
}

// nothing is to be done before.
func nothing(context.Context) error { return nil }

// judgeJobs says how the cost of a job stands to what it is meant to be.
func (c *Case) judgeJobs() []string {
	var notes []string
	for _, name := range []string{jobsIdle, jobsWritten} {
		v := c.contender(name).Values
		notes = append(notes, verdict(name+", memory of the workers for a job", v[eachMB], goalMemory, "MB"))
		if name == jobsIdle {
			notes = append(notes, verdict(name+", processor of workers and serve for a job", v[eachShare], goalShare, "% of a core"))
		}
	}
	return append(notes, "MB a job: resident memory of the workers, less what they have while no job runs, divided by the jobs; a median over the time",
		"% of a core a job: processor time of workers and serve, divided by the jobs; that without jobs is not taken off")
}

// apiCase is how long the API takes to answer.
func (f *fleet) apiCase(s scenario, written bool) Case {
	variant, meanwhile := "api", "that have nothing to do"
	if written {
		variant, meanwhile = "api-written", "that are lightly written"
	}
	return Case{
		Scenario: s.name, Variant: variant, Unit: "requests", RatioOf: p99, Ceiling: s.ceiling,
		Columns: []string{"of ceiling", p50, p99, pMax, inTime, serveShare},
		Work: fmt.Sprintf("%g requests a second for %s, with %s definitions and %d jobs %s; timed from when a request is due until the reply is read",
			f.o.Requests, f.pace, grouped(int64(f.o.Definitions)), f.o.Jobs, meanwhile),
	}
}

// judgeAPI says how the latency stands to what it is meant to be.
func (c *Case) judgeAPI() []string {
	var notes []string
	for i := range c.Contenders {
		if x := &c.Contenders[i]; x.Kind == KindMillrace {
			notes = append(notes, verdict(x.Name+", p99", x.Values[p99], goalLatency, "ms"))
		}
	}
	return notes
}

// verdict says how a figure stands to the one below which it is meant to be.
func verdict(what string, s Stat, below float64, unit string) string {
	word := "held"
	if s.Median >= below {
		word = "missed"
	}
	return fmt.Sprintf("%s: %s %s (%s-%s), meant to be below %g: %s", what, figure(s.Median), unit, figure(s.Min), figure(s.Max), below, word)
}

// until waits for something that is seen by looking, for a few minutes.
func until(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	const patience = 10 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%s are over", patience))
	defer cancel()
	for {
		if ok, err := holds(ctx); ok || err != nil && ctx.Err() == nil {
			return err
		}
		if !tick(ctx, 200*time.Millisecond) {
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		}
	}
}
