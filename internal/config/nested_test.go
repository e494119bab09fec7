package config

import (
	"errors"
	"fmt"
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
		{s.Rules.Filter, []string{`shop.orders={"status":{"$in":["open","paid"]},"n":{"$gt":1.5},"none":null,"yes":true}`,
			`odd\=name.*={"a.b":"text: \"quoted\""}`}},
		{s.Rules.Skip, []string{"shop.carts=none", "shop.*=delete,drop"}},
		{s.Rules.Fields,
			[]string{`shop.orders={"set":{"z":1,"a":{"$numberLong":"5"}},"drop":["card"],"mask":{"email":{"last":4}}}`}},
	} {
		if !slices.Equal(c.got, c.want) {
			t.Errorf("%q\nwant\n%q", c.got, c.want)
		}
	}
}

// TestMistakesInFiles: what is wrong is named with its line, and what can be done.
func TestMistakesInFiles(t *testing.T) {
	const above = "source: mongodb://a\ntarget: mongodb://b\n"
	for _, c := range []struct {
		file string
		line int
		says []string
	}{
		{"moed: all", 3, []string{`"moed" is not a setting`, "did you mean mode?"}},
		{"sync:\n  moed: all", 4, []string{`"moed"`, "did you mean mode?"}},
		{"snyc:\n  mode: all", 3, []string{"did you mean sync?"}},
		{"verify:\n  methd: digest", 4, []string{"did you mean method?"}},
		{"sync: all", 3, []string{"the section of a command"}},
		{"mode: al", 3, []string{`mode "al"`, "use all, full"}},
		{"mode:", 3, []string{"mode has no value", "write a single value"}},
		{"mode: {a: b}", 3, []string{"mode has a mapping", "write a single value"}},
		{"mode: &x all", 3, []string{"mode has an anchor", "write the value itself"}},
		{"readers: 1.5", 3, []string{`"1.5"`, "a whole number"}},
		{"readers: [1, 2]", 3, []string{"readers is one value"}},
		{"dry-run: yes", 3, []string{`"yes"`, "true or false"}},
		{"warn-window: 10", 3, []string{`"10"`, "30s"}},
		{"apply-buffer: lots", 3, []string{`"lots"`, "256MiB"}},
		{"mode: all\nmode: full", 4, []string{"already defined", "write it once"}},
		{"sync:\n\tmode: all", 4, []string{"spaces"}},
		{"mode: all\n---\nmode: full", 5, []string{"second document"}},
		{"include:\n- a.b\n- .x", 5, []string{"database is missing", "write db"}},
		{"include: [a, [b]]", 3, []string{"include has a list"}},
		{"rename:\n  a: b\n  c.d: e", 5, []string{"one side names a database", "write db=db2"}},
		{"rename:\n  a: b\n  c: [d]", 5, []string{"rename has a list", "shop: store"}},
		{"source-shard:\n- s0=mongodb://a\n- s1", 5, []string{"name=URI"}},
		{"shard:\n- a.b=x:1\n- a.c=x:-1", 5, []string{"a.c", "write for example"}},
		{"filter:", 3, []string{"filter has no value", "shop.orders: {status: open}"}},
		{"filter:\n  a.b: {x: 1}\n  shop.orders:", 5, []string{"filter has no value", "shop.orders: {status: open}"}},
		{"filter:\n  shop.orders: open", 4, []string{"filter has a value of the wrong shape"}},
		{"filter:\n  shop.orders: [a]", 4, []string{"filter has a list"}},
		{"filter:\n  shop.orders:\n    a: &x 1", 5, []string{"an anchor"}},
		{"filter:\n  shop.orders: {a: 0x10}", 4, []string{"a number that JSON has not", "decimal digits"}},
		{"filter:\n  a.b: {x: 1}\n  shop.orders: {status: {$inn: [open]}}", 5, []string{`at "status" → $inn`, "$in, $nin"}},
		{"filter:\n  shop.orders: {status: {$in: open}}", 4, []string{`at "status" → $in`, "list"}},
		{"filter:\n  shop.orders: {a: 1}\n  shop.orders: {b: 1}", 5, []string{"already defined", "write it once"}},
		{"filter:\n- a.b={}\n- 'shop.orders={\"a\": {\"$near\": 1}}'", 5, []string{"$near", "write 'db.coll="}},
		{"skip:\n  a.b: none\n  shop.orders: [delete, dorp]", 5, []string{`"dorp" is no operation`, "there are insert"}},
		{"skip:\n  shop.orders: {delete: true}", 4, []string{"skip has a mapping", "[delete, drop]"}},
		{"soft-delete:\n  shop.orders: [a, b]", 4, []string{"soft-delete has a list", "deletedAt"}},
		{"soft-delete:\n  shop.orders: a.b", 4, []string{`"a.b"`, "write 'db.coll=deletedAt'"}},
		{"fields:\n  a.b: {drop: [x]}\n  shop.orders: {dorp: [card]}", 5, []string{`"dorp"`, "there are keep"}},
		{"fields:\n  shop.orders: {drop: card}", 4, []string{"at drop", "list of paths", "docs/reference/rules.md"}},
		{"fields:\n  shop.orders: {drop: [_id]}", 4, []string{"_id", "leave it out"}},
		{"fields:\n  shop.orders: {convert: {a: {to: number}}}", 4, []string{`convert → "a" → to`, "decimal"}},
		{"fields:\n  shop.orders: {mask: {a: {hmac: env:MILLRACE_TEST_NONE}}}", 4,
			[]string{"MILLRACE_TEST_NONE is not set", "have it where millrace runs"}},
		{"fields:\n  shop.orders:\n    compute: {a: 'dco.x * 2'}", 4,
			[]string{`compute → "a"`, "'dco'", "did you mean 'doc'"}},
		{"fields:\n- shop.orders={\"drop\":[\"a\",\"a.b\"]}", 4, []string{"overlap"}},
	} {
		s, o, err := load(t, []string{"--config=conf.yaml"}, nil, above+c.file+"\n")
		if err == nil {
			err = asError(s.Validate(o, nil))
		}
		var p Problems
		if !errors.As(err, &p) || len(p) != 1 || p[0].How == "" {
			t.Errorf("%s: %v, want one problem and what to do", c.file, err)
			continue
		}
		for _, want := range append(c.says, fmt.Sprintf("line %d", c.line)) {
			if !strings.Contains(p.Error(), want) {
				t.Errorf("%s: %v, want %s", c.file, p, want)
			}
		}
	}
}
