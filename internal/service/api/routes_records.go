package api

import (
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
