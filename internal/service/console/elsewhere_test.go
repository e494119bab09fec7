package console

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/oidc"
	"github.com/millrace/millrace/test/oidctest"
)

// TestElsewhere: who logs in at the provider comes to the page that they wanted, with the
// role that the rules say; who is refused there, or of no rule, does not.
func TestElsewhere(t *testing.T) {
	r, there := newRig(t), oidctest.New(t)
	server := httptest.NewUnstartedServer(nil)
	o := r.options
	o.Provider = oidc.New(oidc.Settings{Issuer: there.URL, ClientID: there.ClientID, ClientSecret: there.ClientSecret,
		URL:   "http://" + server.Listener.Addr().String(),
		Roles: []oidc.Rule{{Claim: "groups", Value: "ops", Role: service.Operator}}}, nil)
	server.Config.Handler = New(o)
	server.Start()
	t.Cleanup(server.Close)
	jar, _ := cookiejar.New(nil)
	client := &http.Client{Jar: jar}
	get := func(path string) (code int, page, refresh string) {
		t.Helper()
		resp, err := client.Get(server.URL + path)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), resp.Header.Get("Refresh")
	}
	if _, page, _ := get("/workers"); !strings.Contains(page, `href="/login/oidc?next=%2Fworkers"`) {
		t.Fatalf("the login does not lead to the provider: %s", page)
	}
	for name, claims := range map[string]map[string]any{"refused there": nil,
		"of no rule": {"sub": "eve", "groups": []string{"other"}}} {
		there.Be(claims)
		if code, page, _ := get("/login/oidc?next=/workers"); code != http.StatusForbidden || strings.Contains(page, "<b>") ||
			strings.Contains(page, "\u202e") {
			t.Errorf("%s: %d %s", name, code, page)
		}
		if _, page, _ := get("/workers"); !strings.Contains(page, "Log in") {
			t.Errorf("%s: logged in all the same", name)
		}
	}
	there.Be(map[string]any{"sub": `otto<i>`, "groups": []string{"ops"}})
	code, page, refresh := get("/login/oidc?next=/workers")
	if code != http.StatusOK || refresh != "0; url=/workers" || !strings.Contains(page, `href="/workers"`) {
		t.Errorf("%d %s %s", code, refresh, page)
	}
	if _, page, _ := get("/workers"); !strings.Contains(page, "<bdi>otto&lt;i&gt;</bdi>, operator") {
		t.Errorf("not logged in as otto: %s", page)
	}
	if code, _, _ := get("/audit"); code != http.StatusForbidden {
		t.Errorf("an operator reads the audit trail: %d", code)
	}
	if code, _, _ := get("/login/oidc/back?code=x&state=y"); code != http.StatusForbidden {
		t.Errorf("a login that was not begun: %d", code)
	}
	if _, _, refresh := get("/login/oidc?next=https://evil.example/"); refresh != "0; url=/jobs" {
		t.Errorf("led to %q", refresh)
	}
}

// TestGuesses: a login says why it is refused. Refusals, which anybody can cause, do not fill the log.
func TestGuesses(t *testing.T) {
	r := newRig(t)
	o := r.options
	from := ""
	var log bytes.Buffer
	o.Log = slog.New(slog.NewTextHandler(&log, nil))
	o.Enter = func(_, address string) (*service.Caller, error) {
		from = address
		return nil, errors.New("there were too many")
	}
	server := httptest.NewServer(New(o))
	t.Cleanup(server.Close)
	resp, err := http.PostForm(server.URL+"/login", map[string][]string{"token": {"t-admin"}})
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if body, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusUnauthorized ||
		!strings.Contains(string(body), "there were too many") || from != "127.0.0.1" {
		t.Errorf("%d from %q: %s", resp.StatusCode, from, body)
	}
	for range 10 * maxWarnings {
		r := httptest.NewRequest(http.MethodPost, "/login", http.NoBody)
		server.Config.Handler.ServeHTTP(httptest.NewRecorder(), r)
	}
	if n := strings.Count(log.String(), "was refused"); n < maxWarnings || n > 2*maxWarnings {
		t.Errorf("%d lines of the log", n)
	}
}
