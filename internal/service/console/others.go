package console

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

const (
	// maxTrail bounds the entries of the audit trail on a page, maxPast the alerts that are over.
	maxTrail = 100
	maxPast  = 100
	// trailPart entries of the audit trail are read at once, trailParts times for one page.
	trailPart  = 1000
	trailParts = 20
)

// filter chooses alerts, or entries of the audit trail. An empty field chooses all.
type filter struct {
	Job, Who, What, From, To string

	from, to time.Time
}

// parseMoment reads a time of a form; an empty one is zero.
func parseMoment(value string) (at time.Time, err error) {
	if value == "" {
		return at, nil
	}
	if at, err = time.Parse("2006-01-02T15:04", value); err != nil {
		err = said{http.StatusUnprocessableEntity, fmt.Sprintf("%.40q is not a time", value),
			"write it as 2026-01-31T15:04, in UTC"}
	}
	return at, err
}

func filterOf(q url.Values) (f filter, err error) {
	text := func(key string) string { return strings.TrimSpace(q.Get(key)) }
	f = filter{Job: text("job"), Who: text("who"), What: text("what"), From: text("from"), To: text("to")}
	if f.from, err = parseMoment(f.From); err == nil {
		f.to, err = parseMoment(f.To)
	}
	return f, err
}

func holds(text, part string) bool {
	return strings.Contains(strings.ToLower(text), strings.ToLower(part))
}

func (f *filter) during(begin, end time.Time) bool {
	return (f.to.IsZero() || !begin.After(f.to)) && !end.Before(f.from)
}

type alerts struct {
	filter
	Kinds         []service.AlertKind
	Present, Past []service.Alert
	More          bool // past ones are left out
}

func (c *console) alerts(w http.ResponseWriter, r *http.Request, v *visit) error {
	f, err := filterOf(r.URL.Query())
	page := alerts{filter: f, Kinds: service.AlertKinds()}
	if err == nil {
		wanted := func(list []service.Alert) []service.Alert {
			return slices.DeleteFunc(list, func(a service.Alert) bool {
				end := c.Now()
				if a.ResolvedAt != nil {
					end = *a.ResolvedAt
				}
				return !holds(a.Job, f.Job) || f.What != "" && string(a.Kind) != f.What || !f.during(a.FiredAt, end)
			})
		}
		present, past := c.Desk.Alerts(v.who, hub.MaxPastAlerts)
		page.Present, page.Past = wanted(present), wanted(past)
		page.More = len(page.Past) > maxPast
		page.Past = page.Past[:min(len(page.Past), maxPast)]
	}
	show := c.page(v, "alerts", "Alerts", page)
	if err == nil {
		show.Live = r.URL.RequestURI()
	}
	return c.say(w, "alerts", show, c.outcome(err))
}

func (c *console) outcome(err error) said {
	if err == nil {
		return fine()
	}
	return c.refusal(err)
}

func (c *console) create(w http.ResponseWriter, r *http.Request, v *visit) error {
	d := draft{Name: strings.TrimSpace(r.PostForm.Get("name")), Labels: r.PostForm.Get("labels"),
		Paused: r.PostForm.Get("paused") != "", Edit: r.PostForm.Get("edit") != "",
		Settings: strings.ReplaceAll(r.PostForm.Get("settings"), "\r\n", "\n")}
	r, cancel := patient(w, r)
	defer cancel()
	labels, err := service.ParseLabels(strings.Fields(d.Labels))
	if err != nil {
		err = said{http.StatusUnprocessableEntity, err.Error(), "separate labels by spaces"}
	} else {
		d.Drops, err = c.start(r, v, service.Definition{Name: d.Name, Settings: d.Settings, Labels: labels,
			Desired: service.Desired{Paused: d.Paused}}, d.Edit)
	}
	if err == nil {
		return lead(w, r, "/jobs/"+d.Name)
	}
	p := newJob{wizard: newWizard(), Plain: d, Open: true}
	p.Name, p.Edit = d.Name, d.Edit
	return c.showNew(w, v, p, err)
}

func (c *console) workers(w http.ResponseWriter, r *http.Request, v *visit) error {
	list := slices.Clone(c.Desk.Workers())
	for i := range list {
		list[i].Jobs = slices.DeleteFunc(slices.Clone(list[i].Jobs), func(name string) bool { return !v.who.Sees(name) })
	}
	f := c.page(v, "workers", "Workers", workersPage{list, v.who.Role.May(service.Admin) && len(v.who.Jobs) == 0})
	f.Live = r.URL.RequestURI()
	return c.show(w, "workers", f)
}

// workersPage are workers; Drains says that the visitor may drain them.
type workersPage struct {
	Workers []service.Worker
	Drains  bool
}

func (c *console) drain(drain bool) handler {
	return func(w http.ResponseWriter, r *http.Request, v *visit) error {
		if _, err := c.Desk.Drain(r.Context(), v.who, r.PathValue("name"), drain); err != nil {
			return err
		}
		return lead(w, r, "/workers")
	}
}

type entry struct {
	service.Change
	Differs string
}

type trail struct {
	filter
	Entries []entry
	Older   string // the address of the next page, "" for none
}

func (c *console) audit(w http.ResponseWriter, r *http.Request, v *visit) error {
	q := r.URL.Query()
	f, err := filterOf(q)
	t := trail{filter: f}
	before, wrong := strconv.ParseUint(cmp.Or(q.Get("before"), "0"), 10, 64)
	if wrong != nil {
		err = said{http.StatusBadRequest, "the position in the audit trail is not valid", "open the page again"}
	}
	if err == nil && f.Job != "" && service.CheckName(f.Job) != nil {
		err = said{http.StatusUnprocessableEntity, fmt.Sprintf("%.100q is not a name of a job", f.Job),
			"give the complete name"}
	}
	if err == nil {
		var next uint64
		if t.Entries, next, err = c.entries(r, v, &f, before); next > 0 {
			q.Set("before", strconv.FormatUint(next, 10))
			t.Older = "/audit?" + q.Encode()
		}
	}
	return c.say(w, "audit", c.page(v, "audit", "Audit trail", t), c.outcome(err))
}

// entries returns those of the audit trail that a filter chooses, and where the next page begins, 0 at the end.
func (c *console) entries(r *http.Request, v *visit, f *filter, before uint64) (list []entry, next uint64, _ error) {
	for range trailParts {
		part, err := c.Desk.Trail(r.Context(), v.who, f.Job, service.Page{Before: before, Limit: trailPart})
		if err != nil {
			return nil, 0, err
		}
		for _, change := range part {
			switch {
			case change.At.Before(f.from):
				return list, 0, nil
			case len(list) == maxTrail:
				return list, before, nil
			case holds(change.Who, f.Who) && holds(change.What, f.What) && f.during(change.At, change.At):
				list = append(list, entry{change, difference(change.Before, change.After)})
			}
			before = change.Seq
		}
		if len(part) < trailPart {
			return list, 0, nil
		}
	}
	return list, before, nil
}

func difference(before, after *service.Desired) string {
	if after == nil {
		return ""
	}
	was := service.Desired{}
	if before != nil {
		was = *before
	}
	var parts []string
	add := func(name string, a, b any) {
		if x, y := fmt.Sprint(a), fmt.Sprint(b); x != y {
			parts = append(parts, name+": "+x+" → "+y)
		}
	}
	add("paused", was.Paused, after.Paused)
	add("finalize", was.Finalize, after.Finalize)
	add("removed", was.Removed, after.Removed)
	add("try", was.Try, after.Try)
	if after.Limits != nil && (was.Limits == nil || *was.Limits != *after.Limits) {
		parts = append(parts, fmt.Sprintf("limits: %d documents, %d bytes per second", after.Limits.Docs, after.Limits.Bytes))
	}
	if after.Loads != nil && (was.Loads == nil || *was.Loads != *after.Loads) {
		parts = append(parts, fmt.Sprintf("loads: source %s, target %s", after.Loads.Source, after.Loads.Target))
	}
	switch {
	case after.Verify != nil && (was.Verify == nil || *was.Verify != *after.Verify):
		parts = append(parts, fmt.Sprintf("verified every %d hours, %g%%, %d bytes per second", after.Verify.EveryHours,
			after.Verify.SamplePercent, after.Verify.BytesPerSecond))
	case after.Verify == nil && was.Verify != nil:
		parts = append(parts, "verified on request only")
	}
	return strings.Join(parts, "; ")
}

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
