package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/test/jobtest"
)

// certify writes a certificate of its own authority for a host, with its key, and
// returns the file of both.
func certify(t *testing.T, file, host string, until time.Time) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: serial, Subject: pkix.Name{CommonName: host}, DNSNames: []string{host},
		IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Now().Add(-time.Hour), NotAfter: until}
	cert, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := errors.Join(pem.Encode(&b, &pem.Block{Type: "CERTIFICATE", Bytes: cert}),
		pem.Encode(&b, &pem.Block{Type: "PRIVATE KEY", Bytes: private}),
		os.WriteFile(file, b.Bytes(), 0o600)); err != nil {
		t.Fatal(err)
	}
	return file
}

func encrypted(t *testing.T, file string) *Single {
	t.Helper()
	s, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0",
		Log: slog.New(slog.DiscardHandler), Cert: file, Key: file})
	if err != nil {
		t.Fatal(err)
	}
	serving(t, s, jobtest.New(job.Status{}))
	return s
}

// TestTLS: who trusts the authority is served, all others are told what is wrong.
func TestTLS(t *testing.T) {
	dir, later := t.TempDir(), time.Now().Add(time.Hour)
	file := certify(t, filepath.Join(dir, "a.pem"), "localhost", later)
	other := certify(t, filepath.Join(dir, "b.pem"), "localhost", later)
	s := encrypted(t, file)
	plain, _ := running(t, jobtest.New(job.Status{}), "127.0.0.1:0")
	localhost := strings.Replace(s.URL, "127.0.0.1", "localhost", 1)
	for _, c := range []struct{ name, address, ca, hint string }{
		{"trusted", localhost, file, ""},
		{"an unknown authority", localhost, "", "--ca-file"},
		{"another authority", localhost, other, "--ca-file"},
		{"a name that is not in the certificate", s.URL, file, "the host as the certificate does"},
		{"without TLS", server.HostPort(s.URL), "", "https://"},
		{"TLS where there is none", "https://" + server.HostPort(plain.URL), "", "http://"},
	} {
		client := NewClient(c.address, s.Token())
		defer client.Close()
		if err := client.TrustAuthorities(c.ca); err != nil {
			t.Fatal(err)
		}
		_, err := client.Job(t.Context(), "orders")
		if (err == nil) != (c.hint == "") || !strings.Contains(mongo.HintOf(err), c.hint) || err != nil &&
			strings.Contains(err.Error(), s.Token()) {
			t.Errorf("%s: %v, hint %q", c.name, err, mongo.HintOf(err))
		}
	}
	if to, _, _ := server.Endpoint("db.example:7000"); to != "https://db.example:7000" {
		t.Errorf("the token would go to %s", to)
	}
	if err := os.WriteFile(other, []byte("no certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := NewClient(localhost, "").TrustAuthorities(other); err == nil {
		t.Error("a file without a certificate is trusted")
	}
	if _, err := Listen(t.Context(), SingleOptions{Address: "127.0.0.1:0", Log: slog.New(slog.DiscardHandler), Cert: other,
		Key: other}); err == nil {
		t.Error("it listens without a certificate")
	}
}

// TestRenewedCertificate: it is used from the next connection on, and one that is
// half written ends nothing. On the sync's own machine it counts that the
// certificate is that of the record, not its name nor its date.
func TestRenewedCertificate(t *testing.T) {
	dir := t.TempDir()
	file, past := filepath.Join(dir, "a.pem"), time.Now().Add(-time.Minute)
	certify(t, file, "db.example", past)
	s := encrypted(t, file)
	rec := server.Record{Address: s.URL, Token: s.Token(), Cert: file}
	ask := func(r server.Record) error {
		c := NewRecordClient(r)
		defer c.Close()
		_, err := c.Job(t.Context(), "orders")
		return err
	}
	if err := ask(rec); err != nil {
		t.Error(err)
	}
	old := rec
	old.Cert = filepath.Join(dir, "old.pem")
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(os.WriteFile(old.Cert, raw, 0o600), os.WriteFile(file, raw[:len(raw)/2], 0o600)); err != nil {
		t.Fatal(err)
	}
	if err := ask(old); err != nil {
		t.Errorf("while the new one is written: %v", err)
	}
	certify(t, file, "db.example", past)
	if err := ask(rec); err != nil {
		t.Errorf("after the renewal: %v", err)
	}
	if err := ask(old); err == nil || !strings.Contains(err.Error(), old.Cert) {
		t.Errorf("the old one: %v", err)
	}
	r := server.Registry{Dir: t.TempDir()}
	rec.Job, rec.PID = "orders", os.Getpid()
	if _, err := r.Add(rec); err != nil {
		t.Fatal(err)
	}
	found, err := r.Find(t.Context(), server.Wanted{Address: server.HostPort(s.URL)})
	if err != nil || found.Cert != file {
		t.Errorf("%+v, %v", found, err)
	}
}
