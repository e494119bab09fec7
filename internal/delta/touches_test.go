package delta

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// TestTouches: every field that an update changes is touched, and no other.
func TestTouches(t *testing.T) {
	d := func(e ...bson.E) bson.D { return e }
	e := func(k string, v any) bson.E { return bson.E{Key: k, Value: v} }
	for _, c := range []struct {
		update  bson.D
		touched []string
	}{
		{d(e("$v", 2), e("diff", d(e("d", d(e("a", false))), e("u", d(e("b", 1), e("u", 1))), e("i", d(e("c", d(e("x", 1))))),
			e("se", d(e("u", d(e("f", 1)))))))), []string{"a", "b", "c", "e", "u"}},
		{d(e("$v", 1), e("$set", d(e("a.b", 1), e("c", 2))), e("$unset", d(e("e", true)))), []string{"a", "c", "e"}},
		{d(e("$set", d(e("f.0.g", 1)))), []string{"f"}},
	} {
		raw, err := bson.Marshal(c.update)
		if err != nil {
			t.Fatal(err)
		}
		delta, err := ParseAs(KindOf(raw), raw)
		if err != nil {
			t.Fatal(c.update, err)
		}
		want := map[string]bool{}
		for _, f := range c.touched {
			want[f] = true
		}
		for _, f := range []string{"a", "b", "c", "d", "e", "f", "g", "i", "s", "u", "x", "$set", "diff"} {
			if delta.Touches(f) != want[f] {
				t.Errorf("%v touches %q: %v", c.update, f, !want[f])
			}
		}
	}
}
