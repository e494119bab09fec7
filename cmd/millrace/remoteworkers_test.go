package main

import (
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestWorkers: workers are listed and drained; --wait returns when the worker has no job.
func TestWorkers(t *testing.T) {
	b := newServiceBench(t)
	began := time.Now().UTC()
	present := func(jobs ...string) {
		if err := b.hub.Workers.Present(t.Context(), &service.Worker{Name: "w1", Host: "h\x1b[31m", Version: "v1",
			Labels: map[string]string{"dc": "east"}, Jobs: append([]string{}, jobs...), StartedAt: began,
			At: time.Now().UTC()}); err != nil {
			t.Error(err)
		}
	}
	b.expect(0, "workers list", "the service has no worker")
	present("a")
	b.until(func() bool { return len(b.view.Workers()) == 1 })
	b.expect(0, "workers list", "┌", "w1", "takes jobs", "dc=east")
	b.expect(2, "workers drain --worker none", "there is no worker")
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !b.view.Draining("w1", began) {
			time.Sleep(10 * time.Millisecond)
		}
		present()
	}()
	b.expect(0, "workers drain --worker w1 --wait", "w1: drained")
	<-done
	b.until(func() bool { return len(b.view.Workers()[0].Jobs) == 0 })
	b.expect(0, "workers list", "draining")
	b.expect(0, "workers resume --worker w1", "w1: takes jobs")
	b.until(func() bool { return !b.view.Draining("w1", began) }) // a wish takes a moment to reach the view
	b.expect(0, "workers list --output json", `"draining": false`)
}
