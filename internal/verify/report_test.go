package verify

import (
	"encoding/json"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestReportAsJSON(t *testing.T) {
	r := Report{Same: true, Differences: []Difference{
		{NS: "a.b", TargetNS: "c.d", ID: DocumentID{idValue("\x10\x05\x00\x00\x00")}, Kind: Missing},
		{NS: "a.b", ID: DocumentID{bson.RawValue{Type: bson.TypeString, Value: []byte("\x02\x00\x00\x00\xff\x00")}},
			Kind: Extra, Detail: "x"},
	}}
	out, err := json.Marshal(r)
	if err != nil || !json.Valid(out) {
		t.Fatal(err)
	}
	if !strings.Contains(string(out), `{"ns":"a.b","targetNs":"c.d","id":{"$numberInt":"5"},"kind":"missing"}`) {
		t.Errorf("%s", out)
	}
	r.AddSchema()
	if !r.Same {
		t.Error("no schema difference, yet not the same")
	}
	r.AddSchema(SchemaDifference{NS: "a.b", What: "index", Detail: "x_1 is missing"})
	if r.Same {
		t.Error("a schema difference, yet the same")
	}
}
