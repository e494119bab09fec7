package api

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// The paths of the API.
const (
	Prefix       = "/api/v1"
	PathJobs     = Prefix + "/jobs"
	PathJob      = PathJobs + "/{name}"
	PathPause    = PathJob + "/pause"
	PathResume   = PathJob + "/resume"
	PathFinalize = PathJob + "/finalize"
	PathLimits   = PathJob + "/limits"
	PathWorkers  = Prefix + "/workers"
	PathAudit    = Prefix + "/audit"
	PathEvents   = Prefix + "/events"
	PathOpenAPI  = Prefix + "/openapi.json"
	PathLive     = "/livez"
	PathReady    = "/readyz"
	PathMetrics  = "/metrics"
)

const (
	defaultPage = 100
	maxPage     = 1000
	// maxLabels bounds the labels of a job, maxLabel the bytes of a key or a value.
	maxLabels = 32
	maxLabel  = 100
	// maxSearch bounds what is looked for in names.
	maxSearch = 200
)

// routes are all that the API does.
func (a *API) routes() []route {
	if a.o.Desk == nil {
		return slices.Concat(a.controlRoutes(), a.singleRoutes())
	}
	return slices.Concat(a.workerRoutes(), a.recordRoutes(), a.controlRoutes(), a.jobRoutes(), a.verifyRoutes(), within(lettersTime, a.letterRoutes()), within(draftTime, a.draftRoutes()))
}

func (a *API) jobRoutes() []route {
	return []route{
		{http.MethodGet, PathReady, "", a.readyz, 0},
		{http.MethodGet, PathOpenAPI, service.Viewer, a.describe, 0},
		{http.MethodPost, PathJobs, service.Admin, a.create, 0},
		{http.MethodDelete, PathJob, service.Admin, a.remove, 0},
		{http.MethodGet, PathAlerts, service.Viewer, a.alerts, 0},
		{http.MethodGet, PathAudit, service.Admin, a.audit, 0},
	}
}

// controlRoutes are those that a single process has, too.
func (a *API) controlRoutes() []route {
	finalizeTime := storeTime
	if a.o.Desk == nil {
		finalizeTime = endless
	}
	return []route{
		{http.MethodGet, PathLive, "", a.livez, 0},
		{http.MethodGet, PathMetrics, service.Viewer, a.metrics, 0},
		{http.MethodGet, PathJobs, service.Viewer, a.list, 0},
		{http.MethodGet, PathJob, service.Viewer, a.show, 0},
		{http.MethodPost, PathPause, service.Operator, a.change(a.jobs.Pause), 0},
		{http.MethodPost, PathResume, service.Operator, a.change(a.jobs.Resume), 0},
		{http.MethodPost, PathFinalize, service.Operator, a.finalize, finalizeTime},
		{http.MethodDelete, PathFinalize, service.Operator, a.change(a.jobs.CancelFinalize), 0},
		{http.MethodPatch, PathLimits, service.Operator, a.limits, 0},
		{http.MethodPost, PathLettersRetry, service.Operator, a.retryLetters, lettersTime},
		{http.MethodGet, PathEvents, service.Viewer, a.events, endless},
	}
}

// changes is something that operate does to a job.
type changes func(context.Context, *service.Caller, string) (*service.Job, error)

// change is a request that changes a job, and replies with it.
func (a *API) change(do changes) action {
	return func(c *call) (any, error) {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		j, err := do(c.Context(), c.caller, c.PathValue("name"))
		if err != nil {
			return nil, err
		}
		return c.job(j), nil
	}
}

func (a *API) describe(c *call) (any, error) {
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(a.openapi)
	return sent{}, nil
}

// remove is taken note of; whoever runs the job lets go of it first.
func (a *API) remove(c *call) (any, error) {
	c.code = http.StatusAccepted
	return a.change(a.o.Desk.Remove)(c)
}

func (a *API) show(c *call) (any, error) {
	j, err := a.jobs.Job(c.caller, c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	return c.job(j), nil
}

func (a *API) finalize(c *call) (any, error) {
	var wish Finalize
	if err := c.body(&wish, true, `{"whenCaughtUp": true}, or nothing`); err != nil {
		return nil, err
	}
	return a.change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		if a.o.Desk == nil { // it replies when the job has ended, and its process with it
			unlimited(c.w)
		}
		return a.jobs.Finalize(ctx, who, name, wish.WhenCaughtUp)
	})(c)
}

func (a *API) limits(c *call) (any, error) {
	var l server.Limits
	if err := c.body(&l, false, `{"docsPerSecond": 1000, "bytesPerSecond": 0, "sourceLoad": "low", "targetLoad": "max"}, or some of these`); err != nil {
		return nil, err
	}
	return a.change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		return a.jobs.Limit(ctx, who, name, l)
	})(c)
}

// body reads JSON.
func (c *call) body(into any, optional bool, form string) error {
	raw, err := io.ReadAll(c.Body)
	if err != nil {
		return err
	}
	if len(raw) == 0 && optional {
		return nil
	}
	if kind := c.mediaType(); kind != "application/json" && !c.old {
		return refuse(http.StatusUnsupportedMediaType, CodeMediaType, "send Content-Type: application/json", "the body is said to be %q", kind)
	}
	return decode(raw, into, form)
}

func (c *call) mediaType() string {
	kind, _, err := mime.ParseMediaType(c.Header.Get("Content-Type"))
	if err != nil {
		return ""
	}
	return kind
}

func decode(raw []byte, into any, form string) error {
	bad := func(what string) error {
		return refuse(http.StatusBadRequest, operate.Invalid, "send "+form, "the body cannot be used: %s", what)
	}
	if !utf8.Valid(raw) {
		return bad("it is not UTF-8")
	}
	if t := bytes.TrimSpace(raw); len(t) == 0 || t[0] != '{' {
		return bad("it is no object")
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) == nil {
		for name, value := range fields { // which the decoder would take for what is left out
			if string(value) == "null" {
				return bad(short(name, 40) + " is null: leave it out")
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return bad(short(strings.TrimPrefix(err.Error(), "json: "), 200))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("more follows the object")
	}
	return nil
}

// short is a text of at most n bytes.
func short(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}

func (a *API) create(c *call) (any, error) {
	def, err := c.definition()
	if err != nil {
		return nil, err
	}
	j, made, err := a.o.Desk.Create(c.Context(), c.caller, def)
	if err != nil {
		return nil, err
	}
	if made {
		c.code = http.StatusCreated
		c.w.Header().Set("Location", PathJobs+"/"+url.PathEscape(def.Name))
	}
	return JobOf(j), nil
}

// definition is what is to be made: JSON, or YAML with the rest in the query.
func (c *call) definition() (d service.Definition, err error) {
	raw, err := io.ReadAll(c.Body)
	if err != nil {
		return d, err
	}
	switch kind := c.mediaType(); kind {
	case "application/yaml", "application/x-yaml", "text/yaml":
		q, err := c.query("name", "label", "paused")
		if err != nil {
			return d, err
		}
		d.Name, d.Settings = q.Get("name"), string(raw)
		if d.Wish.Paused, err = strconv.ParseBool(orFalse(q.Get("paused"))); err != nil {
			return d, invalid("use true or false", "paused is %q", short(q.Get("paused"), 40))
		}
		if d.Labels, err = service.ParseLabels(q["label"]); err != nil {
			return d, invalid("give label=key%%3Dvalue", "%s", short(err.Error(), 200))
		}
	case "application/json":
		if _, err := c.query(); err != nil {
			return d, err
		}
		var n NewJob
		if err := decode(raw, &n, `{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}}`); err != nil {
			return d, err
		}
		d.Name, d.Labels, d.Wish.Paused = n.Name, n.Labels, n.Paused
		if d.Settings, err = settings(n.Settings); err != nil {
			return d, err
		}
	default:
		return d, refuse(http.StatusUnsupportedMediaType, CodeMediaType, "send Content-Type: application/json, or application/yaml with ?name=", "the body is said to be %q", kind)
	}
	if !utf8.ValidString(d.Settings) {
		return d, invalid("save it as UTF-8", "the settings are not UTF-8")
	}
	return d, checkLabels(d.Labels)
}

func orFalse(s string) string {
	if s == "" {
		return "false"
	}
	return s
}

func invalid(hint, format string, args ...any) error {
	return refuse(http.StatusBadRequest, operate.Invalid, hint, format, args...)
}

// settings are the text of those of a body. An object is its text without spaces.
func settings(raw json.RawMessage) (string, error) {
	var text string
	if len(raw) > 0 && raw[0] == '{' {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return "", invalid("", "the settings are no JSON: %s", err)
		}
		return b.String(), nil
	}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return "", invalid("send them as a text of YAML, or as an object with the same keys", "the settings are missing, or neither a text nor an object")
	}
	return text, nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("use fewer", "there are %d labels, more than %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel || strings.ContainsFunc(k+v, notPlain) {
			return invalid(fmt.Sprintf("use up to %d bytes of text", maxLabel), "label %q cannot be used", short(k, 40))
		}
	}
	return nil
}

// query is the query of a request, whose names are known; one stands once, but for label.
func (c *call) query(known ...string) (url.Values, error) {
	q, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return nil, invalid("encode it", "the query cannot be read")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, invalid(cmp.Or(strings.Join(known, ", "), "nothing")+" may be asked for here", "the query has %q, which means nothing here", short(name, 40))
		}
		if len(values) > 1 && name != "label" {
			return nil, invalid("give it once", "the query has %s twice", name)
		}
		if !utf8.ValidString(values[0]) {
			return nil, invalid("encode it", "%s in the query is not UTF-8", name)
		}
	}
	return q, nil
}

// limit is how much of a list is wanted.
func limit(q url.Values) (int, error) {
	if !q.Has("limit") {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("", "limit is %q: want 1 to %d", short(q.Get("limit"), 40), maxPage)
	}
	return n, nil
}

func (a *API) list(c *call) (any, error) {
	q, err := c.query("limit", "cursor", "state", "q")
	if err != nil {
		return nil, err
	}
	n, err := limit(q)
	if err != nil {
		return nil, err
	}
	state, cursor, search := service.State(q.Get("state")), q.Get("cursor"), strings.ToLower(q.Get("q"))
	if q.Has("state") && !slices.Contains(service.States(), state) {
		return nil, invalid(fmt.Sprintf("use one of %v", service.States()), "state %q is none", short(string(state), 40))
	}
	if len(cursor) > maxSearch || len(search) > maxSearch {
		return nil, invalid("", "cursor and q take up to %d bytes", maxSearch)
	}
	out := Jobs{Jobs: []Summary{}}
	list := a.jobs.After(c.caller, cursor, n+1, func(j *service.Job) bool {
		return (state == "" || j.State() == state) && strings.Contains(strings.ToLower(j.Definition.Name), search)
	})
	for i := range list[:min(n, len(list))] {
		out.Jobs = append(out.Jobs, summary(&list[i]))
	}
	if len(list) > n {
		out.Next = list[n-1].Definition.Name
	}
	return out, nil
}

func (a *API) workers(c *call) (any, error) {
	list := a.o.Desk.Workers()
	for i := range list {
		w := &list[i]
		seen := []string{}
		for _, name := range w.Jobs {
			if c.caller.Sees(name) {
				seen = append(seen, name)
			}
		}
		w.Jobs = seen
	}
	return Workers{list}, nil
}

func (a *API) audit(c *call) (any, error) {
	q, err := c.query("job", "before", "limit")
	if err != nil {
		return nil, err
	}
	n, err := limit(q)
	if err != nil {
		return nil, err
	}
	before, err := before(q)
	if err != nil {
		return nil, err
	}
	if name := q.Get("job"); q.Has("job") {
		if err := service.CheckName(name); err != nil {
			return nil, invalid("", "%s", short(err.Error(), 300))
		}
	}
	list, err := a.o.Desk.Trail(c.Context(), c.caller, q.Get("job"), before, n)
	if err != nil {
		return nil, err
	}
	out := Audit{Changes: list}
	if len(list) == n {
		out.Next = list[n-1].Seq
	}
	return out, nil
}
