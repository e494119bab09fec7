package alert

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net"
	netmail "net/mail"
	"net/url"
	"os"
	"path"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/loopback"
	"github.com/millrace/millrace/internal/service"
)

const (
	// maxFile bounds the file of alerts, maxReceivers those whom it names, maxMails the
	// addresses of one of them.
	maxFile      = 256 << 10
	maxReceivers = 20
	maxMails     = 50
)

// Settings are what is looked for, and who is told.
type Settings struct {
	Rules     Rules
	Receivers []Receiver
}

// Defaults are the rules that hold without a file. Nobody is told; API and console show
// what they find.
func Defaults() *Settings { return &Settings{Rules: DefaultRules()} }

const fileForm = "write rules:, webhooks: and mails:, as docs/service.md shows"

// Open reads a file of alerts; resolve gives the secrets that it refers to. What is wrong
// with it is a config.Problems.
func Open(file string, resolve config.Resolver) (*Settings, error) {
	f, err := os.Open(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, config.Problems{{Setting: "alerts", Where: "file " + file, What: "cannot be read: " + err.Error(), How: "give the path of a YAML file"}}
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the file of alerts: %w", err)
	}
	return parse(file, raw, resolve)
}

func parse(file string, raw []byte, resolve config.Resolver) (*Settings, error) {
	r := &reader{file: file, resolve: resolve}
	out := Defaults()
	if len(raw) > maxFile {
		r.fail(nil, "", fmt.Sprintf("is larger than %d bytes", maxFile), "check the path")
	} else if root := r.root(raw, fileForm); root != nil {
		if s, ok := r.section(root, "", fileForm, "rules", "webhooks", "mails"); ok {
			s.rules(out.Rules)
			s.receivers(out)
		}
	}
	if len(r.problems) > 0 {
		return nil, r.problems
	}
	return out, nil
}

// rules reads the rules over the defaults.
func (s section) rules(into Rules) {
	n := s.values["rules"]
	if n == nil {
		return
	}
	var known []string
	for _, kind := range service.AlertKinds() {
		known = append(known, string(kind))
	}
	all, ok := s.section(n, "rules", "write each rule below its name", known...)
	if !ok {
		return
	}
	for _, name := range known {
		n, kind := all.values[name], service.AlertKind(name)
		if n == nil {
			continue
		}
		rule := into[kind]
		if text, ok := scalar(n); ok && (text == "off" || text == "false") {
			rule.Off = true
			into[kind] = rule
			continue
		}
		keys, limit := []string{"for", "jobs"}, ""
		switch kind {
		case service.AlertLag:
			limit = "above"
		case service.AlertWindow:
			limit = "below"
		case service.AlertFailed, service.AlertConflict, service.AlertNoProgress, service.AlertNoWorker:
		}
		if limit != "" {
			keys = append([]string{limit}, keys...)
		}
		one, ok := all.section(n, all.at(name), "write off, or "+strings.Join(keys, ", ")+" below it", keys...)
		if !ok {
			continue
		}
		one.duration("for", &rule.For)
		if limit != "" {
			one.duration(limit, &rule.Limit)
		}
		rule.Jobs = one.patterns()
		into[kind] = rule
	}
}

// patterns are those of names of jobs.
func (s section) patterns() []string {
	list := s.texts("jobs", "write patterns of names, as in [shop-*], or leave it out for all jobs")
	for _, p := range list {
		if _, err := path.Match(p, ""); err != nil {
			s.bad("jobs", fmt.Sprintf("%.40q is no pattern of names", p), "use * and ?, as in shop-*")
		}
	}
	return list
}

// receivers reads webhooks and mails.
func (s section) receivers(into *Settings) {
	names := map[string]bool{}
	for _, kind := range []struct {
		key  string
		keys []string
		read func(section) sender
	}{
		{"webhooks", []string{"name", "jobs", "url", "secret", "ca-file", "insecure"}, section.webhook},
		{"mails", []string{"name", "jobs", "server", "security", "user", "password", "from", "to", "ca-file", "insecure"}, section.mailer},
	} {
		n := s.values[kind.key]
		if n == nil {
			continue
		}
		list, ok := n.(*ast.SequenceNode)
		if !ok {
			s.bad(kind.key, "is no list", "write each as an item, with "+strings.Join(kind.keys, ", "))
			continue
		}
		for i, n := range list.Values {
			one, ok := s.section(n, fmt.Sprintf("%s[%d]", kind.key, i), "write "+strings.Join(kind.keys, ", "), kind.keys...)
			if !ok {
				continue
			}
			name := one.text("name")
			if service.CheckName(name) != nil || strings.Contains(name, ".") {
				one.bad("name", "is missing, or has more than letters, digits, dashes and underlines", "name the receiver: what it is still to be told is kept under its name")
			} else if names[name] {
				one.bad("name", fmt.Sprintf("%q is there twice", name), "give each receiver a name of its own")
			}
			names[name] = true
			into.Receivers = append(into.Receivers, Receiver{Name: name, Jobs: one.patterns(), send: kind.read(one)})
		}
	}
	if len(into.Receivers) > maxReceivers {
		s.fail(s.node, "", fmt.Sprintf("names %d receivers", len(into.Receivers)), fmt.Sprintf("name at most %d", maxReceivers))
	}
}

// insecure is whether what is sent may be read on its way.
func (s section) insecure() bool {
	text := s.text("insecure")
	b, err := strconv.ParseBool(text)
	if text != "" && err != nil {
		s.bad("insecure", fmt.Sprintf("%.40q is neither true nor false", text), "leave it out")
	}
	return b
}

// webhook reads one. Its address may be a reference: those of some services are secrets.
func (s section) webhook() sender {
	address := s.text("url")
	if config.IsReference(address) {
		if address = s.resolved("url", address); address == "" {
			return nil
		}
	}
	u, err := url.Parse(address)
	switch {
	case err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https":
		s.bad("url", "is missing, or is no address", "write https://host/path, or env:NAME or file:NAME that stands for it")
		return nil
	case u.Scheme == "http" && !loopback.Host(u.Host) && !s.insecure():
		s.bad("url", "sends without TLS to another machine", "write https://, or insecure: true where the network between may read it")
	}
	w := newWebhook(address, []byte(s.secret("secret")))
	if c := s.tls(); c != nil {
		w.client.Transport = transport(c)
	}
	return w
}

// tls trusts the authorities of a file, nil trusts the system's.
func (s section) tls() *tls.Config {
	file := s.text("ca-file")
	if file == "" {
		return nil
	}
	raw, err := os.ReadFile(file) //nolint:gosec // the operator names it
	pool := x509.NewCertPool()
	if err != nil || !pool.AppendCertsFromPEM(raw) {
		s.bad("ca-file", fmt.Sprintf("%.200q cannot be read, or has no certificate", file), "give the certificates of its authorities in PEM form")
		return nil
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: pool}
}

func (s section) mailer() sender {
	m := &mailer{security: s.text("security"), user: s.text("user"), password: s.secret("password"), from: s.text("from"), tls: s.tls()}
	ports := map[string]int{securityStartTLS: 587, securityTLS: 465, securityNone: 25}
	if m.security == "" {
		m.security = securityStartTLS
	}
	if m.port = ports[m.security]; m.port == 0 {
		s.bad("security", fmt.Sprintf("%.40q is unknown", m.security), "use starttls, tls or none")
	}
	server := s.text("server")
	if host, port, err := net.SplitHostPort(server); err == nil {
		if m.port, err = strconv.Atoi(port); err != nil || m.port < 1 || m.port > 65535 {
			s.bad("server", fmt.Sprintf("has no port %.20q", port), "write host:587")
		}
		m.host = host
	} else {
		m.host = server
	}
	if m.host == "" || strings.ContainsAny(m.host, "/ @") {
		s.bad("server", "is missing, or is no host", "write the mail server as host:587")
	}
	if m.security == securityNone && !loopback.Host(m.host) && !s.insecure() {
		s.bad("security", "is none, to another machine", "use starttls or tls, or insecure: true where the network between may read the mails and the password")
	}
	if (m.user == "") != (s.values["password"] == nil) {
		s.bad("user", "and password belong together", "give both or none")
	}
	m.to = s.texts("to", "write the addresses as a list")
	if len(m.to) == 0 || len(m.to) > maxMails {
		s.bad("to", fmt.Sprintf("has %d addresses", len(m.to)), fmt.Sprintf("name 1 to %d", maxMails))
	}
	for i, a := range append([]string{m.from}, m.to...) {
		if _, err := netmail.ParseAddress(a); err != nil {
			s.bad([]string{"from", "to"}[min(i, 1)], fmt.Sprintf("%.60q is no address of mail", a), "write name@example.org")
		}
	}
	return m
}
