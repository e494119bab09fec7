// Package schematest judges texts by a JSON schema, for the tests of those that make one.
package schematest

import (
	"bytes"
	"encoding/json"
	"testing"

	"github.com/santhosh-tekuri/jsonschema/v6"
)

// Compile reads a schema.
func Compile(t testing.TB, text []byte) *jsonschema.Schema {
	t.Helper()
	const name = "tested.schema.json"
	doc, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource(name, doc); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile(name)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Part reads one of the definitions of a schema.
func Part(t testing.TB, name string, definitions any) *jsonschema.Schema {
	t.Helper()
	text, err := json.Marshal(map[string]any{"$ref": "#/$defs/" + name, "$defs": definitions})
	if err != nil {
		t.Fatal(err)
	}
	return Compile(t, text)
}

// Validate says what is wrong with a text of JSON.
func Validate(s *jsonschema.Schema, text []byte) error {
	v, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		return err
	}
	return s.Validate(v)
}
