package bench

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"
)

const (
	jobCollections = 3
	jobDocs        = 100 // in each
	jobDocSize     = 300 // bytes
	// atOnce is how many things are done at a time where nothing is measured.
	atOnce = 8
	// writers send the writes of all jobs, so that one that takes long holds up few.
	writers = 4
	// lastWrite is how long the end waits for a write that is under way.
	lastWrite = 30 * time.Second
)

// definitionName is the name of the definition of a number, from 0, and of its database.
func definitionName(i int) string { return fmt.Sprintf("%s-%05d", dataDB, i) }

// jobName is the name of the job of a number, from 0, that follows. They are spread
// over all definitions, so that each page of a list has some.
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

// load fills the database of each job on the source.
func (f *fleet) load(ctx context.Context) error {
	noise := newNoise()
	return f.eachJob(ctx, func(ctx context.Context, name string) error {
		for c := range jobCollections {
			docs := bson.A{}
			for i := range jobDocs {
				docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: int64(0)}, {Key: "pad", Value: bson.Binary{Data: noise[i*jobDocSize:][:jobDocSize]}}})
			}
			if _, err := f.st.source.direct.Command(ctx, name, bson.D{{Key: "insert", Value: collection(c)}, {Key: "documents", Value: docs}}); err != nil {
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

// newJob is the body that makes a job.
type newJob struct {
	Name     string            `json:"name"`
	Settings any               `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
	Paused   bool              `json:"paused,omitempty"`
}

// define makes a job of the database of its name.
func (f *fleet) define(ctx context.Context, n newJob) error {
	n.Settings = map[string]any{"source": "env:SOURCE", "target": "env:TARGET", "include": []string{n.Name + ".*"}}
	return f.ask(ctx, http.MethodPost, pathJobs, n, &struct{}{})
}

// follow makes the jobs that follow, and waits until all do.
func (f *fleet) follow(ctx context.Context) error {
	began := time.Now()
	if err := f.eachJob(ctx, func(ctx context.Context, name string) error { return f.define(ctx, newJob{Name: name}) }); err != nil {
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

// write sends every so many-th write when it is due, until ctx ends: to one job after
// the other.
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
		_, err := f.st.source.direct.Command(last, name, bson.D{{Key: "update", Value: collection(turn % jobCollections)}, {Key: "updates", Value: bson.A{bson.D{
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

// arrived says whether each job brings to the target what is written last, and has
// brought what was written before.
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
			raw, err := s.direct.Command(ctx, name, bson.D{{Key: "aggregate", Value: collection(c)}, {Key: "cursor", Value: bson.D{}}, {Key: "pipeline", Value: bson.A{
				bson.D{{Key: "$group", Value: bson.D{{Key: "_id", Value: nil}, {Key: "docs", Value: bson.D{{Key: "$sum", Value: 1}}}, {Key: "n", Value: bson.D{{Key: "$sum", Value: "$n"}}}}}}}}})
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

// jobsPage is a page of the list of jobs.
type jobsPage struct {
	Jobs []struct {
		Name, State, Phase, Error, Hint string
	}
	Next string
}
