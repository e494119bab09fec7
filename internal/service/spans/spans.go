// Package spans makes OpenTelemetry traces of requests, runs and verifications. A nil *Spans makes none. Spans have no
// secrets, texts of errors or values of documents.
package spans

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"

	"github.com/millrace/millrace/internal/mongo"
)

const (
	// queueSpans bounds waiting spans, textBytes a text: 4 MB in all.
	queueSpans = 1024
	textBytes  = 200
	attributes = 16
	// sendTime bounds a request, sendTries its repetition.
	sendTime  = 5 * time.Second
	sendTries = 10 * time.Second
	endTime   = 3 * time.Second
	// complainEvery is the interval of warnings.
	complainEvery = time.Minute
)

// Variables of OpenTelemetry. Its SDK reads others, and collector.go those of sending.
const (
	envExporter = "OTEL_TRACES_EXPORTER"
	envDisabled = "OTEL_SDK_DISABLED"
)

const tracesPath = "/v1/traces"

// Options say where traces go.
type Options struct {
	// Endpoint is a collector's, such as http://127.0.0.1:4318; "" uses OpenTelemetry's variables.
	Endpoint  string
	LookupEnv func(string) (string, bool)
	// Instance names this process; Version is that of the program.
	Instance, Version string
	Log               *slog.Logger
}

// Spans makes spans. It is safe for concurrent use. A nil one makes none.
type Spans struct {
	provider *sdk.TracerProvider
	tracer   trace.Tracer
	from     propagation.TraceContext
	log      *slog.Logger
}

// Open returns nil if no collector is configured.
func Open(ctx context.Context, o Options) (*Spans, error) {
	to, err := o.collector()
	if err != nil || to == nil {
		return nil, err
	}
	exporter, err := otlptrace.New(ctx, to)
	if err != nil {
		return nil, fmt.Errorf("prepare to send traces: %w", err)
	}
	of, err := resource.New(ctx, resource.WithTelemetrySDK(),
		resource.WithAttributes(attribute.String("service.name", "millrace"), attribute.String("service.version", o.Version),
			attribute.String("service.instance.id", o.Instance)),
		resource.WithFromEnv()) // the last one counts
	if err != nil && of == nil {
		return nil, fmt.Errorf("describe this process for traces: %w", err)
	}
	limits := sdk.NewSpanLimits()
	limits.AttributeValueLengthLimit, limits.AttributeCountLimit, limits.EventCountLimit,
		limits.LinkCountLimit = textBytes, attributes, attributes, 1
	provider := sdk.NewTracerProvider(sdk.WithResource(of), sdk.WithRawSpanLimits(limits),
		sdk.WithBatcher(&quiet{SpanExporter: exporter, log: o.Log}, sdk.WithMaxQueueSize(queueSpans),
			sdk.WithMaxExportBatchSize(queueSpans/4), sdk.WithExportTimeout(sendTries+sendTime)))
	return &Spans{provider: provider, tracer: provider.Tracer("github.com/millrace/millrace"), log: o.Log}, nil
}

func (o *Options) collector() (*collector, error) {
	if o.Endpoint != "" {
		at, err := CheckEndpoint(o.Endpoint)
		if err != nil {
			return nil, err
		}
		return o.newCollector(at)
	}
	name, at := o.variable("ENDPOINT")
	if at == "" || strings.EqualFold(o.env(envDisabled), "true") || strings.EqualFold(o.env(envExporter), "none") {
		return nil, nil
	}
	if _, protocol := o.variable("PROTOCOL"); protocol == "grpc" || protocol == "http/json" {
		o.Log.Warn("no traces are sent: the variables of OpenTelemetry ask for another protocol than http/protobuf",
			"protocol", protocol,
			"hint", "give the collector's HTTP port by --otlp-endpoint, often 4318")
		return nil, nil
	}
	if _, err := CheckEndpoint(at); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	// The endpoint of traces is complete, that of all signals lacks the path.
	if !strings.Contains(name, "TRACES") {
		at = strings.TrimRight(at, "/") + tracesPath
	}
	return o.newCollector(at)
}

// CheckEndpoint completes an endpoint with the path of traces.
func CheckEndpoint(endpoint string) (string, error) {
	const hint = "write http://127.0.0.1:4318, or https:// where the collector has a certificate; give what it asks for " +
		"in OTEL_EXPORTER_OTLP_HEADERS"
	u, err := url.Parse(endpoint)
	switch {
	case err != nil: // its text would quote it
		return "", mongo.WithHint(errors.New("the endpoint of traces is no URL"), hint)
	case u.Scheme != "http" && u.Scheme != "https" || u.Host == "":
		return "", mongo.WithHint(errors.New("the endpoint of traces is not an http or https URL"), hint)
	case u.User != nil || u.RawQuery != "":
		return "", mongo.WithHint(errors.New("the endpoint of traces has a password or a query"), hint)
	}
	if u.Path == "" || u.Path == "/" {
		u.Path = tracesPath
	}
	return u.String(), nil
}

// Close sends the rest, for a few seconds.
func (s *Spans) Close() {
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTime)
	defer cancel()
	if err := s.provider.Shutdown(ctx); err != nil {
		s.log.Debug("the last traces were not sent", "error", err)
	}
}

// quiet logs failures at intervals, and returns none.
type quiet struct {
	sdk.SpanExporter
	log *slog.Logger

	mu   sync.Mutex
	last time.Time
	lost int
}

func (q *quiet) ExportSpans(ctx context.Context, spans []sdk.ReadOnlySpan) error {
	err := q.SpanExporter.ExportSpans(ctx, spans)
	if err == nil || ctx.Err() != nil && errors.Is(ctx.Err(), context.Canceled) {
		return nil
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.lost += len(spans); time.Since(q.last) >= complainEvery {
		q.log.Warn("traces cannot be sent", "spans", q.lost, "error", err)
		q.last, q.lost = time.Now(), 0
	}
	return nil
}
