package worker_test

import (
	"context"
	"encoding/json"
	"fmt"
	"syscall"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/service/worker"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// TestFiguresByShard: a job between sharded clusters shows what it copies and reads of each
// shard and sends to each router, now and over time; while a shard does not answer it says
// that the others wait for it, and since when.
func TestFiguresByShard(t *testing.T) {
	lab.Nightly(t)
	ctx := t.Context()
	from := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	to := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:1x1"}, Routers: 2})
	// A run counts what it does itself: a lease that is lost would have another one begin.
	b := &bed{T: t, lease: time.Minute, admin: &service.Caller{Name: "test", Role: service.Admin, From: "here"}}
	var err error
	b.source, err = driver.Connect(options.Client().ApplyURI(from.URI()))
	b.ok(err)
	t.Cleanup(func() { _ = b.source.Disconnect(context.Background()) })
	b.nats, err = hub.Embed(ctx, hub.EmbedOptions{Dir: t.TempDir(), Host: "127.0.0.1", Port: -1, Token: "sesame, open up",
		Log: b.log("nats")})
	b.ok(err)
	t.Cleanup(b.nats.Close)
	h, v := b.connect(b.nats.Address())
	b.desk = &operate.Desk{Hub: h, View: v, Now: time.Now}

	names := from.ShardNames()
	b.ok(from.CreateDatabase(ctx, "shop", names[0]))
	b.ok(from.ShardCollection(ctx, "shop.orders", sharded.Sharding{Key: bson.D{{Key: "_id", Value: 1}}}))
	b.ok(from.Split(ctx, "shop.orders", bson.D{{Key: "_id", Value: 1000}}))
	b.ok(from.MoveChunk(ctx, "shop.orders", bson.D{{Key: "_id", Value: 1000}}, names[1]))
	insert := func(first, n int) {
		t.Helper()
		var docs []any
		for i := range n {
			docs = append(docs, bson.D{{Key: "_id", Value: first + i}, {Key: "text", Value: fmt.Sprintf("%0100d", i)}})
		}
		_, err := b.source.Database("shop").Collection("orders").InsertMany(ctx, docs)
		b.ok(err)
	}
	insert(0, 300)
	insert(1000, 700)
	b.work(from.URI(), to.URI(), time.Second)
	b.create("split", "shop", "")
	b.until("split", "following", following)
	insert(300, 20)
	insert(1700, 50)
	// counted once, whatever is read again
	all := b.until("split", "what was read of both shards", func(j *service.Job) bool {
		s := j.Report.Status
		return s != nil && len(s.Shards) == 2 && s.Follow.Operations >= 70 && s.Follow.LagSeconds == 0 &&
			s.Shards[0].LagSeconds >= 0 && s.Shards[1].WindowSeconds >= 0
	}).Report.Status
	if s := all.Shards; s[0].Shard != names[0] || s[0].Docs != 300 || s[1].Docs != 700 || s[0].Changes < 20 ||
		s[1].Changes < 50 || s[1].Bytes < 70_000 || s[0].ChangeBytes < 2000 {
		t.Errorf("%+v", s)
	}
	if r := all.Routers; len(r) != 2 || r[0].Commands == 0 || r[1].Commands == 0 || r[0].Bytes+r[1].Bytes < 100_000 {
		t.Errorf("%+v", r)
	}
	late := from.Shard(names[1]).Members()[0].Pid()
	b.ok(syscall.Kill(late, syscall.SIGSTOP))
	t.Cleanup(func() { _ = syscall.Kill(late, syscall.SIGCONT) })
	go func() { // the router may wait for the shard that does not answer
		_, _ = b.source.Database("shop").Collection("orders").InsertOne(ctx, bson.D{{Key: "_id", Value: 900}})
	}()
	waits := b.until("split", "the wait for a shard", func(j *service.Job) bool {
		if j.Report.Status == nil {
			return false
		}
		held := j.Report.Status.Follow.Holding
		return held != nil && held.Seconds > 2
	}).Report
	if held := waits.Status.Follow.Holding; held.Shard != names[1] ||
		waits.At.Sub(held.Since).Seconds() < held.Seconds-0.5 {
		t.Errorf("%+v at %s", held, waits.At)
	}
	b.ok(syscall.Kill(late, syscall.SIGCONT))
	b.until("split", "what came meanwhile", func(j *service.Job) bool {
		return j.Report.Status != nil && (j.Report.Status.Follow.Holding == nil ||
			j.Report.Status.Follow.Holding.Seconds < 2) && j.Report.Status.Follow.Operations >= 71
	})
	b.figuresOver("split", names)
}

// work is a worker between two clusters.
func (b *bed) work(source, target string, every time.Duration) {
	b.Helper()
	h, v := b.connect(b.nats.Address())
	w := worker.New(worker.Options{Name: "w", Hub: h, View: v, Log: b.log("w"), SpoolDir: b.TempDir(), PointEvery: every,
		Access: config.Access{Secret: func(_, ref string) (string, error) {
			return map[string]string{"env:SOURCE": source, "env:TARGET": target}[ref], nil
		}}})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = w.Run(ctx) }()
	b.Cleanup(func() { cancel(); <-done })
}

// figuresOver checks the points of the job of TestFiguresByShard, as they are written.
func (b *bed) figuresOver(name string, shards []string) {
	b.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(200 * time.Millisecond) {
		got, err := b.desk.Points(b.Context(), b.admin, name,
			service.Period{From: time.Now().Add(-time.Hour), To: time.Now().Add(time.Minute)}, time.Hour)
		b.ok(err)
		var all service.Point
		for i := range got.Points {
			all.Merge(&got.Points[i].Point)
		}
		if len(all.Shards) == 2 && len(all.Routers) == 2 && all.Shards[0].Docs.Sum == 300 && all.Shards[1].Docs.Sum == 700 &&
			all.Shards[1].Name == shards[1] &&
			all.Shards[1].Operations.Sum >= 50 && all.Shards[1].Lag.Known() && all.Shards[0].Window.Known() &&
			all.Routers[0].AppliedBytes.Sum > 0 && all.Routers[1].Operations.Sum > 0 {
			return
		}
		if time.Now().After(end) {
			text, _ := json.Marshal(all)
			b.Fatalf("the points tell of something else: %s", text)
		}
	}
}
