package delta

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/kit"
)

type arr = bson.A

func d(fields ...any) bson.D { return kit.D(fields...) }

// v2 wraps the sections of a diff.
func v2(kv ...any) bson.D { return d("$v", int32(2), "diff", d(kv...)) }

func v1(kv ...any) bson.D { return append(d("$v", int32(1)), d(kv...)...) }

// parse reads what an oplog entry holds.
func parse(o bson.Raw) (Delta, error) { return ParseAs(KindOf(o), o) }

func mustParse(t testing.TB, o bson.Raw) Delta {
	t.Helper()
	dl, err := parse(o)
	if err != nil {
		t.Fatalf("parse %s: %v", show(o), err)
	}
	return dl
}

// show prints a document with duplicates and types.
func show(b []byte) string {
	body, ok := bsonraw.Body(b)
	if !ok {
		return fmt.Sprintf("<%x>", b)
	}
	var out []string
	for len(body) > 0 {
		f, rest, ok := bsonraw.Next(body)
		if !ok {
			return fmt.Sprintf("<%x>", b)
		}
		v := bsoncore.Value{Type: bsoncore.Type(f.Type), Data: f.Value}.String()
		switch f.Type {
		case typeObject:
			v = show(f.Value)
		case typeArray:
			v = "A" + show(f.Value)
		}
		out = append(out, fmt.Sprintf("%q:%s", f.Name, v))
		body = rest
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// applyCase: every want has been produced by a 6.0.5 server (applyOps).
type applyCase struct {
	name    string
	doc     bson.D
	o       bson.D
	want    bson.D
	skipped int
}

var abc = d("_id", 1, "a", 1, "b", 2, "c", 3)

var diffCases = []applyCase{
	{"insert several", abc, v2("i", d("z", 1, "y", 2)), append(abc[:4:4], d("z", 1, "y", 2)...), 0},
	{"insert existing moves it", abc, v2("i", d("z", 1, "a", 9, "y", 2)),
		d("_id", 1, "b", 2, "c", 3, "z", 1, "a", 9, "y", 2), 0},
	{"update in place", abc, v2("u", d("c", 9, "a", 7)), d("_id", 1, "a", 7, "b", 2, "c", 9), 0},
	{"update missing appends", abc, v2("u", d("n", 1, "b", 5), "i", d("m", 1)),
		d("_id", 1, "a", 1, "b", 5, "c", 3, "n", 1, "m", 1), 0},
	{"delete", abc, v2("d", d("b", false)), d("_id", 1, "a", 1, "c", 3), 0},
	{"delete ignores the value", abc, v2("d", d("b", 5)), d("_id", 1, "a", 1, "c", 3), 0},
	{"delete missing", abc, v2("d", d("q", false)), abc, 0},
	{"empty section", abc, v2("d", d()), abc, 0},
	{"sub", d("_id", 1, "o", d("a", 1, "b", 2)), v2("so", d("i", d("z", 1, "a", 3))),
		d("_id", 1, "o", d("b", 2, "z", 1, "a", 3)), 0},
	{"odd names", d("_id", 1, "", 1, "a.b", 2, "$c", 3, "0", 4), v2("u", d("", 5, "a.b", 6, "$c", 7, "0", 8)),
		d("_id", 1, "", 5, "a.b", 6, "$c", 7, "0", 8), 0},
	{"odd names inserted", d("_id", 1), v2("i", d("", 5, "a.b", 6, "$c", 7, "0", 8)),
		d("_id", 1, "", 5, "a.b", 6, "$c", 7, "0", 8), 0},
	{"sub of the empty name", d("_id", 1, "", d("x", 1)), v2("s", d("u", d("x", 9))), d("_id", 1, "", d("x", 9)), 0},
	{"section names as fields", d("_id", 1, "d", 1, "s", d("u", 1), "b", 1, "a", true),
		v2("u", d("d", 2, "b", 2), "ss", d("u", d("u", 2))), d("_id", 1, "d", 2, "s", d("u", 2), "b", 2, "a", true), 0},

	{"cut", d("_id", 1, "r", arr{1, 2, 3}), v2("sr", d("a", true, "l", int32(1))), d("_id", 1, "r", arr{1}), 0},
	{"cut to nothing", d("_id", 1, "r", arr{1, 2, 3}), v2("sr", d("a", true, "l", int32(0))), d("_id", 1, "r", arr{}), 0},
	{"length fills up", d("_id", 1, "r", arr{1}), v2("sr", d("a", true, "l", int32(3))),
		d("_id", 1, "r", arr{1, nil, nil}), 0},
	{"cut and set", d("_id", 1, "r", arr{1, 2, 3}), v2("sr", d("a", true, "l", int32(2), "u0", 9)),
		d("_id", 1, "r", arr{9, 2}), 0},
	{"set beyond the end", d("_id", 1, "r", arr{1}), v2("sr", d("a", true, "u3", 9, "u5", 8)),
		d("_id", 1, "r", arr{1, nil, nil, 9, nil, 8}), 0},
	{"nested array", d("_id", 1, "r", arr{arr{1, 2}, 3}), v2("sr", d("a", true, "s0", d("a", true, "u1", 7), "u1", d())),
		d("_id", 1, "r", arr{arr{1, 7}, d()}), 0},
	{"object in an array", d("_id", 1, "r", arr{d("a", 1), 2}), v2("sr", d("a", true, "s0", d("u", d("a", 5)))),
		d("_id", 1, "r", arr{d("a", 5), 2}), 0},
	{"nothing but the header", d("_id", 1, "r", arr{1}), v2("sr", d("a", true)), d("_id", 1, "r", arr{1}), 0},
}

// skipCases: the document is newer than the update. A server writes null where
// a $v:2 sub diff does not fit; Apply leaves the place alone.
var skipCases = []applyCase{
	{"sub of a scalar", abc, v2("u", d("b", 7), "sa", d("u", d("x", 1))), d("_id", 1, "a", 1, "b", 7, "c", 3), 1},
	{"sub of a missing field", abc, v2("u", d("b", 7), "sq", d("u", d("x", 1))), d("_id", 1, "a", 1, "b", 7, "c", 3), 1},
	{"array diff of an object", d("_id", 1, "r", d("a", 1)), v2("i", d("z", 1), "sr", d("a", true, "l", int32(0))),
		d("_id", 1, "r", d("a", 1), "z", 1), 1},
	{"object diff of an array", d("_id", 1, "r", arr{1}), v2("sr", d("u", d("0", 7))), d("_id", 1, "r", arr{1}), 1},
	{"sub of a missing element", d("_id", 1, "r", arr{1}), v2("sr", d("a", true, "u0", 7, "s4", d("u", d("x", 1)))),
		d("_id", 1, "r", arr{7}), 1},
	{"sub of a scalar element", d("_id", 1, "r", arr{1, 2}), v2("sr", d("a", true, "s0", d("u", d("x", 1)), "u1", 3)),
		d("_id", 1, "r", arr{1, 3}), 1},
}

var rr = d("_id", 1, "r", arr{1, d("x", 1), arr{5, 6}})

func rset(a, b, c any, more ...any) bson.D {
	return d("_id", 1, "r", append(arr{a, b, c}, more...))
}

var modCases = []applyCase{
	{"set and unset", abc, v1("$set", d("a", 9, "z", 1), "$unset", d("b", true)), d("_id", 1, "a", 9, "c", 3, "z", 1), 0},
	{"without $v", abc, d("$set", d("a", 9)), d("_id", 1, "a", 9, "b", 2, "c", 3), 0},
	{"nothing", abc, v1("$set", d()), abc, 0},
	{"new nested", d("_id", 1), v1("$set", d("y", 1, "z.b", 1, "z.q.r", 2)),
		d("_id", 1, "y", 1, "z", d("b", 1, "q", d("r", 2))), 0},
	{"number below a missing field", d("_id", 1), v1("$set", d("q.0", 1)), d("_id", 1, "q", d("0", 1)), 0},
	{"through a scalar", abc, v1("$set", d("a.b", 1, "z", 1)), append(abc[:4:4], d("z", 1)...), 1},
	{"through null", d("_id", 1, "a", nil), v1("$set", d("a.b", 1)), d("_id", 1, "a", nil), 1},
	{"deeper scalar", d("_id", 1, "a", d("b", 7)), v1("$set", d("a.b.c", 1, "z", 1)), d("_id", 1, "a", d("b", 7), "z", 1),
		1},
	{"unset through a scalar", abc, v1("$unset", d("a.b", 1, "q.r", 1)), abc, 0},
	{"element", rr, v1("$set", d("r.0", 9)), rset(9, d("x", 1), arr{5, 6}), 0},
	{"element field", rr, v1("$set", d("r.1.x", 9, "r.1.y", 8)), rset(1, d("x", 9, "y", 8), arr{5, 6}), 0},
	{"element of element", rr, v1("$set", d("r.2.1", 9)), rset(1, d("x", 1), arr{5, 9}), 0},
	{"beyond the end", rr, v1("$set", d("r.5", 9)), rset(1, d("x", 1), arr{5, 6}, nil, nil, 9), 0},
	{"object beyond the end", rr, v1("$set", d("r.4.q", 9)), rset(1, d("x", 1), arr{5, 6}, nil, d("q", 9)), 0},
	{"no index", rr, v1("$set", d("r.x", 9, "r.-1", 9)), rr, 2},
	{"index with zeros", rr, v1("$set", d("r.01", 9)), rset(1, 9, arr{5, 6}), 0},
	{"number in an object", rr, v1("$set", d("r.1.0", 9)), rset(1, d("x", 1, "0", 9), arr{5, 6}), 0},
	{"huge index", rr, v1("$set", d("r.99999999999", 9)), rr, 1},
	{"unset element", rr, v1("$unset", d("r.0", true)), rset(nil, d("x", 1), arr{5, 6}), 0},
	{"unset below", rr, v1("$unset", d("r.1.x", true, "r.2.1", true, "r.7", true, "r.2.9", true, "r.0.z", true)),
		rset(1, d(), arr{5, nil}), 0},
	{"dollar", d("_id", 1, "$x", 5), v1("$set", d("$x", 9, "o.$y", 1)), d("_id", 1, "$x", 9, "o", d("$y", 1)), 0},
}

func TestApply(t *testing.T) {
	for _, set := range [][]applyCase{diffCases, skipCases, modCases} {
		for _, c := range set {
			t.Run(c.name, func(t *testing.T) {
				prefix := []byte("before")
				out, skipped, err := Apply(prefix, kit.Raw(c.doc), mustParse(t, kit.Raw(c.o)))
				if err != nil {
					t.Fatal(err)
				}
				if !bytes.HasPrefix(out, prefix) || !bytes.Equal(out[len(prefix):], kit.Raw(c.want)) {
					t.Errorf("got  %s\nwant %s", show(out[len(prefix):]), show(kit.Raw(c.want)))
				}
				if skipped != c.skipped {
					t.Errorf("skipped %d, want %d", skipped, c.skipped)
				}
			})
		}
	}
}
