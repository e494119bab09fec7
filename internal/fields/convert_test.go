package fields

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/test/testseed"
)

func convertible(s server) []any {
	var out []any
	for _, text := range []string{
		"", " ", "0", "-0", "1", "+1", "-17", " 1", "1 ", "1.0", "1.5", "-1.5", ".5", "5.", "1e3", "1E3", "1e400", "1e-400",
		"1e-310", "5e-324", "0e-400", "0.0", "-1e-320", "2.3e-308", "2.2250738585072014e-308", "0x1F", "1_000", "1,5",
		"abc", "NaN", "nan", "Infinity", "-Infinity", "inf", "+inf", "infinity",
		"2147483647", "2147483648", "-2147483648", "9223372036854775807", "9223372036854775808", "0.1",
		"12345678901234567890123456789012345678901234", "1234567890123456789012345678901234",
		"true", "false", "0123456789abcdef01234567", "0123456789ABCDEF01234567", "0123456789abcdef0123456",
		"0123456789abcdef0123456g",
		"2026-01-31", "2026-01-31T10:00:00Z", "2026-01-31T10:00:00", "2026-01-31T10:00:00.123Z",
		"2026-01-31T10:00:00.1234567Z", "2026-01-31T10:00:00+02:00", "2026-01-31T10:00:00.5+0200", "2026-01-31 10:00:00",
		"2026-02-30", "2026-02-29T00:00:00Z", "0000-01-01", "9999-12-31", "2026-01-31T10:00", "2026-01-31T24:00:00Z",
		"2026-01-31T10:00:60Z", "20260131", "1/2/2026", "2026-01-31T10:00:00.99999Z", "2026-01-31T10:00Z",
		"2026-01-31T10:00:00+01:59", "2026-01-31T10:00:00+01:60", "2026-01-31T10:00:00-0160", "2026-01-31T10:00-0159",
		"2026-01-31T10:00:00.560", "-0x1F",
	} {
		out = append(out, text)
	}
	for _, text := range []string{"0", "-0", "1", "-1.5", "1.50", "0.1", "NaN", "Infinity", "-Infinity", "2147483647.9",
		"2147483648", "-2147483648.9", "9223372036854775807", "9223372036854775807.5", "9223372036854775808", "1E+3",
		"1E-6176", "9.999999999999999999999999999999999E+6144", "1E+400", "1E-400", "0E+10", "0.000001", "0.0000001", "-0E-5",
		"123E+2", "4.9E-324", "1E-323", "1700000000000.7"} {
		v, err := bson.ParseDecimal128(text)
		if err != nil {
			s.Fatal(err)
		}
		out = append(out, v)
	}
	for _, f := range []float64{0, math.Copysign(0, -1), 1, 1.5, 2.5, -2.5, 0.1, 0.1 + 0.2, 1e15, 1e16, 1e17,
		123456789012345680, 1e-5, 1e-4, 0.00001234, 1e300, -1e300, 5e-324, math.MaxFloat64, math.NaN(), math.Inf(1),
		math.Inf(-1), 2147483647, 2147483647.5, -2147483648, -2147483648.5, 2147483648, 1e20, 1e21, 1e-6, 1e-7, 1 << 53,
		1<<53 + 2, 1 << 62, 1 << 63, -(1 << 63), 1700000000000.9, 1.0 / 3, 2.0 / 3, 100, 9007199254740993, 3.7e-310,
		1e-323, 1.5e-323, -1.1e-322, 2.2250738585072014e-308, 1e6, 1234567, 6621020} {
		out = append(out, f)
	}
	oid := bson.ObjectID{0x65, 1, 2, 3, 4}
	return append(out, int32(0), int32(-5), int32(math.MaxInt32), int64(0), int64(1)<<31, int64(1)<<53+1,
		int64(math.MaxInt64), int64(math.MinInt64), int64(1700000000123),
		true, false, nil, bson.Undefined{}, oid, bson.ObjectID{0xff, 1}, bson.DateTime(0), bson.DateTime(-1),
		bson.DateTime(1700000000123), bson.DateTime(253402300799999), bson.DateTime(-62135596800000),
		bson.Timestamp{T: 1700000000, I: 3}, bson.Timestamp{T: 1 << 31, I: 3}, d("a", 1), bson.A{1}, bson.A{}, d(),
		bson.Regex{Pattern: "a"}, bson.JavaScript("f"), bson.Symbol("5"), bson.MinKey{}, bson.MaxKey{},
		bson.Binary{Data: []byte("ab")}, bson.Binary{Subtype: 4, Data: make([]byte, 16)},
		bson.DBPointer{DB: "d", Pointer: oid}, bson.CodeWithScope{Code: "f", Scope: d()})
}

// testConversions: a value becomes of each type what it becomes of $convert.
func testConversions(s server) { checkConversions(s, convertible(s)) }

// testAnyConversion: the same of random values.
func testAnyConversion(s server) {
	testseed.Each(s.T, func(t *testing.T, seed uint64) { s.T = t; s.anyConversion(seed) })
}

func (s server) anyConversion(seed uint64) {
	g := newGen(seed)
	for range testseed.Rounds(s.T, 2) {
		values := make([]any, 2000)
		for i := range values {
			values[i] = g.convertible(s)
		}
		checkConversions(s, values)
	}
}

// checkConversions asks the server what each value becomes of each type.
func checkConversions(s server, values []any) {
	s.Helper()
	var docs []bson.Raw
	for i, v := range values {
		docs = append(docs, kit.Raw(d("_id", int32(i), "v", v)))
	}
	for i, to := range convertNames() {
		all := docs
		if i > 0 {
			all = nil
		}
		want, err := s.mapped(all, bson.A{d("$set", d("v", conversionOf("$v", to)))})
		if err != nil {
			s.Fatal(err)
		}
		m := mustParse(s, `{"convert": {"v": {"to": "`+to+`"}}}`)
		for j, doc := range docs {
			got, err := m.Apply(nil, doc, Meta{})
			s.checkConversion(doc.Lookup("v"), to, bson.Raw(got), err, want[int32(j)])
		}
	}
}

// conversionOf is what the server does. A date whose year has not four digits makes no
// text, and onError does not help there: the server ends the query.
func conversionOf(v, to string) bson.D {
	out := d("$convert", d("input", v, "to", to, "onError", "misfit", "onNull", nil))
	if to != "string" {
		return out
	}
	far := d("$or", bson.A{d("$lt", bson.A{v, firstDate}), d("$gt", bson.A{v, lastDate})})
	return d("$cond", bson.A{d("$and", bson.A{d("$eq", bson.A{d("$type", v), "date"}), far}), "misfit", out})
}

// firstDate and lastDate are those that servers write as text.
const firstDate, lastDate = bson.DateTime(-62167219200000), bson.DateTime(253402300799999)

// checkConversion compares what we make of a value with what the server does.
func (s server) checkConversion(v bson.RawValue, to string, got bson.Raw, err error, want bson.Raw) {
	s.Helper()
	said := want.Lookup("v")
	misfit := said.Type == bson.TypeString && said.StringValue() == "misfit"
	switch {
	case said.Type == bson.TypeDecimal128 && said.Decimal128().IsNaN() &&
		strings.Contains(got.String(), "NaN"): // one of many
	case misfit && err != nil, !misfit && err == nil && bytes.Equal(got, want):
	case misfit && to == "date" && s.version < "6" && v.Type == bson.TypeTimestamp: // newer servers do it
	case err == nil && to == "string" && v.Type == bson.TypeDouble &&
		fewDigits(v.Double(), said.StringValue(), got.Lookup("v").StringValue()):
	case err != nil && v.Type == bson.TypeString &&
		(to == "date" || to == "decimal" || to == "double" && strings.Contains(v.StringValue(), "0x")):
		s.Logf("only we refuse %s to %s: the server says %s", v, to, said)
	default:
		s.Errorf("%s to %s: %s %v, the server says %s (% x)", v, to, got, err, said, said.Value)
	}
}

// fewDigits reports whether the server's six digits are another number, and ours are the
// fewest that are this one.
func fewDigits(f float64, servers, ours string) bool {
	return asDouble(servers) != f && asDouble(ours) == f &&
		len(strings.TrimRight(digits(ours), "0")) == len(digits(strconv.FormatFloat(f, 'e', -1, 64)))
}

// digits are those of a number's text, without zeros in front.
func digits(text string) string {
	return strings.TrimLeft(strings.Map(func(r rune) rune {
		if r < '0' || r > '9' {
			return -1
		}
		return r
	}, mantissa(text)), "0")
}

func asDouble(text string) float64 {
	f, _ := strconv.ParseFloat(text, 64)
	return f
}

// convertible is a value that some conversions take and others refuse.
func (g gen) convertible(s server) any {
	switch g.IntN(10) {
	case 0:
		return g.Value(1)
	case 1:
		return pick[any](g, int32(g.long()), g.long(), bson.Timestamp{T: g.Uint32(), I: g.Uint32()})
	case 2:
		return bson.DateTime(pick(g, g.long(), g.Int64N(int64(lastDate-firstDate))+int64(firstDate)))
	case 3:
		return pick[any](g, bson.ObjectID{byte(g.Uint32()), byte(g.Uint32()), 1, 2, 3}, bson.Symbol(g.number()))
	case 4:
		v, err := bson.ParseDecimal128(fmt.Sprintf("%s%de%d", pick(g, "", "-"), g.long()>>1&math.MaxInt64,
			g.IntN(pick(g, 60, 700, 12000))-pick(g, 30, 350, 6100)))
		if err != nil {
			return bson.NewDecimal128(0x3040000000000000|g.Uint64()>>18, g.Uint64())
		}
		return v
	case 5, 6:
		return g.text()
	}
	return g.double()
}

// long is of any size, and often at the end of a type.
func (g gen) long() int64 {
	n := int64(g.Uint64() >> g.IntN(64))
	return pick(g, n, -n, int64(1)<<g.IntN(64)+int64(g.IntN(3)-1))
}

// double is of any bits, of few digits, an integer, or very small.
func (g gen) double() float64 {
	f := pick(g, math.Float64frombits(g.Uint64()), asDouble(g.number()), float64(g.long()), float64(g.long())+0.5,
		math.Float64frombits(g.Uint64()>>(11+g.IntN(53))), math.Pow10(g.IntN(40)-20), float64(g.IntN(1e6))/1000)
	if math.IsNaN(f) {
		return math.NaN()
	}
	return pick(g, f, -f)
}

// number is the text of one, or of nearly one.
func (g gen) number() string {
	out := pick(g, "", "", "", "-", "+") + strconv.FormatUint(g.Uint64()>>g.IntN(64), 10)
	if g.One(2) {
		i := g.IntN(len(out) + 1)
		out = out[:i] + "." + out[i:]
	}
	if g.One(3) {
		out += pick(g, "e", "E") + pick(g, "", "-", "+") + strconv.Itoa(g.IntN(pick(g, 5, 30, 330, 6200)))
	}
	if g.One(10) {
		i := g.IntN(len(out) + 1)
		out = out[:i] + pick(g, " ", "x", "e", ".", "-", "_", "é", "\x00", "0x", "f") + out[i:]
	}
	return out
}

// text is of a number, a date, an ObjectID, or of something else.
func (g gen) text() string {
	switch g.IntN(6) {
	case 0:
		at := time.UnixMilli(g.Int64N(int64(lastDate-firstDate)) + int64(firstDate)).UTC()
		form := pick(g, "2006-01-02", "2006-01-02T15:04:05Z", "2006-01-02T15:04:05.000Z", "2006-01-02T15:04:05",
			"2006-01-02T15:04:05.0", "2006-01-02T15:04Z", "2006-01-02T15:04:05.000", "2006-01-02T15:04:05", "2006-01-02T15:04")
		if text := at.Format(form); g.One(2) && strings.Contains(form, "T") {
			return strings.TrimSuffix(text, "Z") + fmt.Sprintf(pick(g, "%c%02d:%02d", "%c%02d%02d"), pick(g, '+', '-'),
				g.IntN(30), g.IntN(62))
		}
		return at.Format(form)
	case 1:
		id := bson.ObjectID{byte(g.Uint32()), 3, byte(g.Uint32())}
		return hex.EncodeToString(id[:])[:pick(g, 24, 24, 24, 23)]
	}
	return g.number()
}
