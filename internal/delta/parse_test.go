package delta

import (
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

type malformedCase struct {
	name     string
	o        bson.D
	deadly   bool // ends a 6.0.5 server, or its memory
	stricter bool // the server takes it
}

var malformedCases = []malformedCase{
	{name: "empty diff", o: v2()},
	{name: "no diff", o: d("$v", int32(2))},
	{name: "diff is not an object", o: d("$v", int32(2), "diff", 1)},
	{name: "unknown version", o: d("$v", int32(3), "$set", d("a", 1))},
	{name: "unknown section", o: v2("x", d())},
	{name: "section is not an object", o: v2("u", 1)},
	{name: "binary diff", o: v2("b", d())},
	{name: "i before u", o: v2("i", d("z", 1), "u", d("a", 1))},
	{name: "s before u", o: v2("sr", d("a", true), "u", d("a", 1))},
	{name: "section twice", o: v2("u", d("a", 1), "u", d("r", 1))},
	{name: "field twice in a section", o: v2("u", d("a", 1, "a", 2))},
	{name: "field twice", o: v2("d", d("a", false), "i", d("a", 2))},
	{name: "sub twice", o: v2("sa", d("u", d()), "sa", d("u", d()))},
	{name: "update and sub", o: v2("u", d("r", 1), "sr", d("a", true))},
	{name: "empty sub", o: v2("sr", d())},
	{name: "array diff at the top", o: v2("a", true, "l", int32(1))},
	{name: "a is false", o: v2("sr", d("a", false, "l", int32(1)))},
	{name: "a is not a bool", o: v2("sr", d("a", 1, "l", int32(1)))},
	{name: "l is int64", o: v2("sr", d("a", true, "l", int64(1)))},
	{name: "l is double", o: v2("sr", d("a", true, "l", 1.0))},
	{name: "l comes late", o: v2("sr", d("a", true, "u0", 1, "l", int32(1)))},
	{name: "l is negative", o: v2("sr", d("a", true, "l", int32(-1))), deadly: true},
	{name: "index beyond l", o: v2("sr", d("a", true, "l", int32(2), "u2", 9)), deadly: true},
	{name: "descending indexes", o: v2("sr", d("a", true, "u1", 1, "u0", 2)), deadly: true},
	{name: "index twice", o: v2("sr", d("a", true, "u0", 1, "s0", d("u", d()))), deadly: true},
	{name: "no index", o: v2("sr", d("a", true, "ux", 1))},
	{name: "negative index", o: v2("sr", d("a", true, "u-1", 1))},
	{name: "bare letter", o: v2("sr", d("a", true, "u", 1))},
	{name: "deletion in an array", o: v2("sr", d("a", true, "d0", false))},
	{name: "path twice", o: v1("$set", d("a", 1, "a", 2))},
	{name: "set and unset", o: v1("$set", d("a", 1), "$unset", d("a", true))},
	{name: "path below another", o: v1("$set", d("o", d("a", 1), "o-", 1, "o.b", 1))},
	{name: "empty path", o: v1("$set", d("", 1))},
	{name: "empty component", o: v1("$set", d("a..b", 1))},
	{name: "trailing dot", o: v1("$set", d("a.", 1))},
	{name: "other operator", o: v1("$inc", d("a", 1)), stricter: true},
	{name: "field beside operators", o: d("$set", d("a", 1), "x", 1)},
	{name: "unknown operator", o: d("$x", 1)},
}

func TestParseRefuses(t *testing.T) {
	for _, c := range malformedCases {
		t.Run(c.name, func(t *testing.T) {
			_, err := parse(kit.Raw(c.o))
			if !errors.Is(err, ErrMalformed) && !errors.Is(err, ErrUnsupported) {
				t.Errorf("%s: error %v", show(kit.Raw(c.o)), err)
			}
		})
	}
}

func TestParseUnsupported(t *testing.T) {
	for _, o := range []bson.D{v2("b", d("a", 1)), v2("so", d("u", d("x", 1), "b", d())), v1("$inc", d("a", 1))} {
		if _, err := parse(kit.Raw(o)); !errors.Is(err, ErrUnsupported) {
			t.Errorf("%s: error %v", show(kit.Raw(o)), err)
		}
	}
}

func TestKindOf(t *testing.T) {
	u := d("u", d("a", 5))
	for _, c := range []struct {
		o    bson.D
		want Kind
	}{
		{d("_id", 1, "a", 1), Replacement},
		{d("_id", 1, "$set", d("a", 1)), Replacement},
		{d("_id", 1, "$v", 2, "diff", u), Replacement},
		{d("a", 1), Replacement},
		{d(), Replacement},
		{d("$v", int32(2), "diff", u), Diff},
		{d("$v", int64(2), "diff", u), Diff},
		{d("$v", 2.0, "diff", u), Diff},
		{d("diff", u, "$v", int32(2)), Diff},
		{d("$v", int32(2), "diff", u, "x", 1), Diff},
		{d("$v", int32(1), "$set", d("a", 1)), Modifiers},
		{d("$set", d("a", 1)), Modifiers},
		{d("$set", d("a", 1), "$v", int32(1)), Modifiers},
		{d("$v", int32(3)), Invalid},
		{d("$v", "2"), Invalid},
		{d("$v", 1.5), Invalid},
	} {
		if got := KindOf(kit.Raw(c.o)); got != c.want {
			t.Errorf("%s is %s, want %s", show(kit.Raw(c.o)), got, c.want)
		}
	}
	for _, b := range [][]byte{nil, {5, 0, 0, 0}, {6, 0, 0, 0, 0}, {7, 0, 0, 0, 8, 'a', 0}, {5, 0, 0, 0, 1}} {
		if got := KindOf(b); got != Invalid {
			t.Errorf("%x is %s", b, got)
		}
	}
}

func TestDepthIsBounded(t *testing.T) {
	diff := d("u", d("a", 1))
	for range maxDepth + 1 {
		diff = d("sa", diff)
	}
	if _, err := parse(kit.Raw(d("$v", int32(2), "diff", diff))); !errors.Is(err, ErrMalformed) {
		t.Errorf("error %v", err)
	}
}
