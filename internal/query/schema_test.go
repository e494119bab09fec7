package query

import (
	"maps"
	"slices"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/schematest"
	"github.com/millrace/millrace/test/testseed"
)

// TestSchemaTakesWhatParseTakes: an editor complains of no filter that works.
func TestSchemaTakesWhatParseTakes(t *testing.T) {
	s := schematest.Part(t, "filter", Schema())
	g := newGen(testseed.Of(t))
	taken := 0
	for range testseed.Rounds(t, 3000) {
		g.docs = []bson.D{g.document(1), g.document(2)}
		filter := kit.Raw(g.filter(2))
		if _, err := Parse(filter); err != nil {
			continue
		}
		text, err := bson.MarshalExtJSON(filter, g.One(2), false)
		if err != nil {
			continue
		}
		// Two names in JSON are one, and some values read back as others.
		var again bson.Raw
		if err := bson.UnmarshalExtJSON(text, false, &again); err != nil {
			continue
		}
		if _, err := Parse(again); err != nil {
			continue
		}
		taken++
		if err := schematest.Validate(s, text); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
	}
	if taken < 1000 && testseed.Rounds(t, 3000) >= 3000 {
		t.Errorf("only %d filters were compared", taken)
	}
}

// TestSchemaRefuses: an editor finds what Parse refuses, where it is no matter of a regex.
func TestSchemaRefuses(t *testing.T) {
	s := schematest.Part(t, "filter", Schema())
	for _, filter := range []string{
		`{"$where": "1"}`, `{"$or": []}`, `{"$or": {"a": 1}}`, `{"$and": [1]}`, `{"$gt": 1}`, `{"a": {"$foo": 1}}`,
		`{"a": {"$gt": 1, "z": 1}}`,
		`{"a": {"$ref": "c", "$id": 1}}`, `{"a.": 1}`, `{"a..b": 1}`, `{"a": {"$in": 1}}`, `{"a": {"$in": [{"$gt": 1}]}}`,
		`{"a": {"$in": [1, null]}}`, `{"a": {"$regex": 1}}`,
		`{"a": {"$regex": "a", "$options": "g"}}`, `{"a": {"$options": "i"}}`, `{"a": {"$not": 1}}`, `{"a": {"$type": "x"}}`,
		`{"a": {"$type": []}}`,
		`{"a": {"$size": -1}}`, `{"a": {"$size": 1.5}}`, `{"a": {"$mod": [2]}}`, `{"a": {"$all": 1}}`,
		`{"a": {"$elemMatch": 1}}`,
		`{"a": {"$elemMatch": {"b": {"$where": "1"}}}}`, `{"a": {"$bitsAllSet": -1}}`, `{"a": {"$bitsAnySet": "x"}}`,
		`[]`, `"a"`,
	} {
		if schematest.Validate(s, []byte(filter)) == nil {
			t.Errorf("%s is valid", filter)
		}
		if filter[0] == '{' {
			if _, err := Parse(kit.Raw(parseDoc(t, filter))); err == nil {
				t.Errorf("%s is taken", filter)
			}
		}
	}
}

// TestSchemaHasAllOperators: those that Parse knows, and no others.
func TestSchemaHasAllOperators(t *testing.T) {
	names := operatorNames()
	slices.Sort(names)
	if got := slices.Sorted(maps.Keys(operands())); !slices.Equal(got, names) {
		t.Errorf("%v, want %v", got, names)
	}
	operand := map[string]string{"$in": "[1]", "$nin": "[1]", "$not": `{"$gt": 1}`, "$type": `"int"`,
		"$options": `"i", "$regex": "a"`, "$regex": `"a"`,
		"$mod": "[2, 1]", "$all": "[1]", "$elemMatch": `{"b": 1}`}
	for _, name := range names {
		value := operand[name]
		if value == "" {
			value = "1"
		}
		if _, err := Parse(kit.Raw(parseDoc(t, `{"a": {"`+name+`": `+value+`}}`))); err != nil {
			t.Error(err)
		}
	}
}
