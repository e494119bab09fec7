package alert

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/wneessen/go-mail"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/hub"
)

// Receiver gets notices of alerts.
type Receiver struct {
	// Name identifies the receiver in the store, for all processes.
	Name string
	// Jobs are patterns of names of jobs; none is all.
	Jobs []string
	send sender
}

func (r *Receiver) wants(job string) bool { return service.MatchJob(r.Jobs, job) }

// sender delivers one notice. It returns a refusal for permanent errors.
type sender interface {
	send(ctx context.Context, n *Notice, raw []byte) error
}

type refusal struct{ error }

func (r refusal) Unwrap() error { return r.error }

const (
	sendTime = 15 * time.Second
	// farewell bounds an attempt under way when the process ends.
	farewell = 3 * time.Second
	// firstPause doubles up to lastPause while a receiver does not answer.
	firstPause = time.Second
	lastPause  = 5 * time.Minute
	// oldest is the age at which a notice is dropped.
	oldest = 24 * time.Hour
)

type notifier struct {
	receiver Receiver
	log      *slog.Logger
	pause    time.Duration // the first
}

// take sends a notice until it arrives, is refused or is too old. It fails if ctx ends first.
func (t *notifier) take(ctx context.Context, stored hub.Notice) error {
	var n Notice
	if err := json.Unmarshal(stored.Data, &n); err != nil {
		t.log.Error("a notice of an alert cannot be read, and is left out", "error", err)
		return nil
	}
	for pause := t.pause; ; pause = min(2*pause, lastPause) {
		err := t.try(ctx, &n, stored.Data)
		if err == nil {
			t.log.Debug("notice of an alert arrived", "job", n.Job, "kind", n.Kind, "event", n.Event)
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if _, refused := errors.AsType[refusal](err); refused || time.Since(stored.At) > oldest {
			t.log.Error("a notice of an alert is given up", "job", n.Job, "kind", n.Kind, "event", n.Event, "error", err)
			return nil
		}
		t.log.Warn("a notice of an alert did not arrive; trying again", "job", n.Job, "kind", n.Kind, "event", n.Event,
			"error", err, "retryIn", pause)
		if err := pace.Pause(ctx, pause/2+rand.N(pause)); err != nil {
			return err
		}
	}
}

// try sends once. It may finish within farewell when ctx ends, so that the notice does not come twice.
func (t *notifier) try(ctx context.Context, n *Notice, raw []byte) (err error) {
	sending, cancel := context.WithTimeout(context.WithoutCancel(ctx), sendTime)
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		_ = pace.Pause(sending, farewell)
		cancel()
	})()
	if err := t.receiver.send.send(sending, n, raw); err != nil {
		return fmt.Errorf("notify %s: %w", t.receiver.Name, err)
	}
	return nil
}

// Event is the change of an alert.
type Event string

const (
	Fired    Event = "fired"
	Resolved Event = "resolved"
)

// Notice is the JSON that a receiver gets. ID and Event identify it, also when it comes twice.
type Notice struct {
	Event Event `json:"event"`
	service.Alert
}

const maxText = 2000

func plain(text string) string {
	text = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsGraphic(r):
			return r
		case unicode.IsSpace(r):
			return ' '
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(text, string(unicode.ReplacementChar)))
	return service.Short(text, maxText)
}

type mailer struct {
	host     string
	port     int
	security string
	user     string
	password string
	from     string
	to       []string
	tls      *tls.Config // nil trusts the system's authorities
}

// The ways to a mail server.
const (
	securityStartTLS = "starttls" // and nothing without
	securityTLS      = "tls"
	securityNone     = "none"
)

func (m *mailer) message(n *Notice) (*mail.Msg, error) {
	msg := mail.NewMsg()
	if err := msg.From(m.from); err != nil {
		return nil, err
	}
	if err := msg.To(m.to...); err != nil {
		return nil, err
	}
	subject := fmt.Sprintf("[millrace] %s: %s", n.Job, n.Kind)
	if n.Event == Resolved {
		subject += " is over"
	}
	msg.Subject(subject)
	msg.SetDate()
	// Groups the mails of an alert, and lets servers drop repeated ones.
	id := fmt.Sprintf("%s.%s@millrace", n.ID, n.Event)
	msg.SetMessageIDWithValue(id)
	if n.Event == Resolved {
		msg.SetGenHeader(mail.HeaderInReplyTo, fmt.Sprintf("<%s.%s@millrace>", n.ID, Fired))
	}
	var b strings.Builder
	line := func(name, text string) {
		if text != "" {
			fmt.Fprintf(&b, "%-9s %s\n", name+":", text)
		}
	}
	line("Job", n.Job)
	line("Alert", string(n.Kind))
	line("What", n.Text)
	line("Remedy", n.Hint)
	line("Since", n.FiredAt.UTC().Format("2006-01-02 15:04:05 UTC"))
	if n.ResolvedAt != nil {
		line("Over at", n.ResolvedAt.UTC().Format("2006-01-02 15:04:05 UTC"))
		line("Because", n.Ending)
	}
	msg.SetBodyString(mail.TypeTextPlain, b.String())
	return msg, nil
}

func (m *mailer) send(ctx context.Context, n *Notice, _ []byte) error {
	msg, err := m.message(n)
	if err != nil {
		return refusal{fmt.Errorf("write a mail: %w", err)}
	}
	options := []mail.Option{mail.WithPort(m.port), mail.WithTimeout(sendTime)}
	switch m.security {
	case securityTLS:
		options = append(options, mail.WithSSL())
	case securityNone:
		options = append(options, mail.WithTLSPolicy(mail.NoTLS))
	default:
		options = append(options, mail.WithTLSPolicy(mail.TLSMandatory))
	}
	if m.tls != nil {
		c := m.tls.Clone()
		c.ServerName = m.host
		options = append(options, mail.WithTLSConfig(c))
	}
	if m.user != "" {
		options = append(options, mail.WithSMTPAuth(mail.SMTPAuthAutoDiscover), mail.WithUsername(m.user),
			mail.WithPassword(m.password))
	}
	c, err := mail.NewClient(m.host, options...)
	if err != nil {
		return refusal{fmt.Errorf("use the mail server: %w", err)}
	}
	if err := c.DialAndSendWithContext(ctx, msg); err != nil {
		if e, ok := errors.AsType[*mail.SendError](err); ok && e.ErrorCode() >= 500 && e.ErrorCode() < 600 {
			return refusal{fmt.Errorf("send a mail: %w", err)}
		}
		return fmt.Errorf("send a mail: %w", err)
	}
	return nil
}

// The headers of a webhook's request.
const (
	HeaderTimestamp = "Millrace-Timestamp" // seconds since 1970, of this try
	HeaderSignature = "Millrace-Signature" // see Sign
	HeaderDelivery  = "Millrace-Delivery"  // the same each time that a notice comes
)

type webhook struct {
	url    string // may hold a secret
	secret []byte // none: nothing is signed
	client *http.Client
}

func newWebhook(address string, secret []byte) *webhook {
	return &webhook{url: address, secret: secret, client: &http.Client{
		// A redirect leads to a receiver that nobody configured.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}}
}

func transport(c *tls.Config) http.RoundTripper {
	return &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: c, ForceAttemptHTTP2: true,
		IdleConnTimeout: time.Minute, TLSHandshakeTimeout: sendTime}
}

// Sign returns the HMAC-SHA256, in hex, of the timestamp's digits, a dot and the body.
func Sign(secret []byte, timestamp string, body []byte) string {
	m := hmac.New(sha256.New, secret)
	m.Write([]byte(timestamp + "."))
	m.Write(body)
	return "sha256=" + hex.EncodeToString(m.Sum(nil))
}

// maxReply bounds what is read of a reply, so that its connection is used again.
const maxReply = 64 << 10

func (w *webhook) send(ctx context.Context, n *Notice, raw []byte) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, w.url, bytes.NewReader(raw))
	if err != nil {
		return refusal{errors.New("the address cannot be used")} // the error has it
	}
	at := strconv.FormatInt(time.Now().Unix(), 10)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "millrace")
	req.Header.Set(HeaderDelivery, n.ID+"."+string(n.Event))
	req.Header.Set(HeaderTimestamp, at)
	if len(w.secret) > 0 {
		req.Header.Set(HeaderSignature, Sign(w.secret, at, raw))
	}
	res, err := w.client.Do(req)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the address
		}
		return err
	}
	defer func() { _ = res.Body.Close() }()
	_, _ = io.Copy(io.Discard, io.LimitReader(res.Body, maxReply))
	switch code := res.StatusCode; {
	case code < http.StatusMultipleChoices:
		return nil
	case code < http.StatusInternalServerError && code != http.StatusRequestTimeout &&
		code != http.StatusTooManyRequests && code != http.StatusTooEarly:
		return refusal{fmt.Errorf("it replies %d", code)}
	default:
		return fmt.Errorf("it replies %d", code)
	}
}
