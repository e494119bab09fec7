package spans

import (
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"
)

// Request has requests of a route make spans, in the trace of who asks.
func (s *Spans) Request(method, route string, next http.Handler) http.Handler {
	if s == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := s.from.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route)))
		defer span.End()
		told := &teller{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(told, r.WithContext(ctx))
		if name := r.PathValue("name"); name != "" && told.code < 300 { // else it may be any text
			span.SetAttributes(attribute.String("millrace.name", name))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", told.code))
		if told.code >= 500 {
			span.SetStatus(codes.Error, "")
		}
	})
}

// teller knows the status of a reply.
type teller struct {
	http.ResponseWriter
	code int
}

// WriteHeader implements http.ResponseWriter.
func (t *teller) WriteHeader(code int) {
	if code >= 200 {
		t.code = code
	}
	t.ResponseWriter.WriteHeader(code)
}

// Unwrap is for http.ResponseController.
func (t *teller) Unwrap() http.ResponseWriter { return t.ResponseWriter }
