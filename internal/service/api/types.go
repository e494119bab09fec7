package api

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
)

// NewJob is the body that creates a job.
type NewJob struct {
	Draft
	Paused bool `json:"paused,omitempty"`
}

// Draft is a job that does not exist yet.
type Draft struct {
	Name string `json:"name"`
	// Settings are the YAML of millrace sync as a text, or an object with the same keys.
	Settings json.RawMessage   `json:"settings"`
	Labels   map[string]string `json:"labels,omitempty"`
}

// Finalize is the body of a finalize; none is the zero value.
type Finalize struct {
	WhenCaughtUp bool `json:"whenCaughtUp"`
}

// Summary is a job in a list. Unknown seconds are -1.
type Summary struct {
	Name  string        `json:"name"`
	State service.State `json:"state"`
	// Phase is "" at first.
	Phase  job.Phase         `json:"phase"`
	Labels map[string]string `json:"labels"`
	// Worker "" is none.
	Worker string `json:"worker"`
	// Paused, Finalize and Removed are desired.
	Paused   bool `json:"paused"`
	Finalize bool `json:"finalize"`
	Removed  bool `json:"removed"`

	LagSeconds     float64 `json:"lagSeconds"`
	WindowSeconds  float64 `json:"windowSeconds"`
	DocsRate       float64 `json:"docsRate"`
	BytesRate      float64 `json:"bytesRate"`
	OperationsRate float64 `json:"operationsRate"`
	// CopyPercent is at most 100.
	CopyPercent float64 `json:"copyPercent"`
	ETASeconds  float64 `json:"etaSeconds"`
	// Conflicts are open or undecided dead letters.
	Conflicts int64 `json:"conflicts"`

	// Error and Hint say why the job failed, or what it waits for; Unmet why a requested change failed.
	Error string `json:"error"`
	Hint  string `json:"hint"`
	Unmet string `json:"unmet"`

	CreatedAt time.Time `json:"createdAt"`
	// ReportedAt is nil without a report.
	ReportedAt *time.Time `json:"reportedAt"`
}

type Job struct {
	Summary
	UID       string          `json:"uid"`
	Settings  string          `json:"settings"`
	CreatedBy string          `json:"createdBy"`
	Desired   service.Desired `json:"wish"`
	// Lease and Report are nil without a worker.
	Lease  *service.Lease  `json:"lease"`
	Report *service.Report `json:"report"`
}

// Jobs is a page of a list. Next is the next cursor, "" at the end.
type Jobs struct {
	Jobs []Summary `json:"jobs"`
	Next string    `json:"next"`
}

// Workers are the present ones.
type Workers struct {
	Workers []service.Worker `json:"workers"`
}

// Audit is a page of the audit trail, the newest first. Next is the next Before, 0 at the end.
type Audit struct {
	Changes []service.Change `json:"changes"`
	Next    uint64           `json:"next"`
}

// Alerts has present alerts by job, and ended ones, the newest first.
type Alerts struct {
	Present []service.Alert `json:"present"`
	Past    []service.Alert `json:"past"`
}

// Removed is the event of a removed job.
type Removed struct {
	Name string `json:"name"`
}

func summary(j *service.Job) Summary {
	d := &j.Definition
	s := Summary{Name: d.Name, State: j.State(), Labels: d.Labels, Paused: d.Desired.Paused, Finalize: d.Desired.Finalize,
		Removed:    d.Desired.Removed,
		LagSeconds: -1, WindowSeconds: -1, ETASeconds: -1, CreatedAt: d.CreatedAt}
	if s.Labels == nil {
		s.Labels = map[string]string{}
	}
	if j.Lease != nil {
		s.Worker = j.Lease.Worker
	}
	r := j.Known()
	if r == nil {
		return s
	}
	s.Error, s.Hint, s.Unmet = r.Error, r.Hint, r.Unmet
	s.ReportedAt = &r.At
	if st := r.Status; st != nil {
		s.Phase = st.Phase
		s.LagSeconds, s.WindowSeconds, s.ETASeconds = st.Follow.LagSeconds, st.Follow.WindowSeconds, st.Copy.ETASeconds
		s.CopyPercent = 100 * st.Copy.Share(st.Phase.AfterCopy())
		s.Conflicts = st.Conflicts.Open + st.Conflicts.Undecided + st.Conflicts.Unmapped
		if s.State == service.Running { // else they are old
			s.DocsRate, s.OperationsRate = st.Copy.DocsRate, st.Follow.OperationsRate
			s.BytesRate = st.Copy.BytesRate + st.Follow.BytesRate
		}
		if s.Error == "" {
			s.Error, s.Hint = st.Error, st.Hint
		}
	}
	return s
}

func JobOf(j *service.Job) Job {
	d := &j.Definition
	return Job{Summary: summary(j), UID: d.UID, Settings: d.Settings, CreatedBy: d.CreatedBy, Desired: d.Desired,
		Lease: j.Lease, Report: j.Known()}
}

// The codes of failures, beside those of operate.
const (
	CodeNoToken     operate.Code = "noToken"     // missing or wrong
	CodeTooMany     operate.Code = "tooMany"     // wrong tokens, listeners, or changes (operate.TooMany)
	CodeForeign     operate.Code = "foreign"     // another origin, or another host's name
	CodeMethod      operate.Code = "method"      // unknown for the path
	CodeTooLarge    operate.Code = "tooLarge"    // the body
	CodeSlow        operate.Code = "slow"        // the body arrives too slowly
	CodeMediaType   operate.Code = "mediaType"   // of the body
	CodeUnavailable operate.Code = "unavailable" // the store does not answer
	CodeInternal    operate.Code = "internal"    // see the log
)

// Failure is the body of every reply without success.
type Failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	// Code does not change with the text.
	Code     operate.Code    `json:"code"`
	Problems config.Problems `json:"problems,omitempty"`
}

// maxText bounds texts of other origin.
const maxText = 2000

func refuse(code operate.Code, hint, format string, args ...any) *operate.Error {
	return &operate.Error{Code: code, Text: fmt.Sprintf(format, args...), Hint: hint}
}

func invalid(hint, format string, args ...any) error {
	return refuse(operate.Invalid, hint, format, args...)
}

func status(code operate.Code) int {
	known := map[operate.Code]int{operate.NotFound: http.StatusNotFound, operate.Invalid: http.StatusBadRequest,
		operate.Forbidden: http.StatusForbidden, operate.Ended: http.StatusServiceUnavailable,
		CodeNoToken: http.StatusUnauthorized, CodeTooMany: http.StatusTooManyRequests, CodeForeign: http.StatusForbidden,
		CodeMethod: http.StatusMethodNotAllowed, CodeTooLarge: http.StatusRequestEntityTooLarge,
		CodeSlow: http.StatusRequestTimeout, CodeMediaType: http.StatusUnsupportedMediaType,
		CodeUnavailable: http.StatusServiceUnavailable, CodeInternal: http.StatusInternalServerError}
	return cmp.Or(known[code], http.StatusConflict) // also for codes of job.Refusal
}

// refusal returns the reply to an error. An unexpected error goes to the log with an id that the client gets.
func (a *API) refusal(r *http.Request, err error) *operate.Error {
	var refused *operate.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &refused):
		//nolint:errorlint // what is joined to it
		if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 1 {
			a.o.Log.Error("a refusal is not in the audit trail", "error", mongo.Brief(err))
		}
		return refused
	case errors.As(err, &large):
		return refuse(CodeTooLarge, "use patterns in place of lists", "the body is larger than %d bytes", large.Limit)
	case errors.Is(err, os.ErrDeadlineExceeded): // of the connection
		return refuse(CodeSlow, "send it at once", "the request took longer than %s to arrive", replyTime)
	case errors.Is(err, hub.ErrChanged):
		return refuse(operate.Conflict, "look at it, and try again", "%s", hub.ErrChanged)
	}
	id := rand.Text()[:10]
	a.o.Log.Error("request failed", "request", r.Pattern, "id", id, "error", mongo.Brief(err))
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if a.o.Desk != nil && a.o.Desk.Hub.Trouble() != nil {
			return unwritable()
		}
		return refuse(CodeUnavailable, "try again; the service's log has more under "+id,
			"the store of the service does not answer")
	}
	return refuse(CodeInternal, "its log says why, under "+id, "the service could not do this")
}

// unwritable does not name the directory.
func unwritable() *operate.Error {
	return refuse(CodeUnavailable, hub.UnwritableHint, "%s", hub.ErrUnwritable)
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	e := a.refusal(r, err)
	reply(w, status(e.Code), Failure{service.Short(e.Text, maxText), e.Hint, e.Code, e.Problems})
}

func reply(w http.ResponseWriter, code int, body any) {
	raw, err := encode(body)
	if err != nil {
		code, raw = http.StatusInternalServerError,
			[]byte(`{"error":"the reply cannot be written as JSON","code":"internal"}`)
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_, _ = w.Write(append(raw, '\n'))
}

// encode escapes what is not graphic, so that nothing acts on a terminal or page.
func encode(v any) ([]byte, error) {
	raw, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	if !strings.ContainsFunc(string(raw), notPlain) {
		return raw, nil
	}
	out := make([]byte, 0, len(raw)+len(raw)/8)
	for len(raw) > 0 {
		r, n := utf8.DecodeRune(raw)
		if notPlain(r) {
			for _, u := range utf16.AppendRune(nil, r) {
				out = fmt.Appendf(out, `\u%04x`, u)
			}
		} else {
			out = append(out, raw[:n]...)
		}
		raw = raw[n:]
	}
	return out, nil
}

func notPlain(r rune) bool { return (r < ' ' || r > '~') && !unicode.IsGraphic(r) }
