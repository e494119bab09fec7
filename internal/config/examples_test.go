package config

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/transform"
)

// TestExamples: the page about rules shows what the rules do.
func TestExamples(t *testing.T) {
	page, err := os.ReadFile("../../docs/reference/rules.md")
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("MASK_KEY", "a key of more than 16 bytes")
	block := "(?s)```(yaml rules|json before|json after)\n(.*?)```"
	all := regexp.MustCompile(block).FindAllStringSubmatch(string(page), -1)
	if len(all) != 30 {
		t.Fatalf("%d parts of ten examples", len(all))
	}
	for example := range slices.Chunk(all, 3) {
		if example[0][1] != "yaml rules" || example[1][1] != "json before" || example[2][1] != "json after" {
			t.Fatalf("the order of %q", example)
		}
		s, o, err := load(t, []string{"--config=conf.yaml"}, nil, "source: mongodb://a\ntarget: mongodb://b\n"+example[0][2])
		if err == nil {
			err = asError(s.Validate(o, nil))
		}
		if err != nil {
			t.Errorf("%s: %v", example[0][2], err)
			continue
		}
		rules, err := transform.New(s.Rules)
		if err != nil {
			t.Fatal(err)
		}
		var got []bson.Raw
		for _, doc := range documentsOf(t, example[1][2]) {
			after, err := rules.Route("shop.orders").Try(doc)
			if err != nil {
				t.Error(err)
			}
			if after != nil {
				got = append(got, after)
			}
		}
		want := documentsOf(t, example[2][2])
		if !slices.EqualFunc(got, want, func(a, b bson.Raw) bool { return bytes.Equal(a, b) }) {
			t.Errorf("%s\ngives %v\nwant  %v", example[0][2], got, want)
		}
	}
}

func documentsOf(t *testing.T, text string) (docs []bson.Raw) {
	for dec := json.NewDecoder(strings.NewReader(text)); dec.More(); {
		var one json.RawMessage
		if err := dec.Decode(&one); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var doc bson.Raw
		if err := bson.UnmarshalExtJSON(one, false, &doc); err != nil {
			t.Fatalf("%s: %v", one, err)
		}
		docs = append(docs, doc)
	}
	return docs
}
