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
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"

	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
)

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
