package api

import (
	"context"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
)

const (
	PathPoints = PathJob + "/points"
	PathLog    = PathJob + "/log"
	PathAlerts = Prefix + "/alerts"
	PathDrain  = PathWorkers + "/{name}/drain"
)

const defaultLast = time.Hour

// Points are figures of a job over time.
type Points struct {
	From        time.Time `json:"from"`
	To          time.Time `json:"to"`
	StepSeconds int64     `json:"stepSeconds"`
	// Points are sorted by time, without gaps in which no worker ran the job.
	Points []Point `json:"points"`
}

// Point has the figures of one step.
type Point struct {
	At time.Time `json:"at"` // the begin of the step
	// Seconds counts the time of the step with figures.
	Seconds float64 `json:"seconds"`

	Docs         Amount `json:"docs"`
	Bytes        Amount `json:"bytes"`
	Operations   Amount `json:"operations"`
	AppliedBytes Amount `json:"appliedBytes"`

	// nil is unknown.
	LagSeconds    *Range `json:"lagSeconds"`
	WindowSeconds *Range `json:"windowSeconds"`
	CPUPercent    *Range `json:"cpuPercent"`
	MemoryBytes   *Range `json:"memoryBytes"`

	Shards  []ShardFigures  `json:"shards,omitempty"`
	Routers []RouterFigures `json:"routers,omitempty"`
}

// ShardFigures are those of a shard of the source.
type ShardFigures struct {
	Shard         string `json:"shard"`
	Docs          Amount `json:"docs"`
	Bytes         Amount `json:"bytes"`
	Changes       Amount `json:"changes"`
	ChangeBytes   Amount `json:"changeBytes"`
	LagSeconds    *Range `json:"lagSeconds"`
	WindowSeconds *Range `json:"windowSeconds"`
}

// RouterFigures are those of a router of the target.
type RouterFigures struct {
	Router   string `json:"router"`
	Commands Amount `json:"commands"`
	Bytes    Amount `json:"bytes"`
}

// Amount is a sum with rates per second.
type Amount struct {
	Sum  int64   `json:"sum"`
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Range is a figure over time.
type Range struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	Max  float64 `json:"max"`
}

// Log is a page of a job's log, the newest first. Next is the next Before, 0 at the end.
type Log struct {
	Entries []service.Entry `json:"entries"`
	Next    uint64          `json:"next"`
}

func pointOf(p *service.Point) Point {
	amount := func(a service.Amount) Amount { return Amount{a.Sum, a.Rate(p.Seconds), a.Least, a.Most} }
	span := func(r service.Range) *Range {
		if !r.Known() {
			return nil
		}
		return &Range{r.Mean, r.Least, r.Most}
	}
	out := Point{Seconds: p.Seconds, Docs: amount(p.Docs), Bytes: amount(p.Bytes),
		Operations: amount(p.Operations), AppliedBytes: amount(p.AppliedBytes),
		LagSeconds: span(p.Lag), WindowSeconds: span(p.Window), CPUPercent: span(p.CPU), MemoryBytes: span(p.Memory)}
	for i := range p.Shards {
		s := pointOf(&p.Shards[i])
		out.Shards = append(out.Shards, ShardFigures{p.Shards[i].Name, s.Docs, s.Bytes, s.Operations, s.AppliedBytes,
			s.LagSeconds, s.WindowSeconds})
	}
	for i := range p.Routers {
		r := pointOf(&p.Routers[i])
		out.Routers = append(out.Routers, RouterFigures{p.Routers[i].Name, r.Operations, r.AppliedBytes})
	}
	return out
}

func (d desk) points(c *call) (any, error) {
	q := c.q
	in, err := span(q, time.Now().UTC())
	if err != nil {
		return nil, err
	}
	var step time.Duration
	if q.Has("step") {
		if step, err = length(q, "step"); err != nil {
			return nil, err
		}
	}
	curve, err := d.Points(c.Context(), c.caller, c.PathValue("name"), in, step)
	if err != nil {
		return nil, err
	}
	out := Points{From: curve.From, To: curve.To, StepSeconds: int64(curve.Step / time.Second),
		Points: make([]Point, len(curve.Points))}
	for i := range curve.Points {
		out.Points[i] = pointOf(&curve.Points[i].Point)
		out.Points[i].At = curve.Points[i].Start
	}
	return out, nil
}

func span(q url.Values, now time.Time) (in service.Period, err error) {
	if q.Has("last") {
		if q.Has("from") || q.Has("to") {
			return in, invalid("leave one out", "last does not go with from and to")
		}
		last, err := length(q, "last")
		return service.Period{From: now.Add(-last), To: now}, err
	}
	at := func(name string, or time.Time) (time.Time, error) {
		if !q.Has(name) {
			return or, nil
		}
		t, err := time.Parse(time.RFC3339, q.Get(name))
		if err != nil || t.Year() < 1970 || t.Year() > 9000 {
			return t, invalid("", "%s is %q: want a time like 2026-01-02T15:04:05Z", name, service.Short(q.Get(name), 40))
		}
		return t.UTC(), nil
	}
	if in.To, err = at("to", now); err == nil {
		in.From, err = at("from", in.To.Add(-defaultLast))
	}
	return in, err
}

// length reads a number and s, m, h or d.
func length(q url.Values, name string) (time.Duration, error) {
	const most = 10_000
	text := q.Get(name)
	units := map[string]time.Duration{"s": time.Second, "m": time.Minute, "h": time.Hour, "d": 24 * time.Hour}
	number := strings.TrimRight(text, "smhd")
	n, err := strconv.ParseUint(number, 10, 31)
	unit, known := units[strings.TrimPrefix(text, number)]
	if err != nil || !known || n == 0 || n > most {
		return 0, invalid("", "%s is %q: want a length like 10s, 5m, 1h or 30d", name, service.Short(text, 40))
	}
	return time.Duration(n) * unit, nil
}

func (d desk) jobLog(c *call) (any, error) {
	kind := service.EntryKind(c.q.Get("kind"))
	if c.q.Has("kind") && !slices.Contains([]service.EntryKind{service.KindEvent, service.KindLog}, kind) {
		return nil, invalid("use event or log", "kind %q is none", service.Short(string(kind), 40))
	}
	list, err := d.Log(c.Context(), c.caller, c.PathValue("name"), kind, c.page)
	if err != nil {
		return nil, err
	}
	out := Log{Entries: list}
	if len(list) == c.page.Limit {
		out.Next = list[c.page.Limit-1].Seq
	}
	return out, nil
}

func (d desk) audit(c *call) (any, error) {
	name := c.q.Get("job")
	if err := service.CheckName(name); err != nil && c.q.Has("job") {
		return nil, invalid("", "%s", service.Short(err.Error(), 300))
	}
	list, err := d.Trail(c.Context(), c.caller, name, c.page)
	if err != nil {
		return nil, err
	}
	out := Audit{Changes: list}
	if len(list) == c.page.Limit {
		out.Next = list[c.page.Limit-1].Seq
	}
	return out, nil
}

func (d desk) alerts(c *call) (any, error) {
	present, past := d.Alerts(c.caller, c.page.Limit)
	return Alerts{shownAlerts(present), shownAlerts(past)}, nil
}

func shownAlerts(list []service.Alert) []service.Alert {
	out := make([]service.Alert, 0, len(list))
	for i := range list {
		out = append(out, list[i].Shown(func(text string) string { return service.Short(text, maxText) }))
	}
	return out
}

func (d desk) workers(c *call) (any, error) {
	list := d.Workers()
	for i := range list {
		list[i].Jobs = slices.DeleteFunc(append([]string{}, list[i].Jobs...),
			func(name string) bool { return !c.caller.Sees(name) })
	}
	return Workers{list}, nil
}

func (d desk) drain(c *call) (any, error) {
	return d.Drain(c.Context(), c.caller, c.PathValue("name"), c.Method == http.MethodPost)
}

func before(q url.Values) (n uint64, err error) {
	if !q.Has("before") {
		return 0, nil
	}
	if n, err = strconv.ParseUint(q.Get("before"), 10, 63); err != nil {
		return 0, invalid("give the next of the page before", "before is %q: want a number",
			service.Short(q.Get("before"), 40))
	}
	return n, nil
}

// Log returns a page of a job's log, the newest first. before 0 is the end, kind "" is all.
func (c *Client) Log(ctx context.Context, name string, kind service.EntryKind, before uint64, limit int) (Log,
	error) {
	q := query("limit", strconv.Itoa(limit), "kind", string(kind))
	if before > 0 {
		q.Set("before", strconv.FormatUint(before, 10))
	}
	return Ask[Log](ctx, c, http.MethodGet, At(PathLog, name)+"?"+q.Encode(), nil)
}

type gauges struct {
	jobs              []service.Job
	alerts            []service.Alert
	workers           int
	version, revision string
}

// Describe implements prometheus.Collector. The metrics depend on the jobs.
func (g *gauges) Describe(chan<- *prometheus.Desc) {}

type figures chan<- prometheus.Metric

func (f figures) send(kind prometheus.ValueType, name, help string, value float64, labels prometheus.Labels) {
	f <- prometheus.MustNewConstMetric(prometheus.NewDesc("millrace_"+name, help, nil, labels), kind, value)
}

func (f figures) gauge(name, help string, value float64, labels prometheus.Labels) {
	f.send(prometheus.GaugeValue, name, help, value, labels)
}

// known omits unknown values, which are negative.
func (f figures) known(name, help string, value float64, labels prometheus.Labels) {
	if value >= 0 {
		f.gauge(name, help, value, labels)
	}
}

func (f figures) count(name, help string, value int64, labels prometheus.Labels) {
	f.send(prometheus.CounterValue, name, help, float64(value), labels)
}

func (g *gauges) Collect(out chan<- prometheus.Metric) {
	f := figures(out)
	f.gauge("build_info", "The program that answers; always 1.", 1,
		prometheus.Labels{"version": g.version, "revision": g.revision})
	f.gauge("workers", "Workers that are there.", float64(g.workers), nil)
	for _, a := range g.alerts {
		f.gauge("alert", "What an operator should know of a job: 1 for each alert that fires.", 1,
			prometheus.Labels{"job": a.Job, "kind": string(a.Kind)})
	}
	for i := range g.jobs {
		s := summary(&g.jobs[i])
		f.gauge("job_state", "How a job stands: 1 for its present state.", 1,
			prometheus.Labels{"job": s.Name, "state": string(s.State)})
		if s.Phase == "" {
			continue
		}
		f.gauge("phase", "What a job does: 1 for its present phase.", 1,
			prometheus.Labels{"job": s.Name, "phase": string(s.Phase)})
		f.job(&s, g.jobs[i].Report.Status)
	}
}

func (f figures) job(s *Summary, st *job.Status) {
	of := prometheus.Labels{"job": s.Name}
	f.known("lag_seconds", "How far the target is behind the source.", s.LagSeconds, of)
	f.known("oplog_window_seconds",
		"Time until the source's oplog overwrites what the job needs, at its write rate.", s.WindowSeconds, of)
	if s.WindowSeconds >= 0 {
		f.gauge("oplog_window_held", "1 where what the source's oplog may overwrite is kept on local disk.",
			map[bool]float64{true: 1}[st.Follow.WindowHeld], of)
	}
	if h := st.Follow.Holding; h != nil {
		f.gauge("shard_silent_seconds", "Time since the last change of the shard of the source for which the others wait.",
			h.Seconds, prometheus.Labels{"job": s.Name, "shard": h.Shard})
	}
	f.parts(s.Name, st)
	f.count("copied_bytes_total", "Bytes of documents copied.", st.Copy.Bytes, of)
	f.count("copied_documents_total", "Documents copied.", st.Copy.Docs, of)
	f.count("applied_operations_total", "Operations applied since the job's run began.", st.Follow.Operations, of)
	f.count("conflicts_total", "Documents that the target refused, or that were taken off it to make room.",
		service.Refused(st), of)
}

func (f figures) parts(name string, st *job.Status) {
	const since = " since the job's run began."
	for _, s := range st.Shards {
		of := prometheus.Labels{"job": name, "shard": s.Shard}
		f.count("shard_copied_documents_total", "Documents copied from a shard of the source"+since, s.Docs, of)
		f.count("shard_copied_bytes_total", "Bytes of documents copied from a shard of the source"+since, s.Bytes, of)
		f.count("shard_read_changes_total", "Changes read in the oplog of a shard of the source"+since, s.Changes, of)
		f.count("shard_read_bytes_total", "Bytes read of the oplog of a shard of the source"+since, s.ChangeBytes, of)
		f.known("shard_lag_seconds", "How far what is known of a shard of the source is behind the source's newest change.",
			s.LagSeconds, of)
		f.known("shard_oplog_window_seconds",
			"Time until the oplog of this shard overwrites what the job needs, at its write rate.", s.WindowSeconds, of)
	}
	for _, r := range st.Routers {
		of := prometheus.Labels{"job": name, "router": r.Router}
		f.count("router_commands_total", "Commands sent to a router of the target"+since, r.Commands, of)
		f.count("router_sent_bytes_total", "Bytes sent to a router of the target"+since, r.Bytes, of)
	}
}

func (a *API) metrics(c *call) (any, error) {
	registry := prometheus.NewRegistry()
	g := &gauges{jobs: a.jobs.all(c.caller), workers: 1, version: a.o.Version, revision: a.o.Revision}
	if a.o.Desk != nil {
		g.alerts, _ = a.o.Desk.Alerts(c.caller, 0)
		g.workers = len(a.o.Desk.Workers())
	}
	if err := registry.Register(g); err != nil {
		return nil, err
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{ErrorHandling: promhttp.HTTPErrorOnError,
		DisableCompression: true}).ServeHTTP(c.w, c.Request)
	return sent{}, nil
}
