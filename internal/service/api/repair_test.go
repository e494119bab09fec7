package api

import (
	"fmt"
	"strings"
	"time"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/verify"
)

// repairs asks for repairs of the documents of a verification, which has found the one
// with _id 1 in a.b.
func (r *rig) repairs(of string) {
	r.t.Helper()
	at := of + "/repair"
	const one = `{"ns": "a.b", "key": "EAEAAAA"}`
	for body, code := range map[string]int{"": 415, "{}": 400, `{"all": true, "documents": [` + one + `]}`: 400,
		`{"documents": [{"ns": "a.b", "key": "EAIAAAA"}]}`: 400, `{"documents": [{"ns": "a.b"}]}`: 400,
		`{"all": 1}`: 400, `{"id": "../x", "all": true}`: 400, `{"documents": [` + strings.Repeat(one+",", 1000) + one +
			`]}`: 400} {
		if a := r.ask("operator", "POST", at, body); a.code != code {
			r.t.Errorf("%.60s: %d, want %d: %s", body, a.code, code, a.body)
		}
	}
	if a := r.ask("viewer", "POST", at, `{"all": true}`); a.code != 403 {
		r.t.Errorf("a viewer: %d %s", a.code, a.body)
	}
	body := fmt.Sprintf(`{"id": "mended", "documents": [%s]}`, one)
	a := r.ask("operator", "POST", at, body)
	v := into[Verification](r.t, a)
	if v.Repair == nil || a.code != 201 || v.Repair.Documents != 1 || !strings.HasSuffix(of, v.Repair.Of) ||
		v.State != service.VerifyQueued {
		r.t.Errorf("%d %s", a.code, a.body)
	}
	if a := r.ask("operator", "POST", at, body); a.code != 200 {
		r.t.Errorf("once more: %d %s", a.code, a.body)
	}
	if a := r.ask("operator", "POST", at, `{"all": true}`); a.code != 409 {
		r.t.Errorf("a second one at a time: %d %s", a.code, a.body)
	}
	now := time.Now().UTC()
	found := &service.Findings{Collections: []service.VerifiedCollection{}, Differences: []service.DocumentDifference{},
		Schema: []verify.SchemaDifference{},
		Repaired: []service.RepairedDocument{{NS: "a.b", TargetNS: "a.b", ID: "1", Kind: "content",
			Outcome: string(job.RepairRefused), Why: "why seen"}}}
	if err := r.hub.Verifications.PutFindings(r.t.Context(), "shop-a", "mended", found); err != nil {
		r.t.Fatal(err)
	}
	if err := r.hub.Verifications.Report(r.t.Context(), "shop-a", "mended", &service.VerifyReport{Run: "r", Worker: "w1",
		State: service.VerifySame, StartedAt: now, EndedAt: &now, Repair: &service.RepairProgress{Refused: 1}}); err != nil {
		r.t.Fatal(err)
	}
	r.until("shop-a", func(*service.Job) bool { return !r.view.Verification("shop-a", "mended").Open() })
	for who, seen := range map[string]bool{"viewer": false, "operator": true} {
		a := r.ask(who, "GET", "/api/v1/jobs/shop-a/verifications/mended", "")
		if v := into[Verification](r.t, a); v.Repair == nil || v.Repair.Refused != 1 || len(v.Findings.Repaired) != 1 ||
			strings.Contains(string(a.body), "why seen") != seen {
			r.t.Errorf("%s: %s", who, a.body)
		}
	}
}
