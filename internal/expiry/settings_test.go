package expiry

import (
	"fmt"
	"math"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
)

func parse(t *testing.T, json string) bson.Raw {
	t.Helper()
	var d bson.D
	if err := bson.UnmarshalExtJSON([]byte(json), false, &d); err != nil {
		t.Fatalf("%s: %v", json, err)
	}
	return kit.Raw(d)
}

// TestSeconds: expiries are read as current servers read them.
func TestSeconds(t *testing.T) {
	decimal := func(text string) bson.Decimal128 {
		d, err := bson.ParseDecimal128(text)
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	for _, c := range []struct {
		value any
		want  int64
		ok    bool
	}{
		{int32(5), 5, true}, {int64(1 << 40), 1 << 40, true}, {5.9, 5, true}, {-5.9, -5, true},
		{math.NaN(), math.MaxInt32, true}, {math.Inf(1), math.MaxInt32, true}, {1e300, math.MaxInt32, true},
		{decimal("7"), 7, true}, {decimal("7.5"), math.MaxInt32, true}, {decimal("NaN"), math.MaxInt32, true},
		{"off", 0, false}, {true, 0, false}, {bson.Null{}, 0, false},
	} {
		if n, ok := Seconds(kit.Value(c.value)); n != c.want || ok != c.ok {
			t.Errorf("%v: %d %t", c.value, n, ok)
		}
	}
}

// TestOf: by which indexes documents expire, and what their conditions are.
func TestOf(t *testing.T) {
	for _, c := range []struct{ options, index, want string }{
		{`{"expireAfterSeconds":60}`, `{"key":{"a":1},"expireAfterSeconds":5}`, "_id + 60 s, a + 5 s"},
		{`{"expireAfterSeconds":"off"}`, `{"key":{"a":1}}`, ""},
		{`{}`, `{"key":{"a":1,"b":1},"expireAfterSeconds":5}`, ""},
		{`{}`, `{"key":{"a":"text"},"expireAfterSeconds":5}`, ""},
		{`{}`, `{"key":{"a":""},"expireAfterSeconds":5}`, "a + 5 s"}, // which old servers took for ascending
		{`{}`, `{"key":{"a":1},"expireAfterSeconds":5,"partialFilterExpression":{}}`, "a + 5 s"},
		{`{}`, `{"key":{"a":1},"expireAfterSeconds":5,"partialFilterExpression":{"b":1}}`,
			`a + 5 s where {"b": {"$numberInt":"1"}}`},
	} {
		if got := Of(parse(t, c.options), parse(t, c.index)).String(); got != c.want {
			t.Errorf("%s, %s: %s", c.options, c.index, got)
		}
	}
	for locale, collated := range map[string]bool{"fr": true, "simple": false} {
		s := Of(nil, parse(t, `{"key":{"a":1},"expireAfterSeconds":5,"collation":{"locale":"`+locale+`"}}`))
		if len(s) != 1 || s[0].Collated != collated {
			t.Errorf("%s: %+v", locale, s)
		}
	}
}

// TestDeferrals: what expires on the target is deferred once, by what its server takes.
func TestDeferrals(t *testing.T) {
	index := func(name string, seconds any) bson.Raw {
		return kit.Raw(kit.D("key", kit.D("a", 1), "name", name, "expireAfterSeconds", seconds))
	}
	plain := kit.Raw(kit.D("key", kit.D("a", 1), "name", "plain"))
	all := []bson.Raw{plain, index("a", 5.5), index("deferred", leastStandIn), index("none", "off"), index("long", 1<<20)}
	for _, c := range []struct {
		capped, late bool
		want         string
	}{
		{false, true, "[:off a:2147483647 long:2147483647]"},
		{false, false, "[:off a:1600000000 long:1600000000]"},
		{true, true, "[:off]"},
	} {
		var got []string
		for _, d := range Deferrals(parse(t, `{"expireAfterSeconds":60}`), c.capped, c.late, all...) {
			if got = append(got, fmt.Sprint(d.Index, ":", d.StandIn)); d.Index != "" && d.Spec == nil || d.Was.Type == 0 {
				t.Errorf("%+v", d)
			}
		}
		if text := fmt.Sprint(got); text != c.want {
			t.Errorf("%+v: %s", c, text)
		}
	}
	if d := Deferrals(parse(t, `{}`), false, true, plain); d != nil {
		t.Errorf("%v", d)
	}
	for n, stands := range map[any]bool{5: false, leastStandIn: true, math.MaxInt32: true, "off": false} {
		if StandsIn(kit.Value(n)) != stands {
			t.Errorf("%v", n)
		}
	}
	if StandIn(5) != leastStandIn || StandIn(leastStandIn+1) != leastStandIn+1 {
		t.Error(StandIn(5))
	}
}
