package api

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
	"github.com/millrace/millrace/internal/service/operate"
)

// The codes of failures, beside those of operate.
const (
	CodeNoToken     operate.Code = "noToken"     // missing or wrong
	CodeTooMany     operate.Code = "tooMany"     // wrong tokens, or listeners
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

type refusal struct {
	status int
	Failure
}

func (r *refusal) Error() string { return r.Failure.Error }

func refuse(status int, code operate.Code, hint, format string, args ...any) error {
	return &refusal{status, Failure{Error: fmt.Sprintf(format, args...), Hint: hint, Code: code}}
}

func status(code operate.Code) int {
	switch code {
	case operate.NotFound:
		return http.StatusNotFound
	case operate.Invalid:
		return http.StatusBadRequest
	case operate.Forbidden:
		return http.StatusForbidden
	case operate.Ended:
		return http.StatusServiceUnavailable
	}
	return http.StatusConflict // also for codes of job.Refusal
}

// failure returns the reply to an error. An unexpected error goes to the log with an id that the client gets.
func (a *API) failure(r *http.Request, err error) (int, Failure) {
	var own *refusal
	var refused *operate.Error
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &own):
		return own.status, own.Failure
	case errors.As(err, &refused):
		f := Failure{service.Short(refused.Text, maxText), refused.Hint, refused.Code, refused.Problems}
		//nolint:errorlint // what is joined to it
		if joined, ok := err.(interface{ Unwrap() []error }); ok && len(joined.Unwrap()) > 1 {
			a.o.Log.Error("a refusal is not in the audit trail", "error", mongo.Brief(err))
		}
		return status(refused.Code), f
	case errors.As(err, &large):
		return http.StatusRequestEntityTooLarge, Failure{Error: fmt.Sprintf("the body is larger than %d bytes", large.Limit),
			Hint: "use patterns in place of lists", Code: CodeTooLarge}
	case errors.Is(err, os.ErrDeadlineExceeded): // of the connection
		return http.StatusRequestTimeout, Failure{Error: fmt.Sprintf("the request took longer than %s to arrive", replyTime),
			Hint: "send it at once", Code: CodeSlow}
	case errors.Is(err, hub.ErrChanged):
		return http.StatusConflict, Failure{Error: hub.ErrChanged.Error(), Hint: "look at it, and try again",
			Code: operate.Conflict}
	}
	id := rand.Text()[:10]
	a.o.Log.Error("request failed", "request", r.Pattern, "id", id, "error", mongo.Brief(err))
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		if a.o.Desk != nil && a.o.Desk.Hub.Trouble() != nil {
			return http.StatusServiceUnavailable, unwritable()
		}
		return http.StatusServiceUnavailable, Failure{Error: "the store of the service does not answer",
			Hint: "try again; the service's log has more under " + id, Code: CodeUnavailable}
	}
	return http.StatusInternalServerError, Failure{Error: "the service could not do this",
		Hint: "its log says why, under " + id, Code: CodeInternal}
}

// unwritable does not name the directory.
func unwritable() Failure {
	return Failure{Error: hub.ErrUnwritable.Error(), Hint: hub.UnwritableHint, Code: CodeUnavailable}
}

func (a *API) fail(w http.ResponseWriter, r *http.Request, err error) {
	code, f := a.failure(r, err)
	reply(w, code, f)
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
