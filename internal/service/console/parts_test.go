package console

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/progress"
	"github.com/millrace/millrace/internal/service"
)

// evilShard is a name that no shard should have.
const evilShard = "a<script>alert(1)</script>\"\x1b[2J\u202e"

// split writes points of a job of as many shards, two routers, and a shard that is behind.
func (r *rig) split(uid string, shards ...string) {
	r.t.Helper()
	now := time.Now().UTC()
	for i := range 30 {
		at := now.Add(time.Duration(i-30) * 10 * time.Second)
		p := &service.Point{From: at, To: at.Add(10 * time.Second), Seconds: 10, Lag: service.NewRange(40, 10)}
		for n, name := range shards {
			one := service.Point{Name: name, Seconds: 10, Operations: service.NewAmount(int64(1000*(n+1)), 10),
				AppliedBytes: service.NewAmount(int64(50_000*(n+1)), 10),
				Lag:          service.NewRange(0, 10), Window: service.NewRange(7200*float64(n+1), 10)}
			if n == 0 {
				one.Lag = service.NewRange(float64(10*i), 10)
			}
			p.Shards = append(p.Shards, one)
		}
		for n, name := range []string{"router-1:27017", "router-2:27017"} {
			p.Routers = append(p.Routers, service.Point{Name: name, Seconds: 10,
				Operations: service.NewAmount(int64(40*(n+1)), 10), AppliedBytes: service.NewAmount(int64(900_000*(n+1)), 10)})
		}
		if err := r.hub.Records.AddPoint(context.WithoutCancel(r.t.Context()), uid, fmt.Sprint(uid, "-split-", i),
			10*time.Second, p); err != nil {
			r.t.Fatal(err)
		}
	}
}

// splitStatus is that of such a job, whose first shard holds the others up.
func splitStatus(shards ...string) *job.Status {
	st := status()
	st.Phase, st.Follow.Applied = job.PhaseFollowing, "1:1"
	for i, name := range shards {
		st.Shards = append(st.Shards, progress.Shard{Shard: name, Changes: int64(30_000 * (i + 1)), ChangesRate: 100,
			LagSeconds: 0, WindowSeconds: 7200, At: "1700000000:1"})
	}
	st.Shards[0].LagSeconds = 290
	st.Routers = []progress.Router{{Router: "router-1:27017", Commands: 1200, CommandsRate: 4, Bytes: 27e6,
		BytesRate: 90_000}, {Router: "router-2:27017", Commands: 2400}}
	st.Follow.Holding = &job.Holding{Shard: shards[0], Seconds: 290, Since: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC),
		At: "1700000000:1", Undecided: true}
	return st
}

// TestPartsOnPage: the page of a job that is sharded has a line for each shard and router,
// tables of the same, and says which shard the others wait for, since when. Names are
// harmless, and many are shown as others.
func TestPartsOnPage(t *testing.T) {
	r := newRig(t)
	var many []string
	for i := range 12 {
		many = append(many, fmt.Sprintf("shard-%02d", i))
	}
	many[0] = evilShard
	r.running("shop.a", splitStatus(many...))
	r.running("bank.a", status())
	r.split("u-shop.a", many...)
	b := r.browser("t-view")
	_, page := b.get("/jobs/shop.a")
	want(t, page, `id="holding"`, `since <time datetime="2026-01-02T03:04:05Z">2026-01-02 03:04:05</time> UTC`,
		"with a prepared transaction that is not decided yet", "Lag of each shard behind",
		"Bytes sent per second, by router",
		"lag shard-11<", "rate router-2:27017<", "lag others<", "by shard, as a table",
		"by router, as a table", `id="shards"`, `id="routers"`, "&lt;script&gt;")
	if strings.Contains(page, "<script>alert") || strings.ContainsAny(page, "\u202e\x1b") {
		t.Error("hostile text on the page")
	}
	shown := chartData(t, page)
	if len(shown) != len(charts())+6 {
		t.Fatalf("%d charts", len(shown))
	}
	for i, n := range map[int]int{len(charts()): maxLines + 1, len(charts()) + 2: maxLines + 1, len(charts()) + 4: 2} {
		if got := len(shown[i].Series); got != n {
			t.Errorf("chart %d has %d lines, want %d", i, got, n)
		}
	}
	// The shard that is behind did the least, and has a line all the same.
	want(t, page, `\u001b[2J\u202e 5 min last, from 0.0 s to 5 min`)
	_, page = r.browser("t-admin").get("/jobs/bank.a")
	if strings.Contains(page, "by shard") || strings.Contains(page, `id="shards"`) ||
		strings.Contains(page, `id="holding"`) {
		t.Error("shards on the page of a job without any")
	}
}
