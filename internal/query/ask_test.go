package query

import (
	"context"
	"fmt"
	"math"
	"os"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/lab"
)

func askServer(t *testing.T, version string) server {
	c := lab.ForTest(t, lab.Options{CacheGB: 0.25, Version: version})
	client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = client.Disconnect(context.Background()) })
	return server{t, client.Database("query"), version}
}

func dec(s string) bson.Decimal128 {
	v, err := bson.ParseDecimal128(s)
	if err != nil {
		panic(err)
	}
	return v
}

func TestAskBits(t *testing.T) {
	if os.Getenv("ASK") == "" {
		t.Skip()
	}
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		s := askServer(t, version)
		vals := []any{dec("4.7"), dec("4.5"), dec("5.5"), dec("4.2"), dec("-1"), dec("-1.5"), dec("-0.4"), dec("Infinity"), dec("-Infinity"), dec("NaN"), dec("1E+3"), dec("9223372036854775807"), dec("9223372036854775808"), dec("-9223372036854775808"), dec("-9223372036854775809"), dec("9223372036854775807.2"), dec("1E-6176"), dec("9.9E+6144"),
			4.7, -1.5, math.NaN(), math.Inf(1), math.Inf(-1), 1e300, 9223372036854775808.0, -9223372036854775808.0, bson.Binary{Subtype: 2, Data: []byte("ab")}, bson.Binary{Subtype: 0, Data: []byte("ab")}}
		var docs []bson.Raw
		for i, v := range vals {
			docs = append(docs, raw(t, d("_id", int32(i), "a", v)))
		}
		s.fill("bits", docs)
		got := make([]uint64, len(vals))
		num, _ := s.find("bits", raw(t, d("a", d("$bitsAllSet", 0))))
		for b := range 64 {
			ids, err := s.find("bits", raw(t, d("a", d("$bitsAllSet", bson.A{b}))))
			if err != nil {
				t.Fatal(err)
			}
			for id := range ids {
				got[id] |= 1 << b
			}
		}
		big, _ := s.find("bits", raw(t, d("a", d("$bitsAllSet", bson.A{100}))))
		for i, v := range vals {
			fmt.Println(version, "bits", v, num[int32(i)], int64(got[i]), big[int32(i)])
		}
		for _, div := range []any{int64(7), int64(1) << 40, 2.5, dec("2.9"), dec("2.5"), 7.9, -2.9, math.NaN(), math.Inf(1), 1e300, dec("Infinity"), 0.5, "x"} {
			for i, v := range vals[:26] {
				var hits []int
				for r := -20; r < 20; r++ {
					ids, err := s.find("bits", raw(t, d("a", d("$mod", bson.A{div, r}), "_id", i)))
					if err != nil {
						hits = append(hits, -999)
						if i == 0 {
							fmt.Println(version, "mod", div, err)
						}
						break
					}
					if len(ids) > 0 {
						hits = append(hits, r)
					}
				}
				if len(hits) == 0 || hits[0] != -999 {
					fmt.Println(version, "mod", v, div, hits)
				}
			}
		}
		for _, r := range []any{1.9, dec("1.9"), -1.9, math.NaN(), math.Inf(1), "x", nil, int64(1) << 40, int64(1)<<32 + 1} {
			_, err := s.find("bits", raw(t, d("a", d("$mod", bson.A{2, r}))))
			fmt.Println(version, "mod remainder", r, err)
		}
		for _, f := range []bson.D{d("$mod", bson.A{2}), d("$mod", bson.A{2, 1, 3}), d("$size", 1.5), d("$size", -1), d("$size", "1"), d("$size", dec("1")), d("$size", true), d("$exists", "x"), d("$type", 0), d("$type", dec("2")), d("$type", "missing"), d("$type", bson.A{}), d("$type", 1.5), d("$type", 20), d("$bitsAllSet", dec("1")), d("$bitsAllSet", bson.A{dec("1")}), d("$bitsAllSet", bson.A{int64(1) << 40}), d("$regex", "a", "$options", "g"), d("$regex", "a", "$options", "u"), d("$regex", bson.Regex{Pattern: "a", Options: "i"}, "$options", "m"), d("$regex", bson.Regex{Pattern: "a"}, "$options", "m"), d("$eq", bson.Undefined{}), d("$in", bson.A{bson.Undefined{}}), d("$gt", bson.Undefined{}), d("$ne", bson.Undefined{}), d("$gt", bson.Regex{Pattern: "a"}), d("$all", bson.A{bson.Undefined{}}), d("$comment", 1), d("$gt", 1, "$comment", 1), d("$in", bson.A{d("$x", 1)}), d("$in", bson.A{d("x", d("$x", 1))}), d("a", 1, "$gt", 1), d("$gt", 1, "a", 1), d("$all", bson.A{d("$elemMatch", d("$gt", 1)), 1}), d("$all", bson.A{d("$gt", 1)}), d("$elemMatch", d("$gt", 1, "a", 1)), d("$elemMatch", d("a", 1, "$gt", 1)), d("$elemMatch", d("$comment", 1)), d("$elemMatch", d("$comment", 1, "$gt", 2)), d("$elemMatch", d("$or", bson.A{d("$gt", 1)})), d("$not", 1), d("$not", d()), d("$not", d("$regex", "a")), d("$ref", "x"), d("$options", "i"), d("$elemMatch", d("$expr", true)), d("$elemMatch", d("$gt", 1, "$comment", "x"))} {
			_, err := s.find("bits", raw(t, d("a", f)))
			_, mine := Parse(raw(t, d("a", f)))
			fmt.Println(version, "filter", f, "server:", err, "mine:", mine)
		}
		for _, f := range []bson.D{d("", 1), d(".", 1), d("a.", 1), d(".a", 1), d("a..b", 1), d("$a", 1), d("a.$b", 1), d("a.$", 1), d("a.$id", 1), d("$or", bson.A{d()}), d("$or", bson.A{}), d("$comment", d("$x", 1)), d("$and", bson.A{d("$comment", 1)}), d("a\x01b", 1), d("$alwaysTrue", 1), d("a", bson.Undefined{})} {
			_, err := s.find("bits", raw(t, f))
			_, mine := Parse(raw(t, f))
			fmt.Println(version, "top", f, "server:", err, "mine:", mine)
		}
	}
}
