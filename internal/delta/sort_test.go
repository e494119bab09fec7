package delta

import (
	"bytes"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
)

func TestSorted(t *testing.T) {
	make := func(text string) bson.Raw {
		var d bson.D
		if err := bson.UnmarshalExtJSON([]byte(text), false, &d); err != nil {
			t.Fatal(err)
		}
		raw, err := bson.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		return raw
	}
	for _, c := range []struct{ in, want, numeric string }{
		{`{"$set":{"b":1,"a":{"z":1,"y":2}}}`, `{"$set":{"a":{"z":1,"y":2},"b":1}}`, ``},
		{`{"$v":1,"$set":{"a":1,"b":1}}`, `{"$v":1,"$set":{"a":1,"b":1}}`, ``},
		{`{"$unset":{"c":1},"$set":{"b.d":1,"b.c":1,"a":1}}`, `{"$set":{"a":1,"b.c":1,"b.d":1},"$unset":{"c":1}}`, ``},
		{`{"$set":{"b":1,"10":1,"9":1}}`, `{"$set":{"10":1,"9":1,"b":1}}`, `{"$set":{"9":1,"10":1,"b":1}}`},
		{`{"$inc":{"b":1},"$set":{"a":1}}`, `{"$inc":{"b":1},"$set":{"a":1}}`, ``},
	} {
		if c.numeric == "" {
			c.numeric = c.want
		}
		if got := Sorted(make(c.in), false); !bytes.Equal(got, make(c.want)) {
			t.Errorf("%s: %v", c.in, got)
		}
		if got := Sorted(make(c.in), true); !bytes.Equal(got, make(c.numeric)) {
			t.Errorf("%s, numbers as such: %v", c.in, got)
		}
	}
}
