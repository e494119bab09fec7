package console

import (
	"cmp"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/format"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

const maxRows = 1000

type bar struct {
	Name, Text string
	Percent    int
}

type row struct {
	Name, State, Cause, Hint, Worker string
	Bars                             []bar
	DocsRate, BytesRate, Lag, ETA    float64 // -1 is unknown
}

type list struct {
	Search, State, Sort string
	Counts              []counted
	Columns             []column
	Rows                []row
	Found, From, Pages  int
	Links               []link
	At                  time.Time
}

type counted struct {
	Name, Address string
	N             int
	Chosen        bool
}

type column struct {
	Name, Address, Sorted string
	Figure                bool
}

type link struct{ Name, Address string }

func rowOf(j *service.Job) row {
	r := row{Name: j.Definition.Name, State: string(j.State()), DocsRate: -1, BytesRate: -1, Lag: -1, ETA: -1}
	s := j.Status()
	r.Bars = bars(s)
	r.Cause, r.Hint = trouble(j)
	if j.Lease != nil {
		r.Worker = j.Lease.Worker
	}
	if !j.Live() {
		return r
	}
	if s.Phase.AfterCopy() {
		r.DocsRate, r.BytesRate, r.Lag = s.Follow.OperationsRate, s.Follow.BytesRate, s.Follow.LagSeconds
	} else {
		r.DocsRate, r.BytesRate, r.ETA = s.Copy.DocsRate, s.Copy.BytesRate, s.Copy.ETASeconds
	}
	return r
}

func trouble(j *service.Job) (cause, hint string) {
	r := j.Known()
	if r == nil {
		return "", ""
	}
	switch state := j.State(); {
	case state == service.Failed:
		return cmp.Or(r.Error, "the worker did not say why"), r.Hint
	case state == service.Running && r.Status != nil && r.Status.Waiting != "":
		return "waits: " + r.Status.Waiting, r.Status.Hint
	}
	return "", ""
}

func bars(s *job.Status) []bar {
	if s == nil {
		return nil
	}
	part := func(name string, share float64) bar {
		p := int(share * 100)
		return bar{Name: name, Text: strconv.Itoa(p) + "%", Percent: p}
	}
	if x := s.Structure; x != nil {
		return []bar{part("structure", format.Share(int64(x.Collections+x.Views+x.Indexes),
			int64(x.CollectionsTotal+x.ViewsTotal+x.IndexesTotal), s.Phase == job.PhaseFinalized))}
	}
	made := s.Phase.AfterCopy() || s.Phase == job.PhaseCopying || s.Copy.Docs > 0
	return []bar{part("structure", format.Share(0, 1, made)), part("full", s.Copy.Share(s.Phase.AfterCopy())),
		incremental(s)}
}

// incremental has no total. Its bar is full once the target has caught up.
func incremental(s *job.Status) bar {
	b := bar{Name: "incremental"}
	switch s.Phase {
	case job.PhaseOverlap:
		b.Text = "catches up"
	case job.PhaseFollowing:
		if b.Text = "follows"; s.Follow.LagSeconds >= 0 && s.Follow.LagSeconds < 10 {
			b.Percent = 100
		}
	case job.PhaseFinalizing:
		b.Text, b.Percent = "finalizes", 100
	case job.PhaseFinalized:
		b.Text, b.Percent = "done", 100
	default:
		b.Text = "not yet"
	}
	return b
}

type order struct {
	name   string
	figure bool
	by     func(a, b *row) int
}

func orders() []order {
	return []order{
		{"name", false, func(a, b *row) int { return strings.Compare(a.Name, b.Name) }},
		{"state", false, func(a, b *row) int { return strings.Compare(a.State, b.State) }},
		{"progress", false, nil},
		{"docs/s", true, func(a, b *row) int { return cmp.Compare(a.DocsRate, b.DocsRate) }},
		{"bytes/s", true, func(a, b *row) int { return cmp.Compare(a.BytesRate, b.BytesRate) }},
		{"lag", true, func(a, b *row) int { return cmp.Compare(a.Lag, b.Lag) }},
		{"ETA", true, func(a, b *row) int { return cmp.Compare(a.ETA, b.ETA) }},
		{"worker", false, func(a, b *row) int { return strings.Compare(a.Worker, b.Worker) }},
	}
}

// jobs is the page of all jobs. With parameters n it has only the rows of these names, for the script.
func (c *console) jobs(w http.ResponseWriter, r *http.Request, v *visit) error {
	q := r.URL.Query()
	l := list{Search: q.Get("q"), State: q.Get("state"), Sort: q.Get("sort"), At: c.Now()}
	address := func(key, value string) string {
		to := url.Values{"q": {l.Search}, "state": {l.State}, "sort": {l.Sort}}
		to.Set(key, value)
		for k := range to {
			if to.Get(k) == "" {
				to.Del(k)
			}
		}
		return "/jobs?" + to.Encode()
	}
	counts := map[string]int{}
	only := q["n"]
	for _, j := range c.Desk.Jobs(v.who) {
		if !strings.Contains(strings.ToLower(j.Definition.Name), strings.ToLower(l.Search)) {
			continue
		}
		state := string(j.State())
		counts[state]++
		counts[""]++
		if len(only) > 0 && slices.Contains(only, j.Definition.Name) || len(only) == 0 &&
			(l.State == "" || state == l.State) {
			l.Rows = append(l.Rows, rowOf(&j))
		}
	}
	l.Counts = append(l.Counts, counted{"all", address("state", ""), counts[""], l.State == ""})
	for _, s := range service.States() {
		l.Counts = append(l.Counts, counted{string(s), address("state", string(s)), counts[string(s)], l.State == string(s)})
	}
	l.order(address)
	l.cut(q.Get("page"), address)
	f := c.page(v, "jobs", "Jobs", l)
	f.Live = r.URL.RequestURI()
	return c.show(w, "jobs", f)
}

func (l *list) order(address func(key, value string) string) {
	by, down := strings.CutPrefix(l.Sort, "-")
	for _, o := range orders() {
		col := column{Name: o.name, Figure: o.figure}
		if o.by != nil {
			if col.Address = address("sort", o.name); by == o.name {
				if col.Sorted = "ascending"; down {
					col.Sorted = "descending"
				} else {
					col.Address = address("sort", "-"+o.name)
				}
				slices.SortStableFunc(l.Rows, func(a, b row) int {
					if down {
						return o.by(&b, &a)
					}
					return o.by(&a, &b)
				})
			}
		}
		l.Columns = append(l.Columns, col)
	}
}

func (l *list) cut(page string, address func(key, value string) string) {
	l.Found = len(l.Rows)
	l.Pages = max((l.Found+maxRows-1)/maxRows, 1)
	n, err := strconv.Atoi(page)
	if err != nil {
		n = 1
	}
	n = min(max(n, 1), l.Pages)
	l.From = (n - 1) * maxRows
	l.Rows = l.Rows[l.From:min(l.From+maxRows, l.Found)]
	if n > 1 {
		l.Links = append(l.Links, link{"previous page", address("page", strconv.Itoa(n-1))})
	}
	if n < l.Pages {
		l.Links = append(l.Links, link{"next page", address("page", strconv.Itoa(n+1))})
	}
}
