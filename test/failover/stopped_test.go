package failover

import (
	"context"
	"errors"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestStoppedServersAreNamed: the status names what a job waits for, whichever server of two
// sets of two members stops to answer, while it copies and while it follows. A majority needs
// both members, and the job reads the source's secondary.
func TestStoppedServersAreNamed(t *testing.T) {
	t.Parallel()
	lab.NeedServers(t)
	var source, target *lab.Cluster
	var g errgroup.Group
	g.Go(func() error { source = lab.ForTest(t, lab.Options{Topology: "rs:2"}); return nil })
	g.Go(func() error { target = lab.ForTest(t, lab.Options{Topology: "rs:2"}); return nil })
	_ = g.Wait()
	if t.Failed() {
		t.FailNow()
	}
	db := kit.Client(t, source.URI()).Database("d")
	batch := make([]any, 1000)
	for i := range batch {
		batch[i] = bson.D{{Key: "pad", Value: make([]byte, 4000)}}
	}
	for range 30 {
		if _, err := db.Collection("copied").InsertMany(t.Context(), batch); err != nil {
			t.Fatal(err)
		}
	}
	defer keepWriting(t, db.Collection("followed"))()
	bin := test.BuildMillrace(t)
	start := func(include string, more ...string) *test.Process {
		return test.Start(t, bin, append([]string{"sync", "--source", source.URI(), "--target", target.URI(), "--until",
			"never", "--read-preference", "secondary", "--include", include, "--allow-missing"}, more...)...)
	}
	in := func(phase job.Phase, p *test.Process) func() job.Status {
		kit.Until(t, string("phase "+phase), func() bool { return p.Status(t.Context()).Phase == phase })
		return func() job.Status { return p.Status(t.Context()) }
	}
	// Side by side, so that both lose each server at once.
	follows := start("d.followed")
	following := in(job.PhaseFollowing, follows)
	copies := start("d.copied", "--max-rate-bytes", "1MB", "--readers", "1", "--writers", "1")
	copying := in(job.PhaseCopying, copies)
	for name, c := range map[string]*lab.Cluster{"source": source, "target": target} {
		for i, m := range c.Members() {
			primary, err := c.Primary(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			test.StopServer(t, name+map[bool]string{true: "'s primary", false: "'s secondary"}[i == primary], m.Pid(),
				copying, following)
		}
	}
	if phase := copying().Phase; phase != job.PhaseCopying {
		t.Errorf("the copy was over: the job is in phase %s", phase)
	}
	copies.Interrupt()
	follows.Interrupt()
}

// keepWriting inserts a document now and then until end is called. While a server is
// stopped, inserts may fail.
func keepWriting(t *testing.T, c *mongo.Collection) (end func()) {
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		for ctx.Err() == nil {
			writing, enough := context.WithTimeout(ctx, time.Second)
			if _, err := c.InsertOne(writing, bson.D{}); err != nil && !mongo.IsTimeout(err) &&
				!errors.Is(err, context.Canceled) {
				t.Logf("write to the source: %v", err)
			}
			enough()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}
