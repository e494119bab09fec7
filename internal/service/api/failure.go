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
