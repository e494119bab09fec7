package alert

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"strings"

	"github.com/wneessen/go-mail"
)

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
