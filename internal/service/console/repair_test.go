package console

import (
	"net/url"
	"regexp"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/service"
)

// repairPages asks for repairs of what a verification has found: nothing is done before
// the page that says what would be, and only by operators.
func (r *rig) repairPages(op, viewer *browser) {
	r.t.Helper()
	_, page := op.act("/jobs/shop.a/verification", url.Values{"values": {"1"}})
	id := regexp.MustCompile(`/verification/([0-9A-Z]+)/cancel`).FindStringSubmatch(page)[1]
	key := func(n byte) string {
		return service.DocumentKey(bson.RawValue{Type: bson.TypeInt32, Value: []byte{n, 0, 0, 0}})
	}
	r.reports("shop.a", id, service.VerifyReport{State: service.VerifyDifferent,
		Progress: service.VerifyProgress{Differences: 3}}, &service.Findings{Differences: []service.DocumentDifference{
		{RepairDocument: service.RepairDocument{NS: hostile, TargetNS: hostile, ID: hostile, Kind: "content", Key: key(1)},
			Fields: []string{}},
		{RepairDocument: service.RepairDocument{NS: "a.b", TargetNS: "a.b", ID: "2", Kind: "extra", Key: key(2)},
			Fields: []string{}},
		{RepairDocument: service.RepairDocument{NS: "a.b", TargetNS: "a.b", ID: "nameless", Kind: "missing"},
			Fields: []string{}}}})
	at := "/jobs/shop.a/verification/" + id
	_, page = op.get(at)
	want(r.t, page, "Repair chosen…", "Repair all that are listed…")
	if harmless(r.t, page); strings.Count(page, `type="checkbox"`) != 2 {
		r.t.Errorf("%d documents can be chosen", strings.Count(page, `type="checkbox"`))
	}
	names := regexp.MustCompile(`name="document" form="repair" value="([^"]+)"`).FindAllStringSubmatch(page, -1)
	if _, page := viewer.get(at); strings.Contains(page, "Repair") {
		r.t.Error("a viewer may repair")
	}
	for _, form := range []url.Values{{"which": {"all"}}, {"which": {"all"}, "sure": {"yes"}}} {
		if code, _ := viewer.act(at+"/repair", form); code != 403 {
			r.t.Errorf("a viewer: %d", code)
		}
		if code, _ := op.send(at+"/repair", url.Values{"form": {"guess"}, "which": {"all"}, "sure": {"yes"}}); code != 403 {
			r.t.Errorf("a form without the word: %d", code)
		}
	}
	if code, page := op.act(at+"/repair", url.Values{"which": {"chosen"}}); code == 200 ||
		!strings.Contains(page, "no documents are chosen") {
		r.t.Errorf("nothing is chosen: %d", code)
	}
	_, page = op.act(at+"/repair", url.Values{"which": {"all"}})
	if want(r.t, page, "Repair 2 documents of the target", "writes 1 and deletes 1 documents",
		"delete: <bdi>a.b</bdi> _id <bdi>2</bdi>", `name="sure"`); strings.Contains(page, "nameless") {
		r.t.Error("what cannot be named is to be repaired")
	}
	harmless(r.t, page)
	before := len(r.view.Verifications("shop.a"))
	_, page = op.act(at+"/repair", url.Values{"which": {"chosen"}, "document": {names[0][1]}})
	want(r.t, page, "Repair 1 documents of the target", "&lt;script&gt;")
	if harmless(r.t, page); len(r.view.Verifications("shop.a")) != before {
		r.t.Error("it was done before anybody was sure")
	}
	code, page := op.act(at+"/repair", url.Values{"which": {"chosen"}, "document": {names[0][1]}, "sure": {"yes"}})
	if want(r.t, page, "queued", "Repairs 1 documents", "0 written"); code != 200 {
		r.t.Errorf("%d %s", code, page)
	}
	mended := r.view.Verifications("shop.a")[0].Request
	if mended.Repair == nil || mended.Repair.Of != id || mended.CreatedBy != "otto" {
		r.t.Fatalf("%+v", mended)
	}
	docs, err := r.hub.Verifications.Repair(r.t.Context(), "shop.a", mended.ID)
	if err != nil || len(docs) != 1 || docs[0].NS != hostile || docs[0].Key != key(1) {
		r.t.Errorf("%v %+v", err, docs)
	}
	if code, _ := op.act(at+"/repair", url.Values{"which": {"all"}, "sure": {"yes"}}); code != 409 {
		r.t.Errorf("a second one at a time: %d", code)
	}
	r.reports("shop.a", mended.ID, service.VerifyReport{State: service.VerifyDifferent,
		Repair: &service.RepairProgress{Refused: 1}, Progress: service.VerifyProgress{Differences: 1}}, &service.Findings{
		Repaired: []service.RepairedDocument{{NS: hostile, TargetNS: hostile, ID: hostile, Outcome: "refused",
			Why: "why " + hostile}}})
	_, page = op.get("/jobs/shop.a/verification/" + mended.ID)
	want(r.t, page, "1 refused", "refused: <bdi>&lt;script&gt;", "why &lt;script&gt;")
	harmless(r.t, page)
	if _, page := viewer.get("/jobs/shop.a/verification/" + mended.ID); strings.Contains(page, "why") {
		r.t.Error("a viewer sees why")
	}
}
