package config

import (
	"slices"
	"strings"
	"testing"
)

// TestRuleSets: rules in a file are what they are as flags, in the file's order.
func TestRuleSets(t *testing.T) {
	s, _, err := load(t, []string{"--config=conf.yaml"}, nil, `source: mongodb://a
target: mongodb://b
filter:
  shop.orders: {status: {$in: [open, "paid"]}, n: {$gt: 1.5}, none: null, yes: true}
  "odd=name.*":
    a.b: 'text: "quoted"'
skip:
  shop.carts: none
  shop.*: [delete, drop]
fields:
  shop.orders:
    set: {z: 1, a: {$numberLong: "5"}}
    drop: [card]
    mask:
      email: {last: 4}
`)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct{ got, want []string }{
		{s.Rules.Filter, []string{`shop.orders={"status":{"$in":["open","paid"]},"n":{"$gt":1.5},"none":null,"yes":true}`, `odd\=name.*={"a.b":"text: \"quoted\""}`}},
		{s.Rules.Skip, []string{"shop.carts=none", "shop.*=delete,drop"}},
		{s.Rules.Fields, []string{`shop.orders={"set":{"z":1,"a":{"$numberLong":"5"}},"drop":["card"],"mask":{"email":{"last":4}}}`}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%q\nwant\n%q", c.got, c.want)
		}
	}
	for file, want := range map[string]string{
		"fields:\n  shop.orders: {dorp: [a]}\n":           "dorp",
		"filter:\n  shop.orders: {a: &x 1}\n":             "wrong shape",
		"skip:\n  shop.orders: {delete: true}\n":          "wrong shape",
		"skip:\n  shop.orders: [deletes]\n":               "no operation",
		"fields:\n- shop.orders={\"drop\":[\"_id\"]}\n":   "_id",
		"filter: 'shop.orders={\"a\": {\"$near\": 1}}'\n": "$near",
	} {
		s, o, err := load(t, []string{"--config=conf.yaml"}, nil, "source: mongodb://a\ntarget: mongodb://b\n"+file)
		if err == nil {
			err = asError(s.Validate(o, nil))
		}
		if err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "line 3") {
			t.Errorf("%s: %v, want %q and its line", file, err, want)
		}
	}
}
