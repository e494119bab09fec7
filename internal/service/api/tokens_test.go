package api

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/yamlfile"
)

// TestTokenFileProblems: each mistake is told with its line, and nothing of a secret.
func TestTokenFileProblems(t *testing.T) {
	_, sum := newToken()
	file := filepath.Join(t.TempDir(), "tokens")
	good := "  - {name: a, role: viewer, sha256: " + sum + "}\n"
	for text, want := range map[string]string{
		"":                  "has no settings",
		"tokens: []\n":      "0 entries",
		"tokens:\n  a: b\n": "tokens is not a list",
		"other: 1\n":        "other is unknown",
		"tokens: [\n":       "is not YAML",
		"\x00\xff":          "",
		"tokens:\n  - 5\n":  "line 2",
		"tokens:\n" + good + "  - {name: b, role: root, sha256: " + sumOf("b") + "}\n":   "line 3",
		"tokens:\n" + good + "  - {name: a, role: admin, sha256: " + sumOf("b") + "}\n":  "is used twice",
		"tokens:\n" + good + "  - {name: b, role: admin, sha256: " + sum + "}\n":         "of another entry",
		"tokens:\n" + good + "\n  - name: b\n    role: admin\n    sha256: secret\n":      "line 6",
		"tokens:\n  - {name: b, role: admin, sha256: " + sum + ", jobs: ['[']}\n":        "is not a pattern",
		"tokens:\n  - {name: b, role: admin, sha256: " + sum + ", jobs: []}\n":           "is an empty list",
		"tokens:\n  - {name: b, role: admin, sha256: " + sum + ", job: [x]}\n":           "line 2",
		"tokens:\n  - {role: admin, sha256: " + sum + "}\n":                              "name",
		"tokens:\n  - {name: \"a\\e[2J\", role: admin, sha256: " + sum + "}\n":           "cannot be shown",
		"tokens:\n  - {name: b, role: admin, token: supersecret, sha256: " + sum + "}\n": "line 2",
		strings.Repeat("#", yamlfile.MaxFile+1):                                          "is larger",
		"tokens: " + strings.Repeat("[", 100_000):                                        "is nested more than",
	} {
		write(t, file, text)
		_, err := OpenTokens(file, slog.New(slog.DiscardHandler))
		problems, ok := errors.AsType[config.Problems](err)
		if !ok || len(problems) == 0 || !strings.Contains(fmt.Sprint(problems[0].Where, " ", problems[0].Setting, " ",
			problems[0].What), want) || problems[0].How == "" || strings.Contains(err.Error(), "supersecret") {
			t.Errorf("%.200q: %v", text, err)
		}
	}
	write(t, file, "tokens:\n"+good)
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	if _, err := OpenTokens(file, slog.New(slog.DiscardHandler)); err == nil ||
		!strings.Contains(err.Error(), "chmod 600") {
		t.Errorf("a file for others: %v", err)
	}
}

// TestTokenFileIsReadAgain: a new one counts, one that cannot be used does not, and
// who listens to events with one that is no more hears no more.
func TestTokenFileIsReadAgain(t *testing.T) {
	token, sum := newToken()
	next, nextSum := newToken()
	file := filepath.Join(t.TempDir(), "tokens")
	write(t, file, "tokens:\n  - {name: a, role: admin, sha256: "+sum+"}\n")
	tokens, err := OpenTokens(file, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	now := time.Now()
	tokens.now = func() time.Time { now = now.Add(2 * lookEvery); return now }
	if c := tokens.Whose(token); c == nil || c.Role != service.Admin || c.Name != "a" {
		t.Fatalf("%+v", c)
	}
	write(t, file, "tokens:\n  - {name: b, role: viewer, jobs: [x*], sha256: "+nextSum+"}\n")
	if c := tokens.Whose(token); c != nil {
		t.Errorf("the old one: %+v", c)
	}
	if c := tokens.Whose(next); c == nil || c.Role != service.Viewer || c.Sees("y") || !c.Sees("x1") {
		t.Errorf("the new one: %+v", c)
	}
	write(t, file, "tokens: [")
	if tokens.Whose(next) == nil {
		t.Error("a file that cannot be used takes the tokens away")
	}
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	if tokens.Whose(next) == nil {
		t.Error("a file that is away takes the tokens away")
	}
	write(t, file+"2", "tokens:\n  - {name: c, role: viewer, sha256: "+sum+"}\n")
	if err := os.Rename(file+"2", file); err != nil {
		t.Fatal(err)
	}
	if c := tokens.Whose(token); c == nil || c.Name != "c" {
		t.Errorf("a file that is moved there: %+v", c)
	}
	for _, none := range []string{"", " ", token + "x", strings.Repeat("x", 1<<20)} {
		if tokens.Whose(none) != nil {
			t.Errorf("%.20q enters", none)
		}
	}
}

// TestRevokedListener: the events end at the next sign of life.
func TestRevokedListener(t *testing.T) {
	r := newRig(t)
	again := func() *service.Caller { return r.api.o.Tokens.Whose(r.tokens["some"]) }
	c := &call{again: again, caller: again()}
	_, sum := newToken()
	write(t, r.file, "tokens:\n  - {name: some, role: admin, sha256: "+sum+"}\n")
	now := time.Now()
	r.api.o.Tokens.now = func() time.Time { now = now.Add(2 * lookEvery); return now }
	if err := r.api.news.beat(&listener{call: c}); err == nil {
		t.Error("it goes on")
	}
}

// TestWrongTokens: an address that guesses has to wait; others do not; what is
// remembered is bounded.
func TestWrongTokens(t *testing.T) {
	tokens := OneToken("admin", "right")
	now := time.Now()
	tokens.now = func() time.Time { return now }
	for range guessBurst {
		if _, err := tokens.Enter("wrong", "10.0.0.1"); !errors.Is(err, ErrWrongToken) {
			t.Fatal(err)
		}
	}
	if _, err := tokens.Enter("wrong", "10.0.0.1"); !errors.Is(err, ErrTooMany) {
		t.Errorf("the next: %v", err)
	}
	if _, err := tokens.Enter("right", "10.0.0.1"); err != nil {
		t.Errorf("the owner of a token is locked out: %v", err)
	}
	if c, err := tokens.Enter("right", "10.0.0.2"); err != nil || c.From != "10.0.0.2" || c.Role != service.Admin {
		t.Errorf("from elsewhere: %+v %v", c, err)
	}
	now = now.Add(guessEvery)
	if _, err := tokens.Enter("wrong", "10.0.0.1"); !errors.Is(err, ErrWrongToken) {
		t.Errorf("after a while: %v", err)
	}
	for i := range 100 { // of one network
		_, _ = tokens.Enter("wrong", fmt.Sprintf("2001:db8::%x", i))
	}
	if _, err := tokens.Enter("wrong", "2001:db8::ffff"); !errors.Is(err, ErrTooMany) {
		t.Errorf("another address of the network: %v", err)
	}
	for i := range 3 * maxGuessers {
		_, _ = tokens.Enter("wrong", fmt.Sprintf("10.1.%d.%d", i/256, i%256))
	}
	if n := len(tokens.guesses.by); n > maxGuessers {
		t.Errorf("%d addresses are remembered", n)
	}
	for range 3 * guessBurst { // who has none guesses nothing
		if _, err := tokens.Enter("", "10.9.9.9"); !errors.Is(err, ErrWrongToken) {
			t.Fatal(err)
		}
	}
}

// TestTooManyOverHTTP: the reply says so.
func TestTooManyOverHTTP(t *testing.T) {
	r := newRig(t)
	r.tokens["guest"] = "mr_wrong"
	for range guessBurst {
		if a := r.ask("guest", "GET", PathJobs, ""); a.code != 401 {
			t.Fatal(a.code)
		}
	}
	if a := r.ask("guest", "GET", PathJobs, ""); a.code != 429 || a.failure(t).Code != CodeTooMany ||
		a.header.Get("Retry-After") == "" {
		t.Errorf("%d %s", a.code, a.body)
	}
}
