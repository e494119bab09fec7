package hub

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestLongTrail: pages of a trail of many entries are read by few requests, of all and
// of a job whose entries are few among many.
func TestLongTrail(t *testing.T) {
	const n, rare = 20_000, 1000
	h := open(t, time.Minute)
	for i := range n { // not one by one: that would take the test's time
		job := "often"
		if i%rare == 7 {
			job = "rare"
		}
		raw, err := encode(&service.Change{What: fmt.Sprint(i), Job: job})
		if err != nil {
			t.Fatal(err)
		}
		if _, err := h.js.PublishAsync(subjectAudit+"."+job, raw); err != nil {
			t.Fatal(err)
		}
		if i%500 == 499 {
			<-h.js.PublishAsyncComplete()
		}
	}
	<-h.js.PublishAsyncComplete()
	before := h.conn.Stats()
	var seen []string
	for next, pages := uint64(0), 0; ; pages++ {
		page, err := h.Audit.Trail(t.Context(), "", service.Page{Before: next, Limit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		if len(page) == 0 {
			break
		}
		for _, c := range page {
			seen = append(seen, c.What)
		}
		next = page[len(page)-1].Seq
	}
	if len(seen) != n || seen[0] != fmt.Sprint(n-1) || seen[n-1] != "0" || seen[n/2] != fmt.Sprint(n-1-n/2) {
		t.Errorf("%d entries, from %s to %s", len(seen), seen[0], seen[len(seen)-1])
	}
	if sent := h.conn.Stats().OutMsgs - before.OutMsgs; sent > 300 {
		t.Errorf("%d requests for %d entries", sent, n)
	}
	before = h.conn.Stats()
	list, err := h.Audit.Trail(t.Context(), "rare", service.Page{Limit: 15})
	if err != nil || len(list) != 15 || list[0].What != fmt.Sprint(n-rare+7) || list[14].What != fmt.Sprint(n-15*rare+7) {
		t.Errorf("%v: %d entries", err, len(list))
	}
	after := h.conn.Stats()
	if in := after.InMsgs - before.InMsgs; in > 100 {
		t.Errorf("%d messages for 15 entries", in)
	}
}

// points writes points of a job as a worker does: one each ten seconds, put together in
// buckets.
func (h *Hub) fill(ctx context.Context, uid string, from time.Time, n int) error {
	longer := map[time.Duration]*service.Buckets{}
	for _, every := range Spans()[1:] {
		longer[every] = service.NewBuckets(every)
	}
	for i := range n {
		at := from.Add(time.Duration(i) * service.PointEvery)
		p := &service.Point{From: at, To: at.Add(service.PointEvery), Seconds: 10, Docs: service.NewAmount(int64(i), 10),
			Lag: service.NewRange(float64(i%7), 10), Window: service.NewRange(-1, 10)}
		if err := h.Records.AddPoint(ctx, uid, fmt.Sprintf("%s-%d", uid, i), service.PointEvery, p); err != nil {
			return err
		}
		for _, b := range longer {
			b.Add(p)
		}
	}
	for every, b := range longer {
		list := b.List()
		for _, one := range list[:len(list)-1] { // the last is not over
			if err := h.Records.AddPoint(ctx, uid, fmt.Sprintf("%s-%s-%s", uid, every, one.Start), every,
				&one.Point); err != nil {
				return err
			}
		}
	}
	return nil
}

// TestPoints: what was done adds up in spans of each length, also where the longer points
// are not written yet; a job's points are its own, and are gone after its removal.
func TestPoints(t *testing.T) {
	h := open(t, time.Minute)
	ctx := t.Context()
	end := time.Now().UTC().Truncate(time.Second)
	const n = 1000 // nearly three hours
	from := end.Add(-n * service.PointEvery)
	var wg sync.WaitGroup
	for _, uid := range []string{"u1", "u2"} {
		wg.Go(func() {
			if err := h.fill(ctx, uid, from, n); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sum := func(uid string, step time.Duration) (total int64, seconds float64, list []service.Bucket) {
		t.Helper()
		list, err := h.Records.Points(ctx, uid, service.Period{From: from, To: end.Add(time.Hour)}, step)
		if err != nil {
			t.Fatal(err)
		}
		for i := range list {
			total, seconds = total+list[i].Docs.Sum, seconds+list[i].Seconds
			if list[i].Window.Known() || list[i].Lag.Least < 0 || list[i].Lag.Most > 6 {
				t.Errorf("%+v", list[i])
			}
		}
		return total, seconds, list
	}
	for _, step := range []time.Duration{10 * time.Second, time.Minute, 5 * time.Minute, 15 * time.Minute, time.Hour,
		24 * time.Hour} {
		total, seconds, list := sum("u1", step)
		if total != n*(n-1)/2 || seconds != n*10 || len(list) > n || len(list) < int(n*service.PointEvery/step) {
			t.Errorf("step %s: %d documents in %.0f seconds, %d points", step, total, seconds, len(list))
		}
	}
	if p, err := h.Records.LastPoint(ctx, "u1", 5*time.Minute); err != nil || p == nil || p.Lag.Most != 6 ||
		p.Docs.Most <= p.Docs.Least {
		t.Errorf("%+v, %v", p, err)
	}
	if p, err := h.Records.LastPoint(ctx, "nobody", time.Hour); err != nil || p != nil {
		t.Errorf("%+v, %v", p, err)
	}
	d := definition("a")
	if err := h.Jobs.Create(ctx, d); err != nil {
		t.Fatal(err)
	}
	if err := h.Jobs.Forget(ctx, d); err != nil {
		t.Fatal(err)
	}
	if total, _, _ := sum("u1", 10*time.Second); total != 0 {
		t.Errorf("%d documents of a job that is forgotten", total)
	}
	if total, _, _ := sum("u2", time.Hour); total != n*(n-1)/2 {
		t.Errorf("the points of another job are gone, but for %d", total)
	}
}

// TestEntries: pages of a job's log have a cursor that stands while more is written; the
// oldest make room for the newest, of one kind not for those of the other.
func TestEntries(t *testing.T) {
	h := open(t, time.Minute)
	ctx := t.Context()
	add := func(uid string, kind service.EntryKind, text string) {
		t.Helper()
		if err := h.Records.AddEntry(ctx, uid, uid+string(kind)+text,
			&service.Entry{Kind: kind, Text: text, At: time.Now()}); err != nil {
			t.Fatal(err)
		}
	}
	texts := func(kind service.EntryKind, before uint64, limit int) (all string, next uint64) {
		t.Helper()
		list, err := h.Records.Entries(ctx, "u1", kind, service.Page{Before: before, Limit: limit})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range list {
			all, next = all+e.Text, e.Seq
		}
		return all, next
	}
	add("u1", service.KindEvent, "a")
	add("u2", service.KindEvent, "x")
	add("u1", service.KindLog, "b")
	add("u1", service.KindLog, "c")
	add("u1", service.KindLog, "c") // once more the same
	all, next := texts("", 0, 2)
	add("u1", service.KindLog, "d")
	if rest, _ := texts("", next, 2); all != "cb" || rest != "a" {
		t.Errorf("pages %s, %s", all, rest)
	}
	if all, _ := texts(service.KindEvent, 0, 10); all != "a" {
		t.Errorf("events: %s", all)
	}
	for i := range maxOfJob + 10 {
		if _, err := h.js.PublishAsync(subjectEvents+".log.u1",
			fmt.Appendf(nil, `{"kind":"log","text":"%d"}`, i)); err != nil {
			t.Fatal(err)
		}
	}
	<-h.js.PublishAsyncComplete()
	list, err := h.Records.Entries(ctx, "u1", "", service.Page{Limit: 3 * maxOfJob})
	if err != nil || len(list) != maxOfJob+1 || list[len(list)-1].Text != "a" || list[len(list)-2].Text != "10" {
		t.Errorf("%d entries, %v", len(list), err)
	}
	if err := h.Records.AddEntry(ctx, "u1", "large", &service.Entry{Text: strings.Repeat("x", maxValue)}); err == nil {
		t.Error("an entry of a megabyte is stored")
	}
}

// TestPointsOfAClockThatWasSet: a point whose worker's clock was an hour ahead does not
// hide those that came after it.
func TestPointsOfAClockThatWasSet(t *testing.T) {
	h, now := open(t, time.Minute), time.Now().UTC().Truncate(time.Second)
	for i, ahead := range []time.Duration{-time.Minute, time.Hour, -30 * time.Second} {
		from := now.Add(ahead)
		p := &service.Point{From: from, To: from.Add(10 * time.Second), Seconds: 10}
		if err := h.Records.AddPoint(t.Context(), "u1", fmt.Sprint(i), service.PointEvery, p); err != nil {
			t.Fatal(err)
		}
	}
	var seen []time.Duration
	err := h.Records.PointsOf(t.Context(), "u1", service.PointEvery, service.Period{From: now.Add(-time.Hour), To: now},
		func(p *service.Point) { seen = append(seen, p.From.Sub(now)) })
	if err != nil || fmt.Sprint(seen) != "[-1m0s -30s]" {
		t.Errorf("%v, %v", seen, err)
	}
}
