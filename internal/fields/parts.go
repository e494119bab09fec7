package fields

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Part is one rule of a Map by itself.
type Part struct {
	Rule string // where it stands, such as `mask → "mail"`
	Map  *Map
}

// Parts takes rules apart that Parse takes: each may then be tried by itself.
func Parts(rules bson.Raw, secrets func(ref string) (string, error)) (out []Part, err error) {
	add := func(at place, section string, v value) {
		if err != nil {
			return
		}
		doc := bsoncore.NewDocumentBuilder().AppendValue(section,
			bsoncore.Value{Type: bsoncore.Type(v.typ), Data: v.data}).Build()
		var m *Map
		if m, err = Parse(bson.Raw(doc), secrets); err == nil {
			out = append(out, Part{string(at), m})
		}
	}
	for e := range bsonraw.Fields(rules) {
		section, v := string(e.Name), valueOf(e)
		if section == "keep" { // what it leaves out follows from all of it
			add(place(section), section, v)
			continue
		}
		for one := range bsonraw.Fields(v.data) {
			if v.isArray() {
				list := bsoncore.NewArrayBuilder().AppendValue(bsoncore.Value{Type: bsoncore.Type(one.Type),
					Data: one.Value}).Build()
				add(place(section).key(valueOf(one).text()), section, value{bson.TypeArray, list})
				continue
			}
			rule := bsoncore.NewDocumentBuilder().AppendValue(string(one.Name),
				bsoncore.Value{Type: bsoncore.Type(one.Type), Data: one.Value}).Build()
			add(place(section).key(string(one.Name)), section, value{bson.TypeEmbeddedDocument, slices.Clone(rule)})
		}
	}
	return out, err
}
