package service

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/api"
	"github.com/millrace/millrace/test/clock"
	"github.com/millrace/millrace/workshop/lab"
)

// TestClockJumps: the wall clock of a worker, then that of serve with its NATS, goes an
// hour ahead and back while two jobs run. A worker keeps its jobs by that. One that dies
// while the clock of NATS is ahead loses its jobs all the same once that is right again.
func TestClockJumps(t *testing.T) {
	lab.Nightly(t)
	t.Parallel()
	b := prepareBed(t, nil)
	b.clocks, b.listen = map[string]*clock.Clock{}, fmt.Sprintf("127.0.0.1:%d", lab.PortForTest(t))
	churn, stop := b.twoJobs()
	runs, late := b.runs(), b.late()
	for _, ahead := range []time.Duration{time.Hour, -time.Hour, 0} {
		for _, name := range []string{"w1", "w2"} {
			b.set(name, ahead)
			b.until("a word of "+name+" by its clock", func() bool { return near(b.says(name), ahead) })
			for _, one := range bothJobs() { // longer than a lease lasts, on both sides of it
				b.until("words of "+one, b.words(one, 10))
			}
		}
		b.owned()
	}
	if now := b.runs(); fmt.Sprint(now) != fmt.Sprint(runs) && b.late() == late {
		t.Errorf("jobs were taken again because of a worker's clock: %v, then %v", runs, now)
	}

	b.catchUp(churn)
	b.set("", time.Hour)
	b.until("serve's clock", func() bool { return near(b.serveSays(), time.Hour) })
	b.owned()
	for _, one := range bothJobs() {
		b.until("words of "+one, b.words(one, 10))
	}
	b.owned()
	dead := b.job().Lease.Worker
	b.workers[dead].Kill()
	delete(b.workers, dead)
	b.set("", 0)
	right := time.Now()
	b.until("serve's clock", func() bool { return near(b.serveSays(), 0) })
	b.until("the end of worker "+dead, func() bool { return len(b.desk.View.Workers()) == 1 })
	b.owned()
	b.startWorker(dead)
	b.phase(false, job.PhaseFollowing)
	b.until("points of the job since", func() bool {
		found := false
		last := service.Period{From: time.Now().Add(-time.Hour), To: time.Now()}
		err := b.desk.Hub.Records.PointsOf(t.Context(), b.job().Definition.UID, service.PointEvery, last,
			func(p *service.Point) { found = found || p.From.After(right) })
		return err == nil && found
	})
	churn.Stop()
	stop()
	b.finishBoth()
	t.Logf("%d operations written meanwhile", churn.Operations())
	b.endAll()
}

func (b *bed) set(name string, ahead time.Duration) {
	b.Helper()
	if err := b.clocks[name].Set(ahead); err != nil {
		b.Fatal(err)
	}
}

// near reports that a clock is so far ahead, but for some minutes.
func near(at time.Time, ahead time.Duration) bool {
	return (time.Until(at) - ahead).Abs() < 10*time.Minute
}

// says is what time it is by what a worker said last.
func (b *bed) says(worker string) (at time.Time) {
	for _, w := range b.desk.View.Workers() {
		if w.Name == worker {
			at = w.At
		}
	}
	return at
}

// serveSays is what time it is by serve.
func (b *bed) serveSays() (at time.Time) {
	req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://"+b.listen+api.PathLive, nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return at
	}
	_ = res.Body.Close()
	at, _ = http.ParseTime(res.Header.Get("Date"))
	return at
}

// words is whether so many reports of a job have come since, one a second at most.
func (b *bed) words(name string, n int) func() bool {
	last, seen := time.Time{}, 0
	return func() bool {
		if j := b.desk.View.Job(name); j != nil && j.Report != nil && !j.Report.At.Equal(last) {
			last = j.Report.At
			seen++
		}
		return seen > n
	}
}

// late is how often workers could not renew a lease, as on a machine that is very busy.
func (b *bed) late() (n int) {
	for _, w := range b.workers {
		n += strings.Count(w.Output(), "the lease could not be renewed")
	}
	return n
}

// runs are the runs that have the jobs.
func (b *bed) runs() map[string]string {
	all := map[string]string{}
	for _, name := range bothJobs() {
		if j := b.desk.View.Job(name); j != nil && j.Lease != nil {
			all[name] = j.Lease.Run
		}
	}
	return all
}
