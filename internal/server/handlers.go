package server

import (
	"context"
	"crypto/subtle"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/pprof"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// The paths of the API.
const (
	PathStatus   = "/api/v1/status"
	PathPause    = "/api/v1/pause"
	PathResume   = "/api/v1/resume"
	PathLimits   = "/api/v1/limits"
	PathLetters  = "/api/v1/deadletters/retry"
	PathFinalize = "/api/v1/finalize"
	PathHealth   = "/healthz"
	PathProfiles = "/debug/pprof/"
)

// Failure is the body of every reply that is not a success.
type Failure struct {
	Error string `json:"error"`
	Hint  string `json:"hint,omitempty"`
	// Code is that of a job.Refusal, and does not change with the text.
	Code string `json:"code,omitempty"`
}

// Finalize is the body of a request to finalize; none is the zero value.
type Finalize struct {
	WhenCaughtUp bool `json:"whenCaughtUp"`
}

// Health is the body of /healthz: who answers, without a look at the job.
type Health struct {
	PID int `json:"pid"`
}

// handler serves the API; a finalize goes on until ending ends.
func (s *Server) handler(ending context.Context) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+PathHealth, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, Health{PID: os.Getpid()})
	})
	mux.HandleFunc("GET "+PathStatus, s.guard(!s.options.OpenStatus, func(w http.ResponseWriter, _ *http.Request) {
		reply(w, http.StatusOK, s.job.Status())
	}))
	mux.HandleFunc("POST "+PathPause, s.guard(true, s.act("pause", s.job.Pause)))
	mux.HandleFunc("POST "+PathResume, s.guard(true, s.act("resume", s.job.Resume)))
	mux.HandleFunc("POST "+PathLetters, s.guard(true, s.act("retry dead letters", s.job.RetryLetters)))
	mux.HandleFunc("PATCH "+PathLimits, s.guard(true, s.limits))
	mux.HandleFunc("POST "+PathFinalize, s.guard(true, s.finalize(ending)))
	mux.HandleFunc("DELETE "+PathFinalize, s.guard(true, s.act("cancel finalize", s.job.CancelFinalize)))
	if s.options.PProf {
		s.profiles(mux)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, http.StatusNotFound, "there is no "+r.Method+" of this path", "see "+PathStatus)
	})
	origin := http.NewCrossOriginProtection()
	origin.SetDenyHandler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fail(w, http.StatusForbidden, "a web page of another origin may not do this", "use the millrace command")
	}))
	return s.local(origin.Handler(mux))
}

// profiles serves what net/http/pprof has, with the token: profiles tell more
// than a status does. The command line is left out, for it may hold passwords.
func (s *Server) profiles(mux *http.ServeMux) {
	for path, serve := range map[string]http.HandlerFunc{
		"": pprof.Index, "profile": pprof.Profile, "symbol": pprof.Symbol, "trace": pprof.Trace,
	} {
		mux.HandleFunc("GET "+PathProfiles+path, s.guard(true, func(w http.ResponseWriter, r *http.Request) {
			// A profile takes as long as it was asked for. Its handler refuses what
			// is longer than the server's deadline, which is lifted here.
			unlimited(w)
			serve(w, r.WithContext(context.WithValue(r.Context(), http.ServerContextKey, nil)))
		}))
	}
}

// local refuses requests to a loopback server under a foreign name: a web page
// whose name was made to point here would otherwise pass as this machine.
func (s *Server) local(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if s.loopback && !loopback.Host(r.Host) {
			fail(w, http.StatusForbidden, "this address is for this machine only", "use the host and port that the sync printed")
			return
		}
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
		next.ServeHTTP(w, r)
	})
}

// guard asks for the token where needed.
func (s *Server) guard(needed bool, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		given, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if needed && (!ok || subtle.ConstantTimeCompare([]byte(given), []byte(s.token)) != 1) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			fail(w, http.StatusUnauthorized, "the token is missing or wrong",
				"run the command as the user and on the machine of the sync, or set MILLRACE_TOKEN to the sync's token")
			return
		}
		next(w, r)
	}
}

// act is a request that changes the job and replies with its new status.
func (s *Server) act(name string, do func(context.Context) error) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		s.log.Info("control request", "request", name, "from", r.RemoteAddr)
		unlimited(w)
		s.answer(w, name, do(r.Context()))
	}
}

// limits takes new rates and loads as the body; one that is not named stays.
func (s *Server) limits(w http.ResponseWriter, r *http.Request) {
	type limits struct {
		pace.Rates
		pace.Loads
	}
	st := s.job.Status()
	now := limits{st.Limits, st.Load.Loads}
	wish := now
	body := json.NewDecoder(r.Body)
	body.DisallowUnknownFields()
	err := body.Decode(&wish)
	if err == nil {
		err = wish.Check()
	}
	if err != nil {
		fail(w, http.StatusBadRequest, "the body is no limits: "+err.Error(),
			`send {"docsPerSecond": 1000, "bytesPerSecond": 0, "sourceLoad": "low", "targetLoad": "max"}`)
		return
	}
	s.act("limits", func(ctx context.Context) error {
		if wish.Loads != now.Loads {
			if err := s.job.SetLoads(ctx, wish.Loads); err != nil {
				return err
			}
		}
		if wish.Rates != now.Rates {
			return s.job.SetLimits(ctx, wish.Rates)
		}
		return nil
	})(w, r)
}

// finalize waits for the end, however long it takes. One that failed may be
// asked for again.
func (s *Server) finalize(ending context.Context) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var wish Finalize
		body := json.NewDecoder(r.Body)
		body.DisallowUnknownFields()
		if err := body.Decode(&wish); err != nil && !errors.Is(err, io.EOF) {
			fail(w, http.StatusBadRequest, "the body is no finalize: "+err.Error(), `send {"whenCaughtUp": true}, or nothing`)
			return
		}
		s.log.Info("control request", "request", "finalize", "from", r.RemoteAddr)
		unlimited(w)
		outcome := s.finalizes.DoChan(strconv.FormatBool(wish.WhenCaughtUp), func() (any, error) {
			if s.job.Status().Phase == job.PhaseFinalized {
				return nil, nil
			}
			return nil, s.job.Finalize(ending, wish.WhenCaughtUp)
		})
		select {
		case <-r.Context().Done():
			s.log.Info("who asked to finalize went away; finalize goes on", "from", r.RemoteAddr)
		case o := <-outcome:
			s.answer(w, "finalize", o.Err)
		}
	}
}

// unlimited lifts the connection's deadlines for a request that waits for the
// job. The read deadline counts too: when it passes, the request is canceled.
func unlimited(w http.ResponseWriter) {
	rc := http.NewResponseController(w)
	_ = rc.SetReadDeadline(time.Time{})
	_ = rc.SetWriteDeadline(time.Time{})
}

// answer replies with the job's new status, or with why there is none.
func (s *Server) answer(w http.ResponseWriter, name string, err error) {
	if err == nil {
		reply(w, http.StatusOK, s.job.Status())
		return
	}
	s.log.Warn("control request failed", "request", name, "error", err)
	code := http.StatusConflict
	if errors.Is(err, context.Canceled) {
		code = http.StatusServiceUnavailable
	}
	f := Failure{Error: mongo.Brief(err), Hint: mongo.HintOf(err)}
	if refusal, ok := errors.AsType[*job.Refusal](err); ok {
		f.Code = refusal.Code
	}
	reply(w, code, f)
}

func fail(w http.ResponseWriter, code int, text, hint string) {
	reply(w, code, Failure{Error: text, Hint: hint})
}

// reply writes the whole body before returning, so that a shutdown right
// afterwards does not cut it.
func reply(w http.ResponseWriter, code int, body any) {
	raw, err := json.Marshal(body)
	if err != nil {
		code, raw = http.StatusInternalServerError, []byte(`{"error":"the reply cannot be written as JSON"}`)
	}
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.WriteHeader(code)
	_, _ = w.Write(append(raw, '\n'))
}
