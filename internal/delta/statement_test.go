package delta

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

// stmtCase: what becomes of an update as a statement, on a document on which
// it is valid.
type stmtCase struct {
	name string
	doc  bson.D
	o    bson.D
	form Form
	want bson.D
}

var nested = d("_id", 1, "a", 1, "o", d("x", 1, "p", d("q", 1)), "r", arr{1, 2, d("x", 1), arr{1, 2}})

var stmtCases = []stmtCase{
	{"one field", nested, v2("u", d("a", 2)), Classic, d("$set", d("a", 2))},
	{"delete", nested, v2("d", d("a", false)), Classic, d("$unset", d("a", true))},
	{"nested", nested, v2("d", d("a", false), "so", d("u", d("x", 2), "sp", d("d", d("q", false)))), Classic,
		d("$set", d("o.x", 2), "$unset", d("a", true, "o.p.q", true))},
	{"elements", nested, v2("u", d("a", 2), "sr",
		d("a", true, "u0", 7, "s2", d("u", d("x", 9)), "s3", d("a", true, "u1", 5), "u6", 8)), Classic,
		d("$set", d("a", 2, "r.0", 7, "r.2.x", 9, "r.3.1", 5, "r.6", 8))},
	{"cut", nested, v2("u", d("a", 2), "sr", d("a", true, "l", int32(2))), Classic,
		d("$set", d("a", 2), "$push", d("r", d("$each", arr{}, "$slice", int32(2))))},
	{"cut to nothing", nested, v2("sr", d("a", true, "l", int32(0))), Classic,
		d("$push", d("r", d("$each", arr{}, "$slice", int32(0))))},
	{"cut within", nested, v2("sr", d("a", true, "s3", d("a", true, "l", int32(1)))), Classic,
		d("$push", d("r.3", d("$each", arr{}, "$slice", int32(1))))},
	{"cut and set", nested, v2("sr", d("a", true, "l", int32(2), "u0", 9)), None, nil},
	{"insert", nested, v2("u", d("a", 2), "i", d("n", 1)), Guarded, d("$set", d("a", 2, "n", 1))},
	{"insert in order", nested, v2("i", d("b", 1, "n", 1, "é", 1), "so", d("i", d("5", 1, "10", 1))), None, nil},
	{"insert in both orders", nested, v2("i", d("B", 1, "b", 1, "n", 1, "é", 1), "so",
		d("i", d("10", 1, "50", 1, "a", 1))), Guarded,
		d("$set", d("B", 1, "b", 1, "n", 1, "é", 1, "o.10", 1, "o.50", 1, "o.a", 1))},
	{"insert out of order", nested, v2("i", d("n", 1, "b", 1)), None, nil},
	{"set out of order", nested, v2("u", d("o", 2, "a", 2)), Guarded, d("$set", d("o", 2, "a", 2))},
	{"set out of order in an array", nested, v2("sr", d("a", true, "s2", d("u", d("x", 2, "b", 2)))), None, nil},
	{"insert mixed digits", nested, v2("i", d("10", 1, "1a", 1)), None, nil},
	{"insert zeros", nested, v2("i", d("01", 1, "1", 1)), None, nil},
	{"number in an object", d("_id", 1, "o", d("0", 1)), v2("so", d("u", d("0", 5))), Classic, d("$set", d("o.0", 5))},
	{"dotted", d("_id", 1, "a.b", 1), v2("u", d("a.b", 2)), None, nil},
	{"dotted on the way", d("_id", 1, "a.b", d("x", 1)), v2("sa.b", d("u", d("x", 2))), None, nil},
	{"dollar", d("_id", 1, "$a", 1), v2("u", d("$a", 2)), None, nil},
	{"dollar on the way", d("_id", 1, "$a", d("x", 1)), v2("s$a", d("u", d("x", 2))), None, nil},
	{"empty", d("_id", 1, "", 1), v2("d", d("", false)), None, nil},
	{"empty on the way", d("_id", 1, "", d("x", 1)), v2("s", d("u", d("x", 2))), None, nil},
	{"empty before others, set", d("_id", 1, "", 1, "a", 1), v2("u", d("", 2, "a", 2)), None, nil},
	{"empty before others, set below", d("_id", 1, "o", d("", 1, "a", 1)), v2("so", d("u", d("", 2, "a", 2))), None, nil},
	{"empty before others, inserted", nested, v2("i", d("", 1, "n", 1)), None, nil},
	{"empty before others, inserted below", nested, v2("so", d("i", d("", 1, "n", 1))), None, nil},
	{"dollars within a value", nested, v2("u", d("a", d("$x", 1, "a.b", 2, "", 3))), Classic,
		d("$set", d("a", d("$x", 1, "a.b", 2, "", 3)))},
	{"other type, same value", nested, v2("u", d("a", 1.0)), Classic, d("$set", d("a", 1.0))},
	{"no change", nested, v2("d", d()), None, nil},

	{"modifiers", nested, v1("$set", d("a", 2, "n", 1, "o.x", 3), "$unset", d("o.p.q", true)), Classic,
		d("$set", d("a", 2, "n", 1, "o.x", 3), "$unset", d("o.p.q", true))},
	{"modifiers without $v", nested, d("$set", d("a", 2)), Classic, d("$set", d("a", 2))},
	{"modifiers, empty $set", nested, v1("$set", d(), "$unset", d("a", true)), Classic, d("$unset", d("a", true))},
	{"modifiers, elements", nested, v1("$set", d("r.0", 2, "r.2.x", 1, "r.5", 1)), Classic,
		d("$set", d("r.0", 2, "r.2.x", 1, "r.5", 1))},
	{"modifiers out of order", nested, v1("$set", d("o", 2, "a", 2), "$unset", d("r.0", true)), Guarded,
		d("$set", d("o", 2, "a", 2), "$unset", d("r.0", true))},
	{"new fields out of order", d("_id", 1, "n", 1), v1("$set", d("n", 2, "m", 2)), Guarded, d("$set", d("n", 2, "m", 2))},
	{"modifiers, 4.4's order", nested, v1("$set", d("o.10", 2, "o.9", 2)), None, nil},
	{"modifiers out of order below", nested, v1("$set", d("o.n", 2, "o.m", 2, "z", 1)), None, nil},
	{"modifiers, dollar", nested, v1("$set", d("o.$n", 2)), None, nil},
	{"no modifiers", nested, v1(), None, nil},
}

func TestStatement(t *testing.T) {
	for _, c := range stmtCases {
		t.Run(c.name, func(t *testing.T) {
			prefix := []byte("before")
			out, form := AppendStatement(prefix, mustParse(t, kit.Raw(c.o)))
			if form != c.form {
				t.Errorf("form %s, want %s", form, c.form)
			}
			if !bytes.HasPrefix(out, prefix) || form == None && len(out) != len(prefix) {
				t.Fatalf("the buffer was touched: %q", out)
			}
			if got := out[len(prefix):]; form != None && !bytes.Equal(got, kit.Raw(c.want)) {
				t.Errorf("got  %s\nwant %s", show(got), show(kit.Raw(c.want)))
			}
		})
	}
}

func TestGuardOfModifiers(t *testing.T) {
	yes := d("$exists", true)
	want := kit.Raw(d("n", yes, "m", yes))
	if got := kit.Raw(guard(mustParse(t, kit.Raw(v1("$set", d("n", 2, "m", 2), "$unset", d("z", true)))))); !bytes.Equal(
		got, want) {
		t.Errorf("got  %s\nwant %s", show(got), show(want))
	}
	if got := guard(mustParse(t, kit.Raw(v1("$set", d("m", 2, "n", 2))))); len(got) > 0 {
		t.Errorf("a classic statement has the guard %v", got)
	}
}

func TestGuard(t *testing.T) {
	no := d("$exists", false)
	o := v2("u", d("a", 2), "i", d("n", 1, "z", 1), "so", d("u", d("c", 1, "b", 1), "i", d("k", 1)),
		"sr", d("a", true, "s2", d("i", d("y", 1))))
	yes := d("$exists", true)
	want := kit.Raw(d("n", no, "z", no, "o.c", yes, "o.b", yes, "o.k", no, "r.2.y", no))
	if got := kit.Raw(guard(mustParse(t, kit.Raw(o)))); !bytes.Equal(got, want) {
		t.Errorf("got  %s\nwant %s", show(got), show(want))
	}
}

// testStatements: the server makes of each statement what Apply makes of the
// update, also of the ones whose inserts exist already, thanks to the guard.
func testStatements(t *testing.T, s *server) {
	var list []folded
	for _, c := range stmtCases {
		dl := mustParse(t, kit.Raw(c.o))
		after, _, err := Apply(nil, kit.Raw(c.doc), dl)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, folded{kit.Raw(c.doc), after, dl, 1})
	}
	moved := d("_id", 1, "n", 7, "a", 1, "o", d("k", 7, "x", 1), "r", arr{d("y", 7, "x", 1)})
	// A u of fields that are not there, as in a time-series bucket.
	dl := mustParse(t, kit.Raw(v2("so", d("u", d("c", 1, "b", 1)))))
	after, _, err := Apply(nil, kit.Raw(moved), dl)
	if want := kit.Raw(d("_id", 1, "n", 7, "a", 1, "o", d("k", 7, "x", 1, "c", 1, "b", 1),
		"r", arr{d("y", 7, "x", 1)})); err != nil || !bytes.Equal(after, want) {
		t.Fatal(show(after), err)
	}
	list = append(list, folded{kit.Raw(moved), after, dl, 1})
	for _, o := range []bson.D{v2("i", d("n", 1)), v2("so", d("i", d("k", 1))),
		v2("sr", d("a", true, "s0", d("i", d("y", 1))))} {
		dl := mustParse(t, kit.Raw(o))
		after, _, err := Apply(nil, kit.Raw(moved), dl)
		if err != nil || bytes.Equal(after, kit.Raw(moved)) {
			t.Fatal(show(after), err)
		}
		list = append(list, folded{kit.Raw(moved), after, dl, 1})
	}
	checkStatements(t, s, list)
}
