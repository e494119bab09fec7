package job_test

import (
	"context"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/transform"
)

func TestRoundTrips(t *testing.T) {
	const rtt = 40 * time.Millisecond
	src, dst := lab.ForTest(t, lab.Options{}), lab.ForTest(t, lab.Options{Proxy: true})
	srcDB := connect(t, src.URI())
	insert(t, srcDB, "wan", 1000)
	proxy := dst.Members()[0].Proxy()
	proxy.Latency(rtt, 0)
	watch := proxy.Watch()
	began := time.Now()
	j, err := job.Open(t.Context(), job.Spec{Source: src.URI(), Target: dst.URI(), Mode: job.ModeAll,
		Until: "caught-up", OnExisting: job.ExistingFail, Rules: transform.Config{Include: []string{"wan.*"}}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := j.Plan(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := j.Run(context.Background()); err != nil {
		t.Fatal(err)
	}
	j.Close()
	t.Log(time.Since(began))
	all := watch.Exchanges()
	for _, e := range all {
		t.Log(e)
	}
	t.Log(len(all), len(lab.InTurn(all)))
}
