package api

import (
	"bytes"
	"cmp"
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml"

	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

const (
	Prefix       = "/api/v1"
	PathJobs     = Prefix + "/jobs"
	PathJob      = PathJobs + "/{name}"
	PathPause    = PathJob + "/pause"
	PathResume   = PathJob + "/resume"
	PathFinalize = PathJob + "/finalize"
	PathLimits   = PathJob + "/limits"
	PathReverse  = PathJob + "/reverse"
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
	maxSearch = 200
)

func (a *API) routes() []route {
	if a.o.Desk == nil {
		return slices.Concat(a.controlRoutes(), a.singleRoutes())
	}
	return slices.Concat(a.controlRoutes(), a.jobRoutes())
}

type desk struct {
	*operate.Desk
	log *slog.Logger
}

func (a *API) jobRoutes() []route {
	d := desk{a.o.Desk, a.o.Log}
	return []route{
		{http.MethodGet, PathReady, "", a.readyz, 0},
		{http.MethodGet, PathOpenAPI, service.Viewer, a.describe, 0},
		{http.MethodPost, PathJobs, service.Admin, a.jobs.create, 0},
		{http.MethodPut, PathJob, service.Admin, a.jobs.edit, 0},
		{http.MethodDelete, PathJob, service.Admin, a.jobs.remove, 0},
		{http.MethodPost, PathReverse, service.Admin, taking(d.reverse, false,
			`{"name": "shop-back", "acceptLoss": [], "dryRun": true}, each of them optional`), draftTime},

		{http.MethodGet, PathWorkers, service.Viewer, d.workers, 0},
		{http.MethodPost, PathDrain, service.Admin, asking(d.drain), 0},
		{http.MethodDelete, PathDrain, service.Admin, asking(d.drain), 0},

		{http.MethodGet, PathPoints, service.Viewer, asking(d.points, "from", "to", "last", "step"), 0},
		{http.MethodGet, PathLog, service.Viewer, asking(d.jobLog, "kind", "before", "limit"), 0},
		{http.MethodGet, PathAlerts, service.Viewer, asking(d.alerts, "limit"), 0},
		{http.MethodGet, PathAudit, service.Admin, asking(d.audit, "job", "before", "limit"), 0},

		{http.MethodPost, PathVerifications, service.Operator,
			taking(d.verify, true, `{"id": "first", "samplePercent": 5, "include": ["shop.*"]}, or nothing`), 0},
		{http.MethodGet, PathVerifications, service.Viewer, d.verifications, 0},
		{http.MethodGet, PathVerification, service.Viewer, d.verification, 0},
		{http.MethodDelete, PathVerification, service.Operator, d.cancel, 0},
		{http.MethodPost, PathRepair, service.Operator,
			taking(d.repair, false, `{"all": true}, or {"documents": [{"ns": "shop.orders", "key": "…"}]}`), 0},
		{http.MethodPut, PathVerifySchedule, service.Operator,
			taking(d.schedule, false, `{"everyHours": 24, "samplePercent": 5, "bytesPerSecond": 10000000}`), 0},
		{http.MethodDelete, PathVerifySchedule, service.Operator, d.scheduled(nil), 0},

		{http.MethodGet, PathLetters, service.Viewer, asking(d.letters, "ns", "state", "limit", "cursor"), lettersTime},
		{http.MethodGet, PathLetter, service.Operator, asking(d.letter, "id"), lettersTime},
		{http.MethodGet, PathLettersExport, service.Operator, asking(d.exportLetters, "ns", "state"), endless},

		{http.MethodPost, PathInspectDraft, service.Admin, drafting(d.inspect, draftForm), draftTime},
		{http.MethodPost, PathPrecheckDraft, service.Admin, drafting(d.precheck, draftForm), draftTime},
		{http.MethodPost, PathSampleDraft, service.Admin, drafting(d.sample,
			`{"name": "orders", "settings": {"source": "env:SOURCE", "target": "env:TARGET"}, "ns": "shop.orders"}`),
			draftTime},
	}
}

func (a *API) controlRoutes() []route {
	j, finalizeTime := a.jobs, storeTime
	if a.o.Desk == nil {
		finalizeTime = endless
	}
	return []route{
		{http.MethodGet, PathLive, "", a.livez, 0},
		{http.MethodGet, PathMetrics, service.Viewer, a.metrics, 0},
		{http.MethodGet, PathJobs, service.Viewer, asking(j.list, "limit", "cursor", "state", "q"), 0},
		{http.MethodGet, PathJob, service.Viewer, j.show, 0},
		{http.MethodPost, PathPause, service.Operator, change(j.Pause), 0},
		{http.MethodPost, PathResume, service.Operator, change(j.Resume), 0},
		{http.MethodPost, PathFinalize, service.Operator, taking(j.finalize, true, `{"whenCaughtUp": true}, or nothing`),
			finalizeTime},
		{http.MethodDelete, PathFinalize, service.Operator, change(j.CancelFinalize), 0},
		{http.MethodPatch, PathLimits, service.Operator, taking(j.limits, false, limitsForm), 0},
		{http.MethodPost, PathLettersRetry, service.Operator,
			taking(j.retryLetters, true, `{"id": "…"}, or nothing for all`), lettersTime},
		{http.MethodGet, PathEvents, service.Viewer, asking(a.news.events), endless},
	}
}

const limitsForm = `{"docsPerSecond": 1000, "bytesPerSecond": 0, "sourceLoad": "low", "targetLoad": "max"}, or some of these`

func change(do func(context.Context, *service.Caller, string) (*service.Job, error)) action {
	return func(c *call) (any, error) {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		j, err := do(c.Context(), c.caller, c.PathValue("name"))
		if err != nil {
			return nil, err
		}
		return JobOf(j), nil
	}
}

func (a *API) describe(c *call) (any, error) {
	c.w.Header().Set("Content-Type", "application/json")
	_, _ = c.w.Write(a.openapi)
	return sent{}, nil
}

// jobs has no desk in a single process.
type jobs struct {
	Control
	desk *operate.Desk
}

func (j jobs) all(c *service.Caller) []service.Job {
	return j.After(c, "", math.MaxInt, func(*service.Job) bool { return true })
}

// remove replies with 202, because the worker stops the job first.
func (j jobs) remove(c *call) (any, error) {
	c.code = http.StatusAccepted
	return change(j.desk.Remove)(c)
}

func (j jobs) show(c *call) (any, error) {
	one, err := j.Job(c.caller, c.PathValue("name"))
	if err != nil {
		return nil, err
	}
	return JobOf(one), nil
}

func (j jobs) finalize(c *call, how Finalize) (any, error) {
	return change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		if j.desk == nil { // it replies when the job, and so its process, ends
			server.Extend(c.w, 0)
		}
		return j.Finalize(ctx, who, name, how.WhenCaughtUp)
	})(c)
}

func (j jobs) limits(c *call, l server.Limits) (any, error) {
	return change(func(ctx context.Context, who *service.Caller, name string) (*service.Job, error) {
		return j.Limit(ctx, who, name, l)
	})(c)
}

func (c *call) body(into any, optional bool, form string) error {
	raw, err := io.ReadAll(c.Body)
	if err != nil {
		return err
	}
	if len(raw) == 0 && optional {
		return nil
	}
	if kind := c.mediaType(); kind != "application/json" {
		return refuse(CodeMediaType, "send Content-Type: application/json",
			"the content type of the body is %q", kind)
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
		return refuse(operate.Invalid, "send "+form, "the body cannot be used: %s", what)
	}
	if !utf8.Valid(raw) {
		return bad("it is not UTF-8")
	}
	if t := bytes.TrimSpace(raw); len(t) == 0 || t[0] != '{' {
		return bad("it is not an object")
	}
	var fields map[string]json.RawMessage
	if json.Unmarshal(raw, &fields) == nil {
		for name, value := range fields { // the decoder would ignore it
			if string(value) == "null" {
				return bad(service.Short(name, 40) + " is null: leave it out")
			}
		}
	}
	d := json.NewDecoder(bytes.NewReader(raw))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		return bad(service.Short(strings.TrimPrefix(err.Error(), "json: "), 200))
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return bad("more follows the object")
	}
	return nil
}

func (j jobs) create(c *call) (any, error) {
	def, err := c.definition()
	if err != nil {
		return nil, err
	}
	one, made, err := j.desk.Create(c.Context(), c.caller, def)
	if err != nil {
		return nil, err
	}
	if made {
		c.code = http.StatusCreated
		c.w.Header().Set("Location", At(PathJob, def.Name))
	}
	return JobOf(one), nil
}

// edit replaces settings and labels. The name is that of the path.
func (j jobs) edit(c *call) (any, error) {
	def, err := c.definition()
	if err != nil {
		return nil, err
	}
	name := c.PathValue("name")
	if def.Name != "" && def.Name != name {
		return nil, invalid("leave name out: a job cannot be renamed", "the body is about job %.100q", def.Name)
	}
	def.Name = name
	one, err := j.desk.Edit(c.Context(), c.caller, def)
	if err != nil {
		return nil, err
	}
	return JobOf(one), nil
}

// definition reads JSON, or YAML with the rest in the query.
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
		if d.Desired.Paused, err = strconv.ParseBool(cmp.Or(q.Get("paused"), "false")); err != nil {
			return d, invalid("use true or false", "paused is %q", service.Short(q.Get("paused"), 40))
		}
		if d.Labels, err = service.ParseLabels(q["label"]); err != nil {
			return d, invalid("give label=key%%3Dvalue", "%s", service.Short(err.Error(), 200))
		}
	case "application/json":
		if _, err := c.query(); err != nil {
			return d, err
		}
		var n NewJob
		if err := decode(raw, &n, draftForm); err != nil {
			return d, err
		}
		d, err = n.definition()
		d.Desired.Paused = n.Paused
		return d, err
	default:
		return d, refuse(CodeMediaType,
			"send Content-Type: application/json, or application/yaml with ?name=", "the content type of the body is %q", kind)
	}
	if !utf8.ValidString(d.Settings) {
		return d, invalid("save it as UTF-8", "the settings are not UTF-8")
	}
	return d, checkLabels(d.Labels)
}

func (d Draft) definition() (def service.Definition, err error) {
	def.Name, def.Labels = d.Name, d.Labels
	if def.Settings, err = settings(d.Settings); err != nil {
		return def, err
	}
	return def, checkLabels(d.Labels)
}

func settings(raw json.RawMessage) (string, error) {
	var text string
	if len(raw) > 0 && raw[0] == '{' {
		var b bytes.Buffer
		if err := json.Compact(&b, raw); err != nil {
			return "", invalid("", "the settings are not JSON: %s", err)
		}
		return b.String(), nil
	}
	if len(raw) == 0 || raw[0] != '"' || json.Unmarshal(raw, &text) != nil {
		return "", invalid("send them as a text of YAML, or as an object with the same keys",
			"the settings are missing, or neither a text nor an object")
	}
	return text, nil
}

func checkLabels(labels map[string]string) error {
	if len(labels) > maxLabels {
		return invalid("use fewer", "there are %d labels, more than %d", len(labels), maxLabels)
	}
	for k, v := range labels {
		if k == "" || len(k) > maxLabel || len(v) > maxLabel || strings.ContainsFunc(k+v, notPlain) {
			return invalid(fmt.Sprintf("use up to %d bytes of text", maxLabel), "label %q cannot be used", service.Short(k, 40))
		}
	}
	return nil
}

// query allows known names, each once, except for label.
func (c *call) query(known ...string) (url.Values, error) {
	q, err := url.ParseQuery(c.URL.RawQuery)
	if err != nil {
		return nil, invalid("encode it", "the query cannot be read")
	}
	for name, values := range q {
		if !slices.Contains(known, name) {
			return nil, invalid(cmp.Or(strings.Join(known, ", "), "nothing")+" may be asked for here",
				"the query has %q, which means nothing here", service.Short(name, 40))
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

func limit(q url.Values) (int, error) {
	if !q.Has("limit") {
		return defaultPage, nil
	}
	n, err := strconv.Atoi(q.Get("limit"))
	if err != nil || n < 1 || n > maxPage {
		return 0, invalid("", "limit is %q: want 1 to %d", service.Short(q.Get("limit"), 40), maxPage)
	}
	return n, nil
}

func (j jobs) list(c *call) (any, error) {
	q, n := c.q, c.page.Limit
	state, cursor, search := service.State(q.Get("state")), q.Get("cursor"), strings.ToLower(q.Get("q"))
	if q.Has("state") && !slices.Contains(service.States(), state) {
		return nil, invalid(fmt.Sprintf("use one of %v", service.States()), "state %q is none",
			service.Short(string(state), 40))
	}
	if len(cursor) > maxSearch || len(search) > maxSearch {
		return nil, invalid("", "cursor and q take up to %d bytes", maxSearch)
	}
	out := Jobs{Jobs: []Summary{}}
	list := j.After(c.caller, cursor, n+1, func(one *service.Job) bool {
		return (state == "" || one.State() == state) && strings.Contains(strings.ToLower(one.Definition.Name), search)
	})
	for i := range list[:min(n, len(list))] {
		out.Jobs = append(out.Jobs, summary(&list[i]))
	}
	if len(list) > n {
		out.Next = list[n-1].Definition.Name
	}
	return out, nil
}

//go:embed openapi.yaml
var openapiYAML []byte

func document() ([]byte, error) {
	raw, err := yaml.YAMLToJSON(openapiYAML)
	if err != nil {
		return nil, fmt.Errorf("read the OpenAPI document: %w", err)
	}
	return raw, nil
}
