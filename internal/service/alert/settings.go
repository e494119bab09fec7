package alert

import (
	"cmp"
	"crypto/tls"
	"fmt"
	"net"
	netmail "net/mail"
	"net/url"
	"strconv"
	"strings"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/yamlfile"
)

const (
	maxReceivers = 20
	maxMails     = 50
)

type Settings struct {
	Rules     Rules
	Receivers []Receiver
}

// Defaults returns the settings without a file: no receivers; API and console show alerts.
func Defaults() *Settings { return &Settings{Rules: DefaultRules()} }

const fileForm = "write rules:, webhooks: and mails:, as docs/reference/configuration.md shows"

// Open reads a file of alerts; resolve returns its secrets. An error in it is a config.Problems.
func Open(file string, resolve config.Resolver) (*Settings, error) {
	raw, err := yamlfile.Load("alerts", file)
	if err != nil {
		return nil, err
	}
	return parse(file, raw, resolve)
}

func parse(file string, raw []byte, resolve config.Resolver) (*Settings, error) {
	out := Defaults()
	r := &yamlfile.Reader{File: file, Resolve: resolve}
	err := r.Whole(raw, fileForm, func(s yamlfile.Section) {
		section{s}.rules(out.Rules)
		section{s}.receivers(out)
	}, "rules", "webhooks", "mails")
	if err != nil {
		return nil, err
	}
	return out, nil
}

type section struct{ yamlfile.Section }

func (s section) rules(into Rules) {
	n := s.Values["rules"]
	if n == nil {
		return
	}
	var known []string
	for _, kind := range service.AlertKinds() {
		known = append(known, string(kind))
	}
	all, ok := s.Section.Section(n, "rules", "write each rule below its name", known...)
	if !ok {
		return
	}
	for _, name := range known {
		n, kind := all.Values[name], service.AlertKind(name)
		if n == nil {
			continue
		}
		rule := into[kind]
		if text, ok := config.Scalar(n); ok && (text == "off" || text == "false") {
			rule.Off = true
			into[kind] = rule
			continue
		}
		keys := []string{"for", "jobs"}
		limit := map[service.AlertKind]string{service.AlertLag: "above", service.AlertWindow: "below"}[kind]
		if limit != "" {
			keys = append([]string{limit}, keys...)
		}
		one, ok := all.Section(n, all.At(name), "write off, or "+strings.Join(keys, ", ")+" below it", keys...)
		if !ok {
			continue
		}
		one.Duration("for", &rule.For)
		if limit != "" {
			one.Duration(limit, &rule.Limit)
		}
		rule.Jobs = one.Patterns()
		into[kind] = rule
	}
}

func (s section) receivers(into *Settings) {
	names := map[string]bool{}
	for _, kind := range []struct {
		key  string
		keys []string
		read func(section) sender
	}{
		{"webhooks", []string{"name", "jobs", "url", "secret", "ca-file", "insecure"}, section.webhook},
		{"mails", []string{"name", "jobs", "server", "security", "user", "password", "from", "to", "ca-file", "insecure"},
			section.mailer},
	} {
		how := "write each as an item, with " + strings.Join(kind.keys, ", ")
		for i, n := range s.Items(kind.key, how) {
			one, ok := s.Section.Section(n, fmt.Sprintf("%s[%d]", kind.key, i), how, kind.keys...)
			if !ok {
				continue
			}
			name := one.Text("name")
			if service.CheckName(name) != nil || strings.Contains(name, ".") {
				one.Bad("name", "is missing, or has more than letters, digits, dashes and underlines",
					"name the receiver: its pending notices are stored under the name")
			} else if names[name] {
				one.Bad("name", fmt.Sprintf("%q is used twice", name), "give each receiver a name of its own")
			}
			names[name] = true
			into.Receivers = append(into.Receivers, Receiver{Name: name, Jobs: one.Patterns(), send: kind.read(section{one})})
		}
	}
	if len(into.Receivers) > maxReceivers {
		s.Fail(s.Node, "", fmt.Sprintf("names %d receivers", len(into.Receivers)),
			fmt.Sprintf("name at most %d", maxReceivers))
	}
}

func (s section) insecure() bool {
	text := s.Text("insecure")
	b, err := strconv.ParseBool(text)
	if text != "" && err != nil {
		s.Bad("insecure", fmt.Sprintf("%.40q is neither true nor false", text), "leave it out")
	}
	return b
}

// webhook reads a webhook. Its address may be a reference, because some addresses are secrets.
func (s section) webhook() sender {
	address := s.Text("url")
	if config.IsReference(address) {
		if address = s.Resolved("url", address); address == "" {
			return nil
		}
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		s.Bad("url", "is missing, or is not an address", "write https://host/path, or env:NAME or file:NAME "+
			"that stands for it")
		return nil
	case u.Scheme == "http" && !loopback.Host(u.Host) && !s.insecure():
		s.Bad("url", "sends without TLS to another machine",
			"write https://, or insecure: true where the network between may read it")
	}
	w := newWebhook(address, []byte(s.Secret("secret")))
	if c := s.tls(); c != nil {
		w.client.Transport = transport(c)
	}
	return w
}

func (s section) tls() *tls.Config {
	file := s.Text("ca-file")
	if file == "" {
		return nil
	}
	c := &tls.Config{MinVersion: tls.VersionTLS12}
	if server.TrustAuthorities(c, file) != nil {
		s.Bad("ca-file", fmt.Sprintf("%.200q cannot be read, or has no certificate", file),
			"give the certificates of its authorities in PEM form")
		return nil
	}
	return c
}

func (s section) mailer() sender {
	m := &mailer{security: cmp.Or(s.Text("security"), securityStartTLS), user: s.Text("user"),
		password: s.Secret("password"), from: s.Text("from"), tls: s.tls()}
	ports := map[string]int{securityStartTLS: 587, securityTLS: 465, securityNone: 25}
	if m.port = ports[m.security]; m.port == 0 {
		s.Bad("security", fmt.Sprintf("%.40q is unknown", m.security), "use starttls, tls or none")
	}
	if host, port, err := net.SplitHostPort(s.Text("server")); err == nil {
		if m.port, err = strconv.Atoi(port); err != nil || m.port < 1 || m.port > 65535 {
			s.Bad("server", fmt.Sprintf("has no port %.20q", port), "write host:587")
		}
		m.host = host
	} else {
		m.host = s.Text("server")
	}
	if m.host == "" || strings.ContainsAny(m.host, "/ @") {
		s.Bad("server", "is missing, or is not a host", "write the mail server as host:587")
	}
	if m.security == securityNone && !loopback.Host(m.host) && !s.insecure() {
		s.Bad("security", "is none, to another machine",
			"use starttls or tls, or insecure: true where the network between may read the mails and the password")
	}
	if (m.user == "") != (s.Values["password"] == nil) {
		s.Bad("user", "and password belong together", "give both or none")
	}
	m.to = s.Texts("to", "write the addresses as a list")
	if len(m.to) == 0 || len(m.to) > maxMails {
		s.Bad("to", fmt.Sprintf("has %d addresses", len(m.to)), fmt.Sprintf("name 1 to %d", maxMails))
	}
	for i, a := range append([]string{m.from}, m.to...) {
		if _, err := netmail.ParseAddress(a); err != nil {
			s.Bad([]string{"from", "to"}[min(i, 1)], fmt.Sprintf("%.60q is not a mail address", a), "write name@example.org")
		}
	}
	return m
}
