package console

import (
	"cmp"
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/service"
)

const (
	// maxEntries bounds the entries of a job's log on a page.
	maxEntries = 50
	// recordTime bounds reading the past. A page comes without it then.
	recordTime = 5 * time.Second
)

type period struct {
	Name, Address string
	Chosen        bool

	back, step, rows time.Duration // rows are the steps of the table
}

func periods() []period {
	const day = 24 * time.Hour
	return []period{
		{Name: "hour", back: time.Hour, step: service.PointEvery, rows: 5 * time.Minute},
		{Name: "day", back: day, step: 5 * time.Minute, rows: time.Hour},
		{Name: "month", back: 30 * day, step: time.Hour, rows: day},
	}
}

type past struct {
	Job     string
	Periods []period
	Charts  []shownChart
	Tables  []pastTable
	Unread  bool // the figures could not be read
	Period  string

	Entries   []service.Entry
	Kinds     []link
	Kind      string
	Older     string // the address of the next page
	Newest    string // the address of the first page, if this is another
	UnreadLog bool
}

type pastTable struct {
	Title string
	Heads []string
	Rows  []pastRow
}

type pastRow struct {
	At     time.Time
	Values []string
}

func (c *console) past(r *http.Request, v *visit, name string) *past {
	ctx, cancel := context.WithTimeout(r.Context(), recordTime)
	defer cancel()
	q := r.URL.Query()
	p := &past{Job: name}
	p.curves(ctx, c, v, q)
	p.log(ctx, c, v, q)
	return p
}

func (p *past) address(q url.Values, name, value, at string) string {
	to := url.Values{}
	for key := range q {
		if key != "done" && key != "before" && key != "n" {
			to.Set(key, q.Get(key))
		}
	}
	if to.Set(name, value); value == "" {
		to.Del(name)
	}
	return "/jobs/" + url.PathEscape(p.Job) + "?" + to.Encode() + at
}

func (p *past) curves(ctx context.Context, c *console, v *visit, q url.Values) {
	p.Periods = periods()
	chosen := &p.Periods[0]
	for i := range p.Periods {
		one := &p.Periods[i]
		if one.Address = p.address(q, "span", one.Name, "#curves"); one.Name == q.Get("span") {
			chosen = one
		}
	}
	chosen.Chosen, p.Period = true, chosen.Name
	to := c.Now().UTC()
	got, err := c.Desk.Points(ctx, v.who, p.Job, service.Period{From: to.Add(-chosen.back), To: to}, chosen.step)
	if err != nil {
		p.Unread = true
		c.Log.Warn("the figures of a job cannot be read", "job", p.Job, "error", err)
		return
	}
	parts, from := splitOf(got.Points), begin(got.Points, got.From, got.To)
	rows := service.NewBuckets(chosen.rows)
	for i := range parts.points {
		rows.Add(&parts.points[i].Point)
	}
	list := rows.List()
	slices.Reverse(list)
	for _, group := range []struct {
		title  string
		charts []chart
	}{{"", charts()}, {"by shard", parts.byShard()}, {"by router", parts.byRouter()}} {
		if len(group.charts) == 0 {
			continue
		}
		t := pastTable{Title: group.title}
		for _, b := range list {
			t.Rows = append(t.Rows, pastRow{At: b.Start})
		}
		for _, ch := range group.charts {
			p.Charts = append(p.Charts, ch.show(parts.points, from, got.To, got.Step))
			t.add(&ch, list)
		}
		p.Tables = append(p.Tables, t)
	}
}

func (t *pastTable) add(ch *chart, list []service.Bucket) {
	for _, cu := range ch.curves {
		head := strings.TrimPrefix(strings.TrimPrefix(ch.ID, "shard-"), "router-")
		if len(ch.curves) > 1 || ch.parts {
			head += " " + cu.Name
		}
		t.Heads = append(t.Heads, head)
		for i := range t.Rows {
			text := "–"
			if r := cu.at(&list[i]); r.Known() {
				text = ch.unit.text(r.Mean)
			}
			t.Rows[i].Values = append(t.Rows[i].Values, text)
		}
	}
}

func (p *past) log(ctx context.Context, c *console, v *visit, q url.Values) {
	kind := service.EntryKind(q.Get("kind"))
	for _, k := range []link{{"all", ""}, {"events", string(service.KindEvent)}, {"log", string(service.KindLog)}} {
		if k.Address == string(kind) {
			p.Kind = k.Name
		}
		p.Kinds = append(p.Kinds, link{k.Name, p.address(q, "kind", k.Address, "#log")})
	}
	if p.Kind == "" {
		p.Kind, kind = "all", ""
	}
	before, _ := strconv.ParseUint(cmp.Or(q.Get("before"), "0"), 10, 63)
	if before > 0 {
		p.Newest = p.address(q, "before", "", "#log")
	}
	var err error
	if p.Entries, err = c.Desk.Log(ctx, v.who, p.Job, kind, service.Page{Before: before, Limit: maxEntries}); err != nil {
		p.UnreadLog = true
		c.Log.Warn("the log of a job cannot be read", "job", p.Job, "error", err)
		return
	}
	if len(p.Entries) == maxEntries {
		p.Older = p.address(q, "before", strconv.FormatUint(p.Entries[maxEntries-1].Seq, 10), "#log")
	}
}
