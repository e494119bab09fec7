package api

import (
	"net/http"
	"testing"
)

// TestElsewhere: a token of the provider has the role that its owner has, and is named in
// the audit trail; one that is none of the provider's counts as a wrong guess.
func TestElsewhere(t *testing.T) {
	r := newRig(t)
	for _, name := range []string{"shop-a", "other"} {
		if a := r.ask("admin", http.MethodPost, PathJobs, `{"name": "`+name+`", "settings": `+someSettings+
			`}`); a.code != http.StatusCreated {
			t.Fatalf("%d %s", a.code, a.body)
		}
	}
	for _, c := range []struct {
		who, method, path string
		code              int
	}{
		{"elsewhere", http.MethodPost, PathJobs + "/shop-a/pause", http.StatusOK},
		{"elsewhere", http.MethodPost, PathJobs + "/other/pause", http.StatusNotFound},
		{"elsewhere", http.MethodDelete, PathJobs + "/shop-a", http.StatusForbidden},
		{"nowhere", http.MethodGet, PathJobs, http.StatusUnauthorized},
	} {
		if a := r.ask(c.who, c.method, c.path, ""); a.code != c.code {
			t.Errorf("%s: %s %s: %d %s, not %d", c.who, c.method, c.path, a.code, a.body, c.code)
		}
	}
	trail := into[Audit](t, r.ask("admin", http.MethodGet, PathAudit+"?job=shop-a", ""))
	if len(trail.Changes) == 0 || trail.Changes[0].Who != "ada@example.org" || trail.Changes[0].From != "127.0.0.1" {
		t.Errorf("%+v", trail.Changes)
	}
	for range 30 {
		r.ask("nowhere", http.MethodGet, PathJobs, "")
	}
	if a := r.ask("nowhere", http.MethodGet, PathJobs, ""); a.code != http.StatusTooManyRequests {
		t.Errorf("after many guesses: %d", a.code)
	}
}
