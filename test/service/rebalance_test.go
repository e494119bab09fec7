package service

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
)

const rebalanced = 9

// TestRebalance: nine jobs run on the only worker. Two more start, and jobs move to them one by one while all
// are written to. A worker that takes a job and the one that gave it away are killed. In the end each worker has
// three jobs, each job one owner, and the targets are the same.
func TestRebalance(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := prepareBed(t, nil)
	b.lease = "4s"
	start(b)
	stop := b.writeAll()
	b.startWorker("w1")
	for i := range rebalanced {
		name := fmt.Sprintf("d%d", i)
		_, made, err := b.desk.Create(t.Context(), &b.admin, service.Definition{Name: name,
			Settings: "source: env:SRC\ntarget: env:DST\ninclude: ['" + name + ".*']\n"})
		b.made(made, err)
	}
	b.until("nine jobs on one worker", func() bool { return slices.Equal(b.loads(), []int{rebalanced}) })
	b.startWorker("w2")
	b.startWorker("w3")

	moved := func(from string, n int) {
		b.until(fmt.Sprintf("worker %s runs no more than %d jobs", from, n), func() bool {
			held := 0
			for i := range rebalanced {
				if j := b.desk.View.Job(fmt.Sprintf("d%d", i)); j != nil && j.Lease != nil && j.Lease.Worker == from {
					held++
				}
			}
			return held <= n
		})
	}
	moved("w1", rebalanced-1)
	b.workers["w2"].Kill() // it is about to take the job
	b.startWorker("w2")
	moved("w1", rebalanced-3)
	b.workers["w1"].Kill() // it has just given one away
	b.startWorker("w1")
	b.until("three jobs on each worker", func() bool { return slices.Equal(b.loads(), []int{3, 3, 3}) })
	for i := range rebalanced {
		name := fmt.Sprintf("d%d", i)
		b.until("the owner of "+name, func() bool {
			j := b.desk.View.Job(name)
			return j != nil && j.Lease != nil && b.ownerOnTarget(name) == b.workers[j.Lease.Worker].Pid()
		})
	}
	stop()
	moves := 0
	for i := range rebalanced {
		name := fmt.Sprintf("d%d", i)
		list, err := b.desk.Hub.Records.Entries(t.Context(), b.desk.View.Job(name).Definition.UID, service.KindEvent,
			service.Page{Limit: 100})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			if strings.Contains(e.Text, "takes it over") {
				moves++
				t.Log(name, e.Text)
			}
		}
		if _, err := b.desk.Finalize(t.Context(), &b.admin, name, true); err != nil {
			t.Fatal(err)
		}
	}
	if moves < 3 || moves > 2*rebalanced {
		t.Errorf("%d moves", moves)
	}
	b.until("the end of all jobs", func() bool {
		return !slices.ContainsFunc(b.desk.View.Jobs(), func(j service.Job) bool { return j.State() != service.Finished })
	})
	diffs, err := test.Compare(t.Context(), b.sc, b.dc, test.CompareOptions{})
	if err != nil || len(diffs) > 0 {
		t.Errorf("%v, %v", diffs, err)
	}
	b.endAll()
}

// loads is how many jobs follow on each worker that has some, the most first.
func (b *bed) loads() []int {
	of := map[string]int{}
	for _, j := range b.desk.View.Jobs() {
		if j.Live() && j.State() == service.Running && j.Report.Status.Phase == job.PhaseFollowing {
			of[j.Lease.Worker]++
		}
	}
	var all []int
	for _, n := range of {
		all = append(all, n)
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all
}

// writeAll writes to the databases of all jobs until the returned function is called.
func (b *bed) writeAll() (stop func()) {
	b.Helper()
	for i := range rebalanced {
		if err := b.sc.Database(fmt.Sprintf("d%d", i)).CreateCollection(b.Context(), "c"); err != nil {
			b.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	var writer sync.WaitGroup
	writer.Go(func() {
		for i := 0; pace.Pause(ctx, 10*time.Millisecond) == nil; i++ {
			_, err := b.sc.Database(fmt.Sprintf("d%d", i%rebalanced)).Collection("c").
				InsertOne(context.WithoutCancel(ctx), bson.D{{Key: "_id", Value: i}})
			if err != nil {
				b.Error(err)
				return
			}
		}
	})
	stop = func() { cancel(); writer.Wait() }
	b.Cleanup(stop)
	return stop
}
