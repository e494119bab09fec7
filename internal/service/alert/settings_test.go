package alert

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/service"
)

func resolver(_, reference string) (string, error) {
	switch reference {
	case "env:HOOK":
		return "s3cret\n", nil
	case "env:URL":
		return "https://hooks.example.org/T0/s3cret", nil
	}
	return "", errors.New("there is none")
}

func TestSettings(t *testing.T) {
	s, err := parse("a.yaml", []byte(`
rules:
  lag: {above: 10s, for: 0s, jobs: [shop-*]}
  window:
    below: 24h
  no-progress: off
webhooks:
  - {name: ops, url: https://ops.example.org/hook, secret: env:HOOK, jobs: ["shop-*"]}
  - name: chat
    url: env:URL
mails:
  - name: team
    server: smtp.example.org
    user: millrace
    password: env:HOOK
    from: millrace <millrace@example.org>
    to: [team@example.org]
`), resolver)
	if err != nil {
		t.Fatal(err)
	}
	r := s.Rules
	if lag := r[service.AlertLag]; lag.Limit != 10*time.Second || lag.For != 0 || len(lag.Jobs) != 1 {
		t.Errorf("lag: %+v", lag)
	}
	if w := r[service.AlertWindow]; w.Limit != 24*time.Hour || w.For != time.Minute {
		t.Errorf("window: %+v", w)
	}
	if !r[service.AlertNoProgress].Off || r[service.AlertFailed].Off {
		t.Errorf("rules: %+v", r)
	}
	if len(s.Receivers) != 3 || !s.Receivers[0].wants("shop-1") || s.Receivers[0].wants("other") ||
		!s.Receivers[2].wants("other") {
		t.Fatalf("receivers: %+v", s.Receivers)
	}
	if w := s.Receivers[0].send.(*webhook); string(w.secret) != "s3cret" {
		t.Error("the secret is not the one that it refers to")
	}
	if m := s.Receivers[2].send.(*mailer); m.host != "smtp.example.org" || m.port != 587 ||
		m.security != securityStartTLS || m.password != "s3cret" {
		t.Errorf("mail: %+v", m)
	}
}

// TestMistakes: each is told with its line and what to do, and no secret with it.
func TestMistakes(t *testing.T) {
	for text, want := range map[string]string{
		"":                                   `has no settings`,
		"rules: [":                           `line 1`,
		"- rules":                            `is not a mapping`,
		"rules:\n  lagg: {above: 1s}":        `line 2.*rules.lagg.*did you mean lag`,
		"rules:\n  lag:\n    above: tall":    `line 3.*rules.lag.above.*"tall" is not a duration.*30s`,
		"rules:\n  lag: {above: -1s}":        `line 2.*is not a duration`,
		"rules:\n  failed: {above: 1s}":      `line 2.*rules.failed.above.*is unknown`,
		"rules:\n  lag: soon":                `line 2.*rules.lag.*is not a mapping.*write off`,
		"rules:\n  lag: {jobs: ['[']}":       `line 2.*is not a pattern`,
		"rules:\n  lag: {jobs: []}":          `line 2.*rules.lag.jobs.*is an empty list`,
		"webhook: []":                        `line 1.*webhook.*did you mean webhooks`,
		"webhooks: {}":                       `webhooks.*is not a list`,
		"webhooks:\n  - {url: https://x/}":   `line 2.*webhooks\[0\].name.*is missing`,
		"webhooks:\n  - name: a\n    url: x": `line 3.*webhooks\[0\].url.*is not an address`,
		"webhooks:\n  - {name: a, url: https://x/}\n  - {name: a, url: https://x/}": `line 3.*"a" is used twice`,
		"webhooks:\n  - name: a\n    url: http://example.org/":                      `line 3.*without TLS.*https`,
		"webhooks:\n  - name: a\n    url: https://x/\n    secret: " +
			"s3cret": `line 4.*webhooks\[0\].secret.*write env:NAME`,
		"webhooks:\n  - name: a\n    url: https://x/\n    secret: " +
			"env:NONE": `line 4.*env:NONE cannot be read.*MILLRACE_SECRET_NAME of serve`,
		"webhooks:\n  - name: a\n    url: https://x/\n    ca-file: /none": `line 4.*ca-file.*PEM`,
		"mails:\n  - {name: m, server: s, from: a@x, to: [b@x], security: " +
			"tsl}": `line 2.*mails\[0\].security.*starttls, tls or none`,
		"mails:\n  - {name: m, server: s, from: a@x, to: [b@x], security: " +
			"none}": `line 2.*is none, to another machine`,
		"mails:\n  - {name: m, server: 's:x', from: a@x, to: [b@x]}":                            `line 2.*has no port "x"`,
		"mails:\n  - {name: m, server: s, from: a@x, to: [b@x], user: u}":                       `belong together`,
		"mails:\n  - {name: m, server: s, from: nobody, to: []}":                                `mails\[0\].to.*\n.*has 0 addresses.*\n.*"nobody" is not a mail address`,
		"mails:\n  - name: m\n    server: s\n    from: a@x\n    to: [b@x, \"c\\r\\nBcc: d@x\"]": `line 5.*is not a mail address`,
	} {
		_, err := parse("a.yaml", []byte(text), resolver)
		problems, ok := errors.AsType[config.Problems](err)
		if !ok || len(problems) == 0 {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if !regexp.MustCompile("(?s)"+want).MatchString(reported(problems)) || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%q:\n%v\nwant %s", text, err, want)
		}
		for _, p := range problems {
			if p.How == "" || !strings.HasPrefix(p.Where, "file a.yaml") {
				t.Errorf("%q: %+v", text, p)
			}
		}
	}
}

// told is a line for each problem: where, setting, what, how.
func reported(problems config.Problems) string {
	var lines []string
	for _, p := range problems {
		lines = append(lines, strings.Join([]string{p.Where, p.Setting, p.What, p.How}, " "))
	}
	return strings.Join(lines, "\n")
}

// FuzzParse: no file ends the program.
func FuzzParse(f *testing.F) {
	f.Add([]byte("rules: {lag: off}\nwebhooks:\n  - {name: a, url: https://x/}\n"))
	f.Add([]byte("mails: [{to: [a]}]"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		if len(raw) > 4<<10 {
			return
		}
		s, err := parse("f", raw, resolver)
		if (s == nil) == (err == nil) {
			t.Fatal(s, err)
		}
		if err != nil {
			_ = fmt.Sprint(err)
		}
	})
}
