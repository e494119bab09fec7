package spans

import (
	"context"
	"net/http"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
)

const maxCollections = 1000

// Run traces a run of a job. A nil one makes no spans. It is safe for concurrent use.
type Run struct {
	spans *Spans
	// under has the span of the take, which ends when the job runs: spans are sent at their end.
	under context.Context //nolint:containedctx // it holds the parent of spans to come

	mu        sync.Mutex
	take      trace.Span // nil after its end
	phase     trace.Span // nil between phases
	phaseCtx  context.Context
	steps     map[step]trace.Span
	spanned   int // collections with spans
	unspanned int
}

type step struct {
	kind       job.Step
	name, what string
}

// Take begins when a worker takes a job.
func (s *Spans) Take(ctx context.Context, name, worker, run string) *Run {
	if s == nil {
		return nil
	}
	r := &Run{spans: s, steps: map[step]trace.Span{}}
	r.under, r.take = s.tracer.Start(context.WithoutCancel(ctx), "take job", trace.WithNewRoot(),
		trace.WithAttributes(attribute.String("millrace.job", name), attribute.String("millrace.worker", worker),
			attribute.String("millrace.run", run)))
	return r
}

func (r *Run) Taken() {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endTake(nil)
}

// endTake needs mu.
func (r *Run) endTake(err error) {
	if r.take != nil {
		fail(r.take, err)
		r.take.End()
		r.take = nil
	}
}

// End ends all spans. err is nil for a finished job.
func (r *Run) End(err error) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.endTake(err)
	for s, span := range r.steps {
		fail(span, err)
		span.End()
		delete(r.steps, s)
	}
	r.endPhase(time.Now(), class(err))
}

// OnEvent returns a job.Spec.OnEvent; nil makes no spans.
func (r *Run) OnEvent() func(job.Event) {
	if r == nil {
		return nil
	}
	return r.tell
}

func (r *Run) tell(e job.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case e.Step == job.StepPhase && e.Ended:
		r.endPhase(e.At, "")
	case e.Step == job.StepPhase:
		r.begin(&e)
	case e.Ended:
		r.endStep(&e)
	default:
		r.beginStep(&e)
	}
}

// begin makes no span for following, which lasts until the end.
func (r *Run) begin(e *job.Event) {
	switch job.Phase(e.Name) {
	case job.PhaseFollowing, job.PhaseFinalized, job.PhaseFailed:
		return
	}
	r.phaseCtx, r.phase = r.spans.tracer.Start(r.under, "phase "+e.Name, trace.WithTimestamp(e.At),
		trace.WithAttributes(attribute.String("millrace.phase", e.Name)))
}

// endPhase leaves its steps: a copy begins while collections are made.
func (r *Run) endPhase(at time.Time, class string) {
	if r.phase == nil {
		return
	}
	if r.unspanned > 0 {
		r.phase.SetAttributes(attribute.Int("millrace.collections.without.spans", r.unspanned))
	}
	failed(r.phase, class)
	r.phase.End(trace.WithTimestamp(at))
	r.phase, r.phaseCtx, r.spanned, r.unspanned = nil, nil, 0, 0
}

func (r *Run) beginStep(e *job.Event) {
	key := step{e.Step, e.Name, e.What}
	if r.steps[key] != nil { // a later attempt
		return
	}
	under := r.under
	if r.phaseCtx != nil {
		under = r.phaseCtx
	}
	name, list := string(e.Step)+" "+e.Name, []attribute.KeyValue{}
	switch e.Step {
	case job.StepCollection:
		if r.spanned++; r.spanned > maxCollections {
			r.unspanned++
			return
		}
		name, list = "copy collection", append(list, attribute.String("db.namespace", e.Name))
		if e.What != "" {
			list = append(list, attribute.String("millrace.shard", e.What))
		}
	case job.StepSchema:
		name, list = "schema change "+e.What, append(list, attribute.String("db.namespace", e.Name))
	}
	_, r.steps[key] = r.spans.tracer.Start(under, name, trace.WithTimestamp(e.At), trace.WithAttributes(list...))
}

func (r *Run) endStep(e *job.Event) {
	key := step{e.Step, e.Name, e.What}
	span := r.steps[key]
	if span == nil {
		return
	}
	delete(r.steps, key)
	if e.Step == job.StepCollection {
		span.SetAttributes(attribute.Int64("millrace.documents", e.Docs), attribute.Int64("millrace.bytes", e.Bytes))
	}
	failed(span, e.Class)
	span.End(trace.WithTimestamp(e.At))
}

// Verify begins with a verification and returns what ends it.
func (s *Spans) Verify(ctx context.Context, name, id, worker string) (end func(differences int64, err error)) {
	if s == nil {
		return func(int64, error) {}
	}
	_, span := s.tracer.Start(ctx, "verify job", trace.WithNewRoot(),
		trace.WithAttributes(attribute.String("millrace.job", name), attribute.String("millrace.verification", id),
			attribute.String("millrace.worker", worker)))
	return func(differences int64, err error) {
		if err == nil {
			span.SetAttributes(attribute.Int64("millrace.differences", differences))
		}
		fail(span, err)
		span.End()
	}
}

// class omits the text, which may quote documents.
func class(err error) string {
	if err == nil {
		return ""
	}
	return string(mongo.Classify(err))
}

func fail(span trace.Span, err error) { failed(span, class(err)) }

func failed(span trace.Span, class string) {
	if class != "" {
		span.SetStatus(codes.Error, "")
		span.SetAttributes(attribute.String("error.type", class))
	}
}

// Request traces requests of a route, in the client's trace.
func (s *Spans) Request(method, route string, next http.Handler) http.Handler {
	if s == nil {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx := s.from.Extract(r.Context(), propagation.HeaderCarrier(r.Header))
		ctx, span := s.tracer.Start(ctx, method+" "+route, trace.WithSpanKind(trace.SpanKindServer),
			trace.WithAttributes(attribute.String("http.request.method", method), attribute.String("http.route", route)))
		defer span.End()
		reply := &teller{ResponseWriter: w, code: http.StatusOK}
		next.ServeHTTP(reply, r.WithContext(ctx))
		if name := r.PathValue("name"); name != "" && reply.code < 300 { // else any text
			span.SetAttributes(attribute.String("millrace.name", name))
		}
		span.SetAttributes(attribute.Int("http.response.status_code", reply.code))
		if reply.code >= 500 {
			span.SetStatus(codes.Error, "")
		}
	})
}

type teller struct {
	http.ResponseWriter
	code int
}

func (t *teller) WriteHeader(code int) {
	if code >= 200 {
		t.code = code
	}
	t.ResponseWriter.WriteHeader(code)
}

func (t *teller) Unwrap() http.ResponseWriter { return t.ResponseWriter }
