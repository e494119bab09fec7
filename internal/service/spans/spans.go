// Package spans makes OpenTelemetry traces of requests, runs and verifications. A nil *Spans makes none. Spans have no
// secrets, texts of errors or values of documents.
package spans

import (
	"bytes"
	"compress/gzip"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/exporters/otlp/otlptrace"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/sdk/resource"
	sdk "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/trace"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
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

// maxReply bounds what is read of a reply, in bytes, to reuse its connection.
const maxReply = 64 << 10

// collector sends OTLP over HTTP with protobuf, as otlptrace.Client. OpenTelemetry's own exporter needs gRPC.
type collector struct {
	at     string
	header http.Header
	client *http.Client
}

// variable prefers OTEL_EXPORTER_OTLP_TRACES_… to OTEL_EXPORTER_OTLP_….
func (o *Options) variable(rest string) (name, value string) {
	for _, name = range []string{"OTEL_EXPORTER_OTLP_TRACES_" + rest, "OTEL_EXPORTER_OTLP_" + rest} {
		if value = o.env(name); value != "" {
			break
		}
	}
	return name, value
}

func (o *Options) env(name string) string {
	value, _ := o.LookupEnv(name)
	return strings.TrimSpace(value)
}

func (o *Options) newCollector(at string) (*collector, error) {
	header := http.Header{"Content-Type": {"application/x-protobuf"}, "User-Agent": {"millrace/" + o.Version}}
	name, list := o.variable("HEADERS")
	for i, pair := range strings.Split(list, ",") {
		if strings.TrimSpace(pair) == "" {
			continue
		}
		key, value, is := strings.Cut(pair, "=")
		value, err := url.PathUnescape(value)
		if key = strings.TrimSpace(key); !is || key == "" || err != nil { // the text may be a secret
			return nil, mongo.WithHint(fmt.Errorf("%s: cannot read header %d", name, i+1),
				"write name=value,name=value; in values %2C stands for a comma, %25 for a percent sign")
		}
		header.Set(key, strings.TrimSpace(value))
	}
	if name, how := o.variable("COMPRESSION"); how == "gzip" {
		header.Set("Content-Encoding", how)
	} else if how != "" && how != "none" {
		return nil, mongo.WithHint(fmt.Errorf("%s: unknown compression %q", name, how), "set it to gzip or none")
	}
	secure, err := o.secure()
	if err != nil {
		return nil, err
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.TLSClientConfig = secure
	return &collector{at: at, header: header, client: &http.Client{
		Transport: transport, Timeout: sendTime,
		// Headers may be secrets.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}, nil
}

func (o *Options) secure() (*tls.Config, error) {
	secure := &tls.Config{MinVersion: tls.VersionTLS12}
	if name, file := o.variable("CERTIFICATE"); file != "" {
		text, err := os.ReadFile(file)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		secure.RootCAs = x509.NewCertPool()
		if !secure.RootCAs.AppendCertsFromPEM(text) {
			return nil, mongo.WithHint(fmt.Errorf("%s: %s has no certificate", name, file), "name a file of PEM certificates")
		}
	}
	name, file := o.variable("CLIENT_CERTIFICATE")
	if _, key := o.variable("CLIENT_KEY"); file != "" || key != "" {
		one, err := tls.LoadX509KeyPair(file, key)
		if err != nil {
			return nil, fmt.Errorf("%s and its key: %w", name, err)
		}
		secure.Certificates = []tls.Certificate{one}
	}
	return secure, nil
}

func (c *collector) Start(context.Context) error { return nil }

func (c *collector) Stop(context.Context) error {
	c.client.CloseIdleConnections()
	return nil
}

var errBusy = errors.New("try again later")

func (c *collector) UploadTraces(ctx context.Context, spans []*tracepb.ResourceSpans) error {
	// These are the bytes of ExportTraceServiceRequest, whose package needs gRPC.
	body, err := proto.Marshal(&tracepb.TracesData{ResourceSpans: spans})
	if err != nil {
		return err
	}
	if c.header.Get("Content-Encoding") == "gzip" {
		var packed bytes.Buffer
		w := gzip.NewWriter(&packed)
		if _, err := w.Write(body); err != nil {
			return err
		}
		if err := w.Close(); err != nil {
			return err
		}
		body = packed.Bytes()
	}
	until := time.Now().Add(sendTries)
	again := func(err error, pause time.Duration) bool {
		return errors.Is(err, errBusy) && time.Now().Add(pause).Before(until)
	}
	return retry.Again(ctx, time.Second, sendTime, again, func() error { return c.send(ctx, body) })
}

func (c *collector) send(ctx context.Context, body []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.at, bytes.NewReader(body))
	if err != nil {
		return err
	}
	req.Header = c.header.Clone()
	resp, err := c.client.Do(req)
	switch {
	case err != nil && ctx.Err() == nil:
		return fmt.Errorf("%w: %w", errBusy, err)
	case err != nil:
		return err
	}
	defer resp.Body.Close()
	if _, err := io.Copy(io.Discard, io.LimitReader(resp.Body, maxReply)); err != nil {
		return fmt.Errorf("%w: %w", errBusy, err)
	}
	switch resp.StatusCode {
	case http.StatusOK, http.StatusAccepted, http.StatusNoContent:
		return nil
	case http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return fmt.Errorf("%w: %s replies %s", errBusy, c.at, resp.Status)
	}
	return fmt.Errorf("%s replies %s", c.at, resp.Status)
}
