package service

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/testseed"
)

// bothJobs are the jobs of tests of faults: one whose collections change all the time,
// too, and one of documents alone.
func bothJobs() []string { return []string{"churn", "steady"} }

// slowly is churn with fewer changes: those that come while nobody runs the job, for the
// time of a lease and more, are to be caught up with on a busy machine, too.
func (b *bed) slowly() *test.Churn {
	b.Helper()
	test.LoadChurn(b.T, b.sc.Database("svc"))
	return test.StartChurn(b.T, b.sc.Database("svc"),
		test.ChurnOptions{Seed: testseed.Of(b), SchemaEvery: 2 * time.Second, Pause: 30 * time.Millisecond})
}

// twoJobs starts serve and two workers, which run both jobs while both are written to.
// stop ends the writing to the second.
func (b *bed) twoJobs() (churn *test.Churn, stop func()) {
	b.Helper()
	b.startServe()
	b.connect()
	churn = b.slowly()
	b.startWorker("w1")
	b.startWorker("w2")
	b.create()
	stop = b.steady()
	b.owned()
	return churn, stop
}

// steady fills a database, makes the second job of it, and changes its documents until
// the returned function is called.
func (b *bed) steady() (stop func()) {
	b.Helper()
	const n = 4000
	source := b.sc.Database("steady").Collection("c")
	docs := make([]any, n)
	for i := range docs {
		docs[i] = bson.D{{Key: "_id", Value: i}, {Key: "n", Value: 0}}
	}
	if _, err := source.InsertMany(b.Context(), docs); err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; ctx.Err() == nil; i++ {
			update := bson.D{{Key: "$inc", Value: bson.D{{Key: "n", Value: 1}}}}
			if _, err := source.UpdateOne(context.WithoutCancel(ctx), bson.D{{Key: "_id", Value: i * 13 % n}},
				update); err != nil {
				b.Error(err)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(20 * time.Millisecond):
			}
		}
	})
	stop = func() { cancel(); writer.Wait() }
	b.Cleanup(stop)
	_, made, err := b.desk.Create(b.Context(), &b.admin, service.Definition{Name: "steady",
		Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['steady.*']\nmax-rate-docs: 400\n"})
	b.made(made, err)
	return stop
}

// owned waits until each job has one owner: by its lease, by what all workers say of
// themselves, and on its target.
func (b *bed) owned() {
	b.Helper()
	b.until("one owner of each job", func() bool {
		return !slices.ContainsFunc(bothJobs(), func(name string) bool { return !b.ownedOnce(name) })
	})
}

func (b *bed) ownedOnce(name string) bool {
	j := b.desk.View.Job(name)
	if j == nil || j.Lease == nil || j.State() != service.Running || b.workers[j.Lease.Worker] == nil {
		return false
	}
	workers := b.desk.View.Workers()
	others := slices.ContainsFunc(workers, func(w service.Worker) bool {
		return slices.Contains(w.Jobs, name) != (w.Name == j.Lease.Worker)
	})
	return !others && len(workers) == len(b.workers) && b.ownerOnTarget(name) == b.workers[j.Lease.Worker].Pid()
}

// ownerOnTarget is the process that has a job by what its target says, 0 for none.
func (b *bed) ownerOnTarget(name string) int {
	var doc struct{ Owner struct{ PID int } }
	if err := b.dc.Database("millrace").Collection("jobs").FindOne(b.Context(), bson.D{{Key: "_id", Value: name}}).
		Decode(&doc); err != nil {
		return 0
	}
	return doc.Owner.PID
}

// ownerless waits until nobody has a job, by its lease and on its target.
func (b *bed) ownerless() {
	b.Helper()
	b.until("jobs that nobody runs", func() bool {
		return !slices.ContainsFunc(bothJobs(), func(name string) bool {
			j := b.desk.View.Job(name)
			return j == nil || j.Lease != nil || b.ownerOnTarget(name) != 0
		})
	})
}

// finishBoth finalizes both jobs, and compares.
func (b *bed) finishBoth() {
	b.Helper()
	if _, err := b.desk.Finalize(b.Context(), &b.admin, "steady", true); err != nil {
		b.Fatal(err)
	}
	b.until("the end of steady", func() bool {
		j := b.desk.View.Job("steady")
		return j != nil &&
			j.State() == service.Finished
	})
	b.finish()
}

// ready is what serve replies to whoever asks whether it is ready: 0 for nothing.
func (b *bed) ready() (code int, f api.Failure) {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+b.listen+api.PathReady, nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, f
	}
	defer func() { _ = res.Body.Close() }()
	if err := json.NewDecoder(res.Body).Decode(&f); err != nil {
		return 0, f
	}
	return res.StatusCode, f
}
