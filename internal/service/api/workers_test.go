package api

import (
	"net/http"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestDrain: an admin of all jobs drains a worker that is there, and the trail says so.
func TestDrain(t *testing.T) {
	r := newRig(t)
	if err := r.hub.Workers.Present(t.Context(),
		&service.Worker{Name: "w1", Jobs: []string{}, StartedAt: time.Now().UTC(), At: time.Now().UTC()}); err != nil {
		t.Fatal(err)
	}
	for len(r.view.Workers()) == 0 {
		changed, _ := r.view.Changed()
		if len(r.view.Workers()) == 0 {
			<-changed
		}
	}
	w1 := PathWorkers + "/w1/drain"
	for _, c := range []struct {
		who, method, path string
		code              int
	}{
		{"some", http.MethodPost, w1, http.StatusForbidden},
		{"operator", http.MethodPost, w1, http.StatusForbidden},
		{"admin", http.MethodPost, PathWorkers + "/none/drain", http.StatusNotFound},
		{"admin", http.MethodPost, w1 + "?now=true", http.StatusBadRequest},
		{"admin", http.MethodPost, w1, http.StatusOK},
		{"admin", http.MethodDelete, w1, http.StatusOK},
		{"admin", http.MethodPost, w1, http.StatusOK},
	} {
		a := r.ask(c.who, c.method, c.path, "")
		if a.code != c.code {
			t.Errorf("%s: %s %s: %d %s, not %d", c.who, c.method, c.path, a.code, a.body, c.code)
		} else if a.code == http.StatusOK && into[service.Worker](t, a).Draining != (c.method == http.MethodPost) {
			t.Errorf("%s %s: %s", c.method, c.path, a.body)
		}
	}
	for !r.view.Workers()[0].Draining {
		changed, _ := r.view.Changed()
		if !r.view.Workers()[0].Draining {
			<-changed
		}
	}
	changes := into[Audit](t, r.ask("admin", http.MethodGet, PathAudit, "")).Changes
	what := []string{}
	for _, c := range changes {
		what = append(what, c.What+" "+c.Worker+" "+c.Refused)
	}
	if len(what) != 4 || what[0] != "drain w1 " || what[1] != "undrain w1 " || changes[3].Refused == "" {
		t.Errorf("the trail has %q", what)
	}
}
