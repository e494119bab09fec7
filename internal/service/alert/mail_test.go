package alert

import (
	"bufio"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/spawn"
	"github.com/millrace/millrace/test/hubtest"
)

// aiosmtpdVersion is the one that the test was written with.
const aiosmtpdVersion = "1.4.6"

// aiosmtpd is a python that has it, in an environment of its own below the user's cache.
func aiosmtpd(t *testing.T) string {
	t.Helper()
	cache, err := os.UserCacheDir()
	if err != nil {
		t.Skip("there is no cache directory: ", err)
	}
	dir := filepath.Join(cache, "millrace", "aiosmtpd-"+aiosmtpdVersion)
	python, done := filepath.Join(dir, "bin", "python"), filepath.Join(dir, "done")
	if _, err := os.Stat(done); err == nil {
		return python
	}
	if _, err := exec.LookPath("python3"); err != nil {
		t.Skip("python3 is not installed (Debian, Ubuntu: apt-get install python3-venv)")
	}
	for _, line := range [][]string{
		{"python3", "-m", "venv", "--clear", dir},
		{python, "-m", "pip", "--disable-pip-version-check", "--no-input", "install", "--quiet", "--only-binary=:all:",
			"aiosmtpd==" + aiosmtpdVersion},
	} {
		if out, err := spawn.CommandContext(t.Context(), line[0], line[1:]...).CombinedOutput(); err != nil {
			_ = os.RemoveAll(dir)
			t.Skipf("aiosmtpd cannot be had: %v: %.600s", err, out)
		}
	}
	if err := os.WriteFile(done, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return python
}

// mailed is a mail as the server has it.
type mailed struct {
	From, Text string
	To         []string
	TLS        bool
}

// mailServer is a real one, and what comes to it.
func mailServer(t *testing.T) (port, ca string, mails <-chan mailed) {
	t.Helper()
	python, dir := aiosmtpd(t), t.TempDir()
	s := httptest.NewTLSServer(nil) // whose certificate is for 127.0.0.1
	pair := s.TLS.Certificates[0]
	s.Close()
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	cert, keyFile := filepath.Join(dir, "cert.pem"), filepath.Join(dir, "key.pem")
	for file, block := range map[string]*pem.Block{cert: {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		keyFile: {Type: "PRIVATE KEY", Bytes: key}} {
		if err := os.WriteFile(file, pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := spawn.Command(python, "testdata/smtpd.py", cert, keyFile)
	cmd.Stderr = t.Output()
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	lines.Buffer(nil, 1<<20)
	if !lines.Scan() {
		_ = cmd.Wait()
		t.Fatal("the mail server does not start")
	}
	port = lines.Text()
	came, read := make(chan mailed, 100), make(chan struct{})
	go func() {
		defer close(read)
		for lines.Scan() {
			var m mailed
			if err := json.Unmarshal(lines.Bytes(), &m); err != nil {
				t.Errorf("%v: %s", err, lines.Bytes())
			}
			came <- m
		}
	}()
	t.Cleanup(func() { _ = in.Close(); <-read; _ = cmd.Wait() })
	return port, cert, came
}

// TestMail: mails go by STARTTLS with a password, again after a refusal for the moment,
// and those to nobody hold no others up. What others wrote makes no headers.
func TestMail(t *testing.T) {
	port, ca, mails := mailServer(t)
	s, err := parse("alerts.yaml", fmt.Appendf(nil, `
mails:
  - {name: team, jobs: [shop-*], server: 127.0.0.1:%[1]s, user: millrace, password: env:HOOK, from: Millrace <millrace@example.org>, to: [team@example.org, "Zoë <zoe@example.org>"], ca-file: %[2]q}
  - {name: nobody, server: 127.0.0.1:%[1]s, user: millrace, password: env:HOOK, from: millrace@example.org, to: [nobody@example.org], ca-file: %[2]q}
`, port, ca), resolver)
	if err != nil {
		t.Fatal(err)
	}
	h, v := hubtest.Start(t, time.Minute)
	run(t, h, s)
	fail(t, h, "other")
	fail(t, h, "shop-1")
	next := func() mailed {
		select {
		case m := <-mails:
			return m
		case <-time.After(time.Minute):
			t.Fatal("no mail came")
			return mailed{}
		}
	}
	m := next()
	head, body, _ := strings.Cut(m.Text, "\r\n\r\n")
	if !m.TLS || m.From != "millrace@example.org" || strings.Join(m.To, " ") != "team@example.org zoe@example.org" ||
		!strings.Contains(head, "\r\nSubject: [millrace] shop-1: failed\r\n") {
		t.Errorf("%+v", m)
	}
	if strings.Contains(head, "Bcc") || !strings.Contains(body, "it <b>broke</b>") ||
		strings.ContainsAny(m.Text, "\x1b\u202e") {
		t.Errorf("%s", m.Text)
	}
	var id string
	for line := range strings.SplitSeq(head, "\r\n") {
		if after, ok := strings.CutPrefix(line, "Message-ID: "); ok {
			id = after
		}
	}
	mend(t, h, "shop-1")
	until(t, v, func(_, past []service.Alert) bool { return len(past) == 1 })
	if m = next(); id == "" || !strings.Contains(m.Text, "Subject: [millrace] shop-1: failed is over\r\n") ||
		!strings.Contains(m.Text, "In-Reply-To: "+id+"\r\n") {
		t.Errorf("%s, an answer to %s", m.Text, id)
	}
}
