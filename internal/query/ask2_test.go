package query

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"unicode"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/lab"
)

func TestAskFolds(t *testing.T) {
	if os.Getenv("ASK") == "" {
		t.Skip()
	}
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		s := askServer(t, version)
		var docs []bson.Raw
		var runes []rune
		for r := rune(1); r < unicode.MaxRune; r++ {
			if unicode.SimpleFold(r) != r {
				docs = append(docs, raw(t, d("_id", int32(r), "a", string(r))))
				runes = append(runes, r)
			}
		}
		s.fill("folds", docs)
		bad := []string{}
		for _, r := range runes {
			for _, p := range []string{"^\\x{%x}$", "^[\\x{%x}]$"} {
				got, err := s.find("folds", raw(t, d("a", bson.Regex{Pattern: fmt.Sprintf(p, r), Options: "i"})))
				if err != nil {
					t.Fatal(err)
				}
				want := map[int32]bool{int32(r): true}
				for f := unicode.SimpleFold(r); f != r; f = unicode.SimpleFold(f) {
					want[int32(f)] = true
				}
				if len(got) != len(want) || fmt.Sprint(got) != fmt.Sprint(want) {
					bad = append(bad, fmt.Sprintf("%X:%d/%d", r, len(got), len(want)))
				}
			}
		}
		fmt.Println(version, len(runes), "runes, bad", len(bad), bad)
	}
}

func TestAskLimits(t *testing.T) {
	if os.Getenv("ASK") == "" {
		t.Skip()
	}
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		s := askServer(t, version)
		var docs []bson.Raw
		sizes := []int{10, 30, 100, 500, 1000, 2000, 3000, 5000, 10000, 30000, 100000, 1000000}
		for i, n := range sizes {
			docs = append(docs, raw(t, d("_id", int32(i), "a", strings.Repeat("ab", n)+"c")))
		}
		s.fill("limits", docs)
		for _, p := range []string{"^(a|b)*c", "^(?:a|b)*c", "^(ab)*c", "^(?:ab)+c$", "^[ab]*c", "^.*c$", ".*c$", "(?:a.*)*c$", "a.*b.*a.*b.*c", "^(?:a|b){3,}c", "^(?:[ab])*c", "^(?:a?b?)*c", "a.*a.*a.*a.*d|c", ".*.*.*d|c", "^(a+|b+)+c", "(ab)?c", "^([ab]|c)*$", "^(a|b|c)+$", "b+c$", "[^c]+c", "^(?:ab){2,1000}c"} {
			got, err := s.find("limits", raw(t, d("a", bson.Regex{Pattern: p})))
			var missed []int
			q, merr := Parse(raw(t, d("a", bson.Regex{Pattern: p})))
			for i, n := range sizes {
				if q != nil && q.Match(docs[i]) != got[int32(i)] {
					missed = append(missed, n)
				}
			}
			fmt.Println(version, p, err, merr, "differ at", missed)
		}
	}
}

func renamed(names []string, vals ...any) bson.RawValue {
	doc := bson.D{}
	for i, v := range vals {
		doc = append(doc, bson.E{Key: names[i], Value: v})
	}
	b, err := bson.Marshal(doc)
	if err != nil {
		panic(err)
	}
	return bson.RawValue{Type: bson.TypeArray, Value: b}
}

func TestAskOddArrays(t *testing.T) {
	if os.Getenv("ASK") == "" {
		t.Skip()
	}
	for _, version := range lab.Versions("4.2", "4.4", "5.0") {
		s := askServer(t, version)
		docs := []bson.Raw{
			raw(t, d("_id", int32(0), "a", renamed([]string{"5", "7"}, 1, d("b", 2)))),
			raw(t, d("_id", int32(1), "a", bson.A{1, d("b", 2)})),
			raw(t, d("_id", int32(2), "a", bson.A{renamed([]string{"5", "7"}, 1, d("b", 2))})),
			raw(t, d("_id", int32(3), "a", bson.A{bson.A{1, d("b", 2)}, bson.A{}})),
			raw(t, d("_id", int32(4), "a", renamed([]string{"x", ""}, 1, 2))),
			raw(t, d("_id", int32(5), "a", bson.A{})),
			raw(t, d("_id", int32(6), "a", bson.A{d()})),
			raw(t, d("_id", int32(7), "a", bson.A{bson.A{bson.A{1}}})),
			raw(t, d("_id", int32(8), "a", d("", bson.A{1, 2}))),
			raw(t, d("_id", int32(9), "a", d("", d("", 1)))),
			raw(t, d("_id", int32(10), "a", bson.A{d("", 1), bson.A{5}})),
			raw(t, d("_id", int32(11), "", d("", 1))),
			raw(t, d("_id", int32(12), "", bson.A{1})),
			raw(t, d("_id", int32(13), "a", nil)),
			raw(t, d("_id", int32(14), "a", bson.Undefined{})),
		}
		s.fill("odd", docs)
		for _, f := range []bson.D{
			d("a.0", 1), d("a.5", 1), d("a.7.b", 2), d("a.1.b", 2), d("a", bson.A{1, d("b", 2)}), d("a", renamed([]string{"5", "7"}, 1, d("b", 2))), d("a", d("$elemMatch", d("0", 1))), d("a", d("$elemMatch", d("5", 1))),
			d("a.x", 1), d("a.", 2), d("a.", 1), d("a..", 1), d("a..0", 1), d("a..0", 5), d("a..b", 1), d("a..b", nil), d("a.0.", 1), d("a.0.", d()), d("a.1.", 5), d("a.", nil), d("a.", d("$exists", true)), d("a.", d("$exists", false)), d(".", 1), d("", 1), d("..", 1), d("..", nil), d(".0", 1), d("a.0.0", 1), d("a.0.0.0", 1), d("a.0.0.0", nil), d("a.0.b", 2), d("a.0.b", nil), d("a.0.1.b", 2),
			d("a.0", bson.A{1, d("b", 2)}), d("a.0", d("$size", 2)), d("a.0", d("$elemMatch", d("$eq", 1))), d("a.0", d("$elemMatch", d("b", 2))), d("a.0", d("$type", "array")), d("a.0", d("$gt", 0)), d("a.0", d("$in", bson.A{1})), d("a.0", d("$all", bson.A{1})), d("a.0", d("$exists", false)), d("a.9", nil), d("a.9.b", nil), d("a.9", d("$exists", false)),
			d("a", d("$lt", bson.MaxKey{})), d("a", d("$gte", bson.MinKey{})), d("a", d("$gt", bson.MinKey{})), d("a", d("$lte", bson.MaxKey{})), d("zz", d("$lt", bson.MaxKey{})), d("zz", d("$lte", bson.MaxKey{})), d("zz", d("$gte", bson.MinKey{})), d("zz", d("$gt", bson.MinKey{})),
			d("a", d("$gte", nil)), d("a", d("$gt", nil)), d("a", d("$lt", nil)), d("a", nil), d("a", d("$ne", nil)), d("a", d("$exists", true)), d("a", d("$type", "undefined")), d("a", d("$in", bson.A{nil})),
			d("a", d("$elemMatch", d())), d("a", d("$elemMatch", d("$or", bson.A{d("0", 1)}))), d("a", d("$elemMatch", d("", 1))), d("a", d("$not", d("$elemMatch", d()))), d("a", d("$all", bson.A{bson.A{1, d("b", 2)}})), d("a", d("$all", bson.A{})), d("a", d("$all", bson.A{nil})), d("a", d("$elemMatch", d("$elemMatch", d("$eq", 1)))), d("a", d("$elemMatch", d("$not", d("$gt", 0)))), d("a", d("$elemMatch", d("$nin", bson.A{1}))), d("a", d("$elemMatch", d("$exists", false))), d("a", d("$elemMatch", d("$in", bson.A{nil}))),
		} {
			got, err := s.find("odd", raw(t, f))
			q, merr := Parse(raw(t, f))
			if err != nil || merr != nil {
				fmt.Println(version, "ODD", f, err, merr)
				continue
			}
			for i, doc := range docs {
				if q.Match(doc) != got[int32(i)] {
					fmt.Println(version, "ODD", f, "server", got[int32(i)], doc)
				}
			}
		}
		for _, kind := range []string{"and", "not", "elem", "elemdoc", "value"} {
			for n := 10; n < 200; n++ {
				f := d("a", d("$gt", 1))
				if kind == "not" || kind == "elem" {
					f = d("$gt", 1)
				}
				if kind == "value" {
					f = d("a", 1)
				}
				for range n {
					switch kind {
					case "and":
						f = d("$or", bson.A{f, d("b", 1)})
					case "not":
						f = d("$not", f)
					case "elem":
						f = d("$elemMatch", f)
					case "elemdoc":
						f = d("a", d("$elemMatch", f))
					case "value":
						f = d("a", f)
					}
				}
				if kind == "not" || kind == "elem" {
					f = d("a", f)
				}
				_, err := s.find("odd", raw(t, f))
				_, merr := Parse(raw(t, f))
				if (err != nil) != (merr != nil) {
					fmt.Println(version, "DEPTH", kind, n, "server", err, "mine", merr != nil)
					break
				}
			}
		}
	}
}
