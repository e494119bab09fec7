package console

import (
	"encoding/json"
	"fmt"
	"html"
	"math"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// past writes points of a job up to now, but for a time in which no worker had it, and
// some entries of its log.
func (r *rig) past(uid string) {
	r.t.Helper()
	now := time.Now().UTC()
	add := func(every time.Duration, i int, p *service.Point) {
		if err := r.hub.Records.AddPoint(r.t.Context(), uid, fmt.Sprintf("%s-%s-%d", uid, every, i), every, p); err != nil {
			r.t.Fatal(err)
		}
	}
	for i := range 360 {
		at := now.Add(-time.Hour + time.Duration(i)*10*time.Second)
		if i >= 150 && i < 180 {
			continue
		}
		wave := 1 + math.Sin(float64(i)/20)/3
		n := func(v float64) service.Amount { return service.NewAmount(int64(v*wave*10), 10) }
		p := &service.Point{From: at, To: at.Add(10 * time.Second), Seconds: 10, Operations: n(830), AppliedBytes: n(740_000),
			Lag: service.NewRange(2*wave, 10), Window: service.NewRange(90_000-float64(i), 10),
			CPU: service.NewRange(18*wave, 10), Memory: service.NewRange(46e6*wave, 10)}
		if i < 120 {
			p.Docs, p.Bytes, p.Operations, p.AppliedBytes, p.Lag = n(41_000), n(45e6), service.Amount{}, service.Amount{},
				service.Range{}
		}
		add(10*time.Second, i, p)
	}
	texts := []string{"taken by worker worker-1", "the copy has begun", "the copy has ended: 48000000 documents, 52.0 GB",
		"it follows"}
	for i, text := range texts {
		e := &service.Entry{At: now.Add(time.Duration(i-4) * 15 * time.Minute), Kind: service.KindEvent, Level: "info",
			Text: text, Worker: "worker-1"}
		if err := r.hub.Records.AddEntry(r.t.Context(), uid, fmt.Sprint(uid, i), e); err != nil {
			r.t.Fatal(err)
		}
	}
	e := &service.Entry{At: now, Kind: service.KindLog, Level: "warn", Text: "interrupted; trying again from the last " +
		"checkpoint", Worker: "worker-1", Fields: []service.Field{{Name: "error", Value: "connection reset"}}}
	if err := r.hub.Records.AddEntry(r.t.Context(), uid, uid+"warn", e); err != nil {
		r.t.Fatal(err)
	}
}

// TestPast: a job's page has its curves, with a gap where nobody had the job, the same as
// a table, and its log page by page; no text of others acts there.
func TestPast(t *testing.T) {
	r := newRig(t)
	r.running("shop.a", status())
	r.running("bank.a", status())
	r.past("u-shop.a")
	const evil = "<script>alert(1)</script>\x1b[2J\u202e"
	for i := range maxEntries {
		e := &service.Entry{At: time.Now(), Kind: service.KindLog, Level: "info", Text: fmt.Sprint("line ", i, evil),
			Worker: evil, Fields: []service.Field{{Name: evil, Value: evil}}, Lost: 3}
		if err := r.hub.Records.AddEntry(t.Context(), "u-shop.a", fmt.Sprint("e", i), e); err != nil {
			t.Fatal(err)
		}
	}
	b := r.browser("t-view")
	_, page := b.get("/jobs/shop.a")
	want(t, page, "Lag behind the source", "The last hour as a table", `aria-current="true">hour`, "line 49&lt;script&gt;",
		"3 entries before this one were lost", "24.9 h")
	if strings.Contains(page, "<script>alert") || strings.ContainsAny(page, "\u202e\x1b") ||
		strings.Contains(page, "style=") {
		t.Error("hostile text, or a style that the policy forbids, on the page")
	}
	shown := chartData(t, page)
	if len(shown) != len(charts()) {
		t.Fatalf("%d charts", len(shown))
	}
	known, gaps := 0, 0
	for i, v := range shown[4].Series[0].Mean {
		if v != nil {
			known++
		} else if i > 0 {
			gaps++
		}
	}
	if known != 330 || gaps != 1 || shown[4].Unit != "percent" {
		t.Errorf("the processor has %d values and %d gaps in %s", known, gaps, shown[4].Unit)
	}
	older := regexp.MustCompile(`href="(/jobs/shop\.a\?before=\d+#log)">Older`).FindStringSubmatch(page)
	if older == nil {
		t.Fatal("no older entries")
	}
	_, page = b.get(strings.TrimSuffix(older[1], "#log"))
	want(t, page, "<b><bdi>it follows</bdi></b>", "connection reset", "Newest", "taken by worker worker-1")
	_, page = b.get("/jobs/shop.a?kind=event&span=day&q=orders")
	if want(t, page, "it follows", `aria-current="true">day`, `aria-current="true">events`,
		`kind=event&amp;q=orders&amp;span=month#curves`); strings.Contains(page, "line 49") {
		t.Error("a line of the log among the events")
	}
	for _, path := range []string{"/jobs/shop.a?span=%3Cscript%3E&kind=%3Cscript%3E&before=x", "/jobs/shop.a?span=month"} {
		if code, page := b.get(path); code != 200 || !strings.Contains(page, "Over time") ||
			strings.Contains(page, "cannot be read") {
			t.Errorf("%s: %d", path, code)
		}
	}
	_, page = r.browser("t-admin").get("/jobs/bank.a")
	want(t, page, "not known", "Over time")
	if strings.Contains(page, "it follows") {
		t.Error("another job's log")
	}
}

// shownData is the data of a chart as the script reads it.
type shownData struct {
	Unit     string
	From, To int64
	At       []int64
	Series   []struct {
		Name              string
		Mean, Least, Most []*float64
	}
}

// chartData reads the charts of a page.
func chartData(t *testing.T, page string) (list []shownData) {
	t.Helper()
	for _, m := range regexp.MustCompile(`data-chart="([^"]*)"`).FindAllStringSubmatch(page, -1) {
		var one shownData
		if err := json.Unmarshal([]byte(html.UnescapeString(m[1])), &one); err != nil {
			t.Fatalf("%v: %s", err, m[1])
		}
		list = append(list, one)
	}
	return list
}

// TestCurve: lines have gaps where points are missing, and bands where points are of longer spans.
func TestCurve(t *testing.T) {
	begin := time.Date(2026, 1, 2, 3, 0, 0, 0, time.UTC)
	var points []service.Bucket
	for _, minute := range []int{0, 1, 2, 10, 20, 21} {
		at := begin.Add(time.Duration(minute) * time.Minute)
		points = append(points, service.Bucket{Start: at,
			Point: service.Point{From: at, To: at.Add(time.Minute), Seconds: 60, Lag: service.NewRange(float64(minute), 60)}})
	}
	ch := charts()[2]
	shown := ch.show(points, begin, begin.Add(time.Hour), time.Minute)
	if !strings.HasPrefix(shown.Text, "21 s last, from 0.0 s to 21 s") {
		t.Errorf("%s", shown.Text)
	}
	const mean = `"mean":[0,1,2,null,10,null,20,21]`
	if !strings.Contains(shown.Data, mean) || !strings.Contains(shown.Data, `"most":[0,1,2,null`) {
		t.Errorf("no %s in %s", mean, shown.Data)
	}
	if fine := ch.show(points, begin, begin.Add(time.Hour), service.PointEvery); strings.Contains(fine.Data, "most") {
		t.Errorf("a band over single points: %s", fine.Data)
	}
}
