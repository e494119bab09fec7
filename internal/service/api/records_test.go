package api

import (
	"fmt"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// TestPoints: figures of the time that is asked for, in steps; where nobody had the job
// there is no point.
func TestPoints(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	now := time.Now().UTC().Truncate(time.Second)
	for i, ago := range []time.Duration{50 * time.Minute, 49 * time.Minute, 10 * time.Minute} {
		p := &service.Point{From: now.Add(-ago), To: now.Add(-ago + service.PointEvery), Seconds: 10,
			Docs: service.NewAmount(int64(100*(i+1)), 10), Lag: service.NewRange(float64(i), 10),
			Window: service.NewRange(-1, 10)}
		if err := r.hub.Records.AddPoint(t.Context(), j.UID, fmt.Sprint(i), service.PointEvery, p); err != nil {
			t.Fatal(err)
		}
	}
	for query, want := range map[string][2]int64{"": {3, 10}, "?last=30m": {1, 10}, "?last=1h&step=1h": {2, 3600},
		"?last=1d": {3, 300}, "?last=30d": {2, 3600},
		"?from=" + now.Add(-time.Hour).Format(time.RFC3339) + "&to=" + now.Add(-30*time.Minute).Format(time.RFC3339): {2, 10},
		"?from=1970-01-01T00:00:00Z&to=1970-01-02T00:00:00Z": {0,
			300}} {
		a := r.ask("viewer", "GET", PathJobs+"/shop-a/points"+query, "")
		got := into[Points](t, a)
		// An hour or five minutes may begin between the points.
		if n := int64(len(got.Points)); n > want[0] || n < want[0]-1 || want[1] == 10 && n != want[0] ||
			got.StepSeconds != want[1] {
			t.Errorf("%s: %d points in steps of %d: %s", query, n, got.StepSeconds, a.body)
		}
	}
	all := into[Points](t, r.ask("viewer", "GET", PathJobs+"/shop-a/points", ""))
	first := all.Points[0]
	if first.Docs != (Amount{100, 10, 10, 10}) || first.LagSeconds == nil || first.WindowSeconds != nil ||
		first.At.After(now.Add(-50*time.Minute)) {
		t.Errorf("%+v", first)
	}
	for _, bad := range []string{"?last=1", "?last=0h", "?last=-1h", "?last=1w", "?last=1hh", "?last=h",
		"?last=1h&from=2026-01-02T15:04:05Z", "?from=yesterday", "?step=5s", "?last=30d&step=10s", "?last=99999999999d",
		"?from=2026-01-02T15:04:05Z&to=2026-01-02T15:04:05Z", "?from=9999-01-02T15:04:05Z", "?step=", "?x=1"} {
		if a := r.ask("viewer", "GET", PathJobs+"/shop-a/points"+bad, ""); a.code != 400 ||
			a.failure(t).Code != operate.Invalid {
			t.Errorf("%s: %d %s", bad, a.code, a.body)
		}
	}
	if a := r.ask("viewer", "GET", PathJobs+"/none/points", ""); a.code != 404 {
		t.Errorf("%d %s", a.code, a.body)
	}
	p := into[Points](t, r.ask("viewer", "GET", PathJobs+"/shop-a/points?last=1h&step=1m", ""))
	if len(p.Points) != 3 || p.StepSeconds != 60 {
		t.Errorf("%+v", p)
	}
}

// TestLog: page by page, by kind; hostile texts do not act.
func TestLog(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	const evil = "<script>alert(1)</script>\x1b[2J\u202eabc\u2028\x00"
	for i := range 5 {
		e := &service.Entry{At: time.Now().UTC(), Kind: service.KindLog, Level: "info", Text: fmt.Sprint(i), Worker: "w1"}
		if i == 2 {
			e.Kind, e.Text, e.Fields = service.KindEvent, evil, []service.Field{{Name: evil, Value: evil}}
		}
		if err := r.hub.Records.AddEntry(t.Context(), j.UID, fmt.Sprint(i), e); err != nil {
			t.Fatal(err)
		}
	}
	page := into[Log](t, r.ask("viewer", "GET", PathJobs+"/shop-a/log?limit=3", ""))
	rest := into[Log](t, r.ask("viewer", "GET", PathJobs+"/shop-a/log?limit=3&before="+fmt.Sprint(page.Next), ""))
	if len(page.Entries) != 3 || page.Entries[0].Text != "4" || page.Entries[2].Text != evil || page.Next == 0 ||
		len(rest.Entries) != 2 || rest.Entries[0].Text != "1" || rest.Next != 0 {
		t.Errorf("%+v, %+v", page, rest)
	}
	a := r.ask("viewer", "GET", PathJobs+"/shop-a/log?kind=event", "")
	if got := into[Log](t, a); len(got.Entries) != 1 || strings.ContainsAny(string(a.body), "<>\x1b\u202e\u2028\x00") {
		t.Errorf("%q", a.body)
	}
	for _, bad := range []string{"?kind=", "?kind=all", "?before=x", "?before=-1", "?limit=0", "?after=1"} {
		if a := r.ask("viewer", "GET", PathJobs+"/shop-a/log"+bad, ""); a.code != 400 {
			t.Errorf("%s: %d %s", bad, a.code, a.body)
		}
	}
	c := NewClient(r.url, r.tokens["viewer"])
	defer c.Close()
	if l, err := c.Log(t.Context(), "shop-a", service.KindLog, page.Next, 10); err != nil || len(l.Entries) != 2 {
		t.Errorf("%+v, %v", l, err)
	}
	if _, err := c.Log(t.Context(), "../"+url.PathEscape("x"), "", 0, 10); !IsRefusal(err) {
		t.Errorf("%v", err)
	}
}

// TestLogRedacted: viewers do not see values of documents in a job's log, operators do.
func TestLogRedacted(t *testing.T) {
	r := newRig(t)
	j := r.make("shop-a")
	e := &service.Entry{At: time.Now().UTC(), Kind: service.KindLog, Level: "warn",
		Text: "failed: insert in shop.orders, _id 4711", Worker: "w1",
		Fields: []service.Field{{Name: "documentId", Value: "4711"},
			{Name: "error", Value: `E11000 dup key: { mail: "4711" }`}}}
	if err := r.hub.Records.AddEntry(t.Context(), j.UID, "1", e); err != nil {
		t.Fatal(err)
	}
	for role, sees := range map[string]int{"viewer": 0, "operator": 3, "admin": 3} {
		a := r.ask(role, "GET", PathJobs+"/shop-a/log", "")
		if got := into[Log](t, a); len(got.Entries) != 1 || strings.Count(string(a.body), "4711") != sees ||
			!strings.Contains(string(a.body), "failed: insert in shop.orders") {
			t.Errorf("%s: %s", role, a.body)
		}
	}
}
