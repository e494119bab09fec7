package api

import (
	"strings"
	"testing"
	"time"

	"github.com/millrace/millrace/internal/service"
)

// TestReverse: a finalized job is reversed by those who may make jobs; the replies are as the
// document has them.
func TestReverse(t *testing.T) {
	r := newRig(t)
	path := PathJobs + "/shop/reverse"
	if a := r.ask("admin", "POST", path, `{}`); a.code != 404 {
		t.Errorf("%d %s", a.code, a.body)
	}
	j := r.make("shop")
	if a := r.ask("admin", "POST", path, `{}`); a.code != 409 || !strings.Contains(string(a.body), "before its cut-over") {
		t.Errorf("%d %s", a.code, a.body)
	}
	at := time.Now().UTC()
	if err := r.hub.Jobs.Report(t.Context(), "shop",
		&service.Report{UID: j.UID, Run: "r1", Worker: "w1", State: service.Finished, At: at}); err != nil {
		t.Fatal(err)
	}
	r.until("shop", func(j *service.Job) bool { return j.State() == service.Finished })
	r.answers("w1", nil, func(*service.Question) any {
		return service.DraftPlan{Worker: "w1", Ready: true, Checks: []service.DraftCheck{}}
	})
	dry := `{"dryRun": true, "name": "shop-2"}`
	for end := time.Now().Add(time.Minute); r.ask("admin", "POST", path, dry).code == 409 && time.Now().Before(end); {
	}
	if got := into[Reversal](t, r.ask("admin", "POST", path, dry)); got.Name != "shop-2" || got.Plan == nil ||
		!got.Plan.Ready || got.Job != nil {
		t.Errorf("%+v", got)
	}
	if a := r.ask("admin", "POST", path, `{"dryRun": 1}`); a.code != 400 {
		t.Errorf("%d %s", a.code, a.body)
	}
	made := r.ask("admin", "POST", path, `{}`)
	if got := into[Reversal](t, made); made.code != 201 || got.Job == nil || got.Job.Name != "shop-back" ||
		!strings.Contains(got.Settings, `start-at: "job:shop"`) {
		t.Errorf("%d %s", made.code, made.body)
	}
	if a := r.ask("admin", "POST", path, `{}`); a.code != 200 {
		t.Errorf("once more: %d %s", a.code, a.body)
	}
}
