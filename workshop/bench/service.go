package bench

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
)

// ServiceOptions shape the scenario service; the zero value is complete.
type ServiceOptions struct {
	// Definitions are all jobs (0 is 1000), Jobs those that follow (0 is 100); the others are paused or wait.
	Definitions, Jobs int
	Workers           int     // Workers are the processes that run the jobs, beside serve; 0 is 2.
	Requests          float64 // Requests are sent each second to the API, one kind after the other; 0 is 50.
	Writes            float64 // Writes are those a second to the source of each job, where it is written; 0 is 3.
}

const maxDefinitions = 100_000

func (o ServiceOptions) complete() (ServiceOptions, error) {
	o.Definitions, o.Jobs, o.Workers = cmp.Or(o.Definitions, 1000), cmp.Or(o.Jobs, 100), cmp.Or(o.Workers, 2)
	o.Requests, o.Writes = cmp.Or(o.Requests, 50), cmp.Or(o.Writes, 3)
	switch {
	case o.Jobs < 1 || o.Definitions < o.Jobs || o.Definitions > maxDefinitions:
		return o, fmt.Errorf("%d definitions with %d jobs that follow cannot be measured; a job has a definition, and "+
			"there are up to %d", o.Definitions, o.Jobs, maxDefinitions)
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
	sourceShare  = coreShare + "source"
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

type serving struct{}

func (serving) run(ctx context.Context, b *bench, s scenario) error {
	o, err := b.o.Service.complete()
	if err != nil {
		return err
	}
	if b.o.Servers.given() {
		return mongo.WithHint(
			errors.New("this measurement makes a database for each job, which is not done to given clusters"),
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
		b.addNotes((*Case).jobNotes)
		for _, written := range []bool{false, true} {
			if err := b.compete(ctx, st, f.apiCase(s, written), f.requests(written)); err != nil {
				return err
			}
			b.addNotes((*Case).apiNotes)
		}
		return nil
	})
}

// addNotes adds notes that compare the last case with the goals.
func (b *bench) addNotes(by func(*Case) []string) {
	c := &b.report.Cases[len(b.report.Cases)-1]
	c.Notes = append(c.Notes, by(c)...)
}

// jobsCase is what jobs cost that follow.
func (f *fleet) jobsCase(s scenario) Case {
	return Case{
		Scenario: s.name, Variant: "jobs", Unit: "jobs", Count: f.o.Jobs,
		Ceiling: "none; the workers and serve with all definitions while no job runs are measured first",
		RatioOf: eachShare,
		Columns: []string{allFollow, workersMB, eachMB, serveMB, workersShare, serveShare, eachShare, sourceShare, writeRate},
		Work: fmt.Sprintf("%s definitions, %d of which follow a database each of %d collections with %d documents, all of "+
			"one source to one target, in %d workers; others: a half paused, a half waiting for a label that no worker has; "+
			"each for %s", grouped(int64(f.o.Definitions)), f.o.Jobs, jobCollections, jobDocs, f.o.Workers, f.pace),
	}
}

func (f *fleet) lives() []contender {
	return []contender{
		{name: nothingRuns, kind: KindReference, how: "millrace serve --no-worker; millrace worker", prepare: f.anew,
			run: f.rest},
		{name: jobsIdle, kind: KindMillrace,
			how: fmt.Sprintf("the same with %d jobs, made at once; until all follow, and then with nothing written",
				f.o.Jobs),
			prepare: f.follow, run: f.restFollowing, check: f.arrived},
		{name: jobsWritten, kind: KindMillrace,
			how:     fmt.Sprintf("the same while %g documents a second of each job are updated", f.o.Writes),
			prepare: nothing, run: f.whileWritten(f.rest), check: f.arrived},
	}
}

func nothing(context.Context) error { return nil }

// jobNotes compare the cost of a job with the goals.
func (c *Case) jobNotes() []string {
	var notes []string
	for _, name := range []string{jobsIdle, jobsWritten} {
		v := c.contender(name).Values
		notes = append(notes, verdict(name+", memory of the workers for a job", v[eachMB], goalMemory, "MB"))
		if name == jobsIdle {
			notes = append(notes, verdict(name+", processor of workers and serve for a job", v[eachShare], goalShare,
				"% of a core"))
		}
	}
	return append(notes, "MB a job: resident memory of the workers, less what they have while no job runs, divided by "+
		"the jobs; a median over the time",
		"% of a core a job: processor time of workers and serve, divided by the jobs; that without jobs is not taken off")
}

func (f *fleet) apiCase(s scenario, written bool) Case {
	variant, meanwhile := "api", "that have nothing to do"
	if written {
		variant, meanwhile = "api-written", "that are lightly written"
	}
	return Case{
		Scenario: s.name, Variant: variant, Unit: "requests", RatioOf: p99, Ceiling: s.ceiling,
		Columns: []string{"of ceiling", p50, p99, pMax, inTime, serveShare},
		Work: fmt.Sprintf("%g requests a second for %s, with %s definitions and %d jobs %s; timed from when a request is "+
			"due until the reply is read", f.o.Requests, f.pace, grouped(int64(f.o.Definitions)), f.o.Jobs, meanwhile),
	}
}

// apiNotes compare the latency with the goal.
func (c *Case) apiNotes() []string {
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
	return fmt.Sprintf("%s: %s %s (%s-%s), meant to be below %g: %s", what, figure(s.Median), unit, figure(s.Min),
		figure(s.Max), below, word)
}

// until waits for something that is seen by looking, for a few minutes.
func until(ctx context.Context, what string, holds func(context.Context) (bool, error)) error {
	const most = 10 * time.Minute
	ctx, cancel := context.WithTimeoutCause(ctx, most, fmt.Errorf("%s are over", most))
	defer cancel()
	err := await(ctx, 200*time.Millisecond, func() (bool, error) { return holds(ctx) })
	if ctx.Err() != nil {
		return fmt.Errorf("wait until %s: %w", what, err)
	}
	return err
}

const (
	jobCollections = 3
	jobDocs        = 100              // in each
	jobDocSize     = 300              // bytes
	atOnce         = 8                // how many things are done at a time where nothing is measured.
	writers        = 4                // writers send the writes of all jobs, so that one that takes long holds up few.
	lastWrite      = 30 * time.Second // how long the end waits for a write that is under way.
)

// definitionName is the name of the definition of a number, from 0, and of its database.
func definitionName(i int) string { return fmt.Sprintf("%s-%05d", dataDB, i) }

// jobName is the name of job i, from 0, that follows. They are spread over all definitions.
func (f *fleet) jobName(i int) string { return definitionName(f.place(i)) }

// place is the number of a job among all definitions.
func (f *fleet) place(i int) int { return i * f.o.Definitions / f.o.Jobs }

// eachJob does something for each job, a few at a time.
func (f *fleet) eachJob(ctx context.Context, do func(ctx context.Context, name string) error) error {
	return each(ctx, f.o.Jobs, func(ctx context.Context, i int) error { return do(ctx, f.jobName(i)) })
}

// each does something with the numbers below n, a few at a time.
func each(ctx context.Context, n int, do func(ctx context.Context, i int) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i := range n {
		g.Go(func() error { return do(ctx, i) })
	}
	return g.Wait()
}

func (f *fleet) load(ctx context.Context) error {
	noise := newNoise()
	return f.eachJob(ctx, func(ctx context.Context, name string) error {
		for c := range jobCollections {
			docs := bson.A{}
			for i := range jobDocs {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(0)},
					{Key: "pad", Value: bson.Binary{Data: noise[i*jobDocSize:][:jobDocSize]}}})
			}
			if _, err := f.st.source.direct.Command(ctx, name,
				bson.D{{Key: "insert", Value: collection(c)}, {Key: "documents", Value: docs}}); err != nil {
				return fmt.Errorf("load %s.%s: %w", name, collection(c), err)
			}
		}
		return nil
	})
}

// anew starts the service from nothing, with all definitions that do not follow.
func (f *fleet) anew(ctx context.Context) error {
	if err := f.stop(ctx); err != nil {
		return err
	}
	f.busy = false
	if err := f.st.target.drop(ctx); err != nil {
		return err
	}
	err := f.eachJob(ctx, func(ctx context.Context, name string) error {
		if _, err := f.st.target.direct.Command(ctx, name, bson.D{{Key: "dropDatabase", Value: 1}}); err != nil {
			return fmt.Errorf("drop %s: %w", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := f.start(ctx); err != nil {
		return err
	}
	runs := map[int]bool{}
	for i := range f.o.Jobs {
		runs[f.place(i)] = true
	}
	return each(ctx, f.o.Definitions, func(ctx context.Context, i int) error {
		if runs[i] {
			return nil
		}
		n := newJob{Name: definitionName(i), Paused: i%2 == 0}
		if !n.Paused {
			n.Labels = map[string]string{"host": "nowhere"}
		}
		return f.define(ctx, n)
	})
}

type newJob struct {
	Name     string            `json:"name"`
	Settings any               `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
	Paused   bool              `json:"paused,omitempty"`
}

func (f *fleet) define(ctx context.Context, n newJob) error {
	n.Settings = map[string]any{"source": "env:SOURCE", "target": "env:TARGET", "include": []string{n.Name + ".*"}}
	return f.ask(ctx, http.MethodPost, pathJobs, n, &struct{}{})
}

func (f *fleet) follow(ctx context.Context) error {
	began := time.Now()
	if err := f.eachJob(ctx,
		func(ctx context.Context, name string) error { return f.define(ctx, newJob{Name: name}) }); err != nil {
		return err
	}
	err := f.await(ctx, "all jobs follow", func(ctx context.Context) (bool, error) {
		n, err := f.following(ctx)
		return n == f.o.Jobs, err
	})
	f.took, f.busy = time.Since(began), err == nil
	return err
}

// following is how many jobs follow. One that has failed is an error.
func (f *fleet) following(ctx context.Context) (n int, err error) {
	err = f.pages(ctx, func(p *jobsPage) error {
		for _, j := range p.Jobs {
			if j.State == "failed" {
				return fmt.Errorf("job %s has failed: %s (%s)", j.Name, j.Error, j.Hint)
			}
			if j.State == "running" && j.Phase == "following" {
				n++
			}
		}
		return nil
	})
	return n, err
}

// restFollowing is rest, which also tells how long it took until all followed.
func (f *fleet) restFollowing(ctx context.Context, m *meter) error {
	if err := f.rest(ctx, m); err != nil {
		return err
	}
	m.value(allFollow, f.took.Seconds())
	return nil
}

// whileWritten does something while documents of all jobs are updated.
func (f *fleet) whileWritten(do func(context.Context, *meter) error) func(context.Context, *meter) error {
	return func(ctx context.Context, m *meter) error {
		began := time.Now()
		writing, stop := context.WithCancel(ctx)
		defer stop()
		var done atomic.Int64
		g, gctx := errgroup.WithContext(writing)
		for w := range writers {
			g.Go(func() error { return f.write(gctx, w, began, &done) })
		}
		g.Go(func() error {
			defer stop()
			err := do(gctx, m)
			m.value(writeRate, per(float64(done.Load()), time.Since(began).Seconds()))
			return err
		})
		return g.Wait()
	}
}

// write sends every so many-th write when it is due, until ctx ends: to one job after the other.
func (f *fleet) write(ctx context.Context, first int, began time.Time, done *atomic.Int64) error {
	rate := f.o.Writes * float64(f.o.Jobs)
	for n := first; ; n += writers {
		due := began.Add(time.Duration(float64(n) / rate * float64(time.Second)))
		if !tick(ctx, max(time.Until(due), 0)) {
			return nil
		}
		name, turn := f.jobName(n%f.o.Jobs), n/f.o.Jobs
		// One that is under way is waited for: it is on the source before what is compared.
		last, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastWrite)
		_, err := f.st.source.direct.Command(last, name,
			bson.D{{Key: "update", Value: collection(turn % jobCollections)}, {Key: "updates", Value: bson.A{bson.D{
				{Key: "q", Value: bson.D{{Key: "_id", Value: turn % jobDocs}}},
				{Key: "u", Value: bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: int64(1)}}}}},
			}}}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: 1}}}})
		cancel()
		if err != nil {
			return fmt.Errorf("write to %s: %w", name, err)
		}
		done.Add(1)
	}
}

// arrived says whether each job brings to the target what is written last, and has brought what was written before.
func (f *fleet) arrived(ctx context.Context) error {
	mark := bson.NewObjectID()
	return f.eachJob(ctx, func(ctx context.Context, name string) error {
		last := bson.D{{Key: "_id", Value: mark}}
		if _, err := f.st.source.direct.Client.Database(name).Collection(markers).InsertOne(ctx, last); err != nil {
			return fmt.Errorf("write a marker to %s: %w", name, err)
		}
		err := f.await(ctx, "the last write of "+name+" is on the target", func(ctx context.Context) (bool, error) {
			n, err := f.st.target.direct.Client.Database(name).Collection(markers).CountDocuments(ctx, last)
			return n == 1, err
		})
		if err != nil {
			return err
		}
		return f.same(ctx, name)
	})
}

// same compares how often the documents of a database were updated.
func (f *fleet) same(ctx context.Context, name string) error {
	for c := range jobCollections {
		var sums [2]bson.Raw
		for i, s := range []*side{f.st.source, f.st.target} {
			raw, err := s.direct.Command(ctx, name,
				bson.D{{Key: "aggregate", Value: collection(c)}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{
					bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil},
						{Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}},
						{Key: "n", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}}}})
			if err != nil {
				return fmt.Errorf("sum up %s.%s of %s: %w", name, collection(c), s.Address(), err)
			}
			sums[i] = raw.Lookup("cursor", "firstBatch", "0").Document()
		}
		if docs, _ := sums[0].Lookup("docs").AsInt64OK(); docs != jobDocs || string(sums[0]) != string(sums[1]) {
			return fmt.Errorf("%s.%s differs: source %s, target %s", name, collection(c), sums[0], sums[1])
		}
	}
	return nil
}

type jobsPage struct {
	Jobs []struct {
		Name, State, Phase, Error, Hint string
	}
	Next string
}
