package fields

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

type conversion struct {
	name string
	to   bson.Type
}

func conversions() []conversion {
	return []conversion{{"string", bson.TypeString}, {"int", bson.TypeInt32}, {"long", bson.TypeInt64},
		{"double", bson.TypeDouble},
		{"decimal", bson.TypeDecimal128}, {"bool", bson.TypeBoolean}, {"date", bson.TypeDateTime},
		{"objectId", bson.TypeObjectID}}
}

func convertNames() (names []string) {
	for _, c := range conversions() {
		names = append(names, c.name)
	}
	return names
}

func convertSchema() schema {
	return optionSchema("to", schema{"to": schema{"enum": convertNames()}, "otherwise": otherwiseSchema(true)})
}

func (p *parser) readConvert(v value, at place) (*valueRule, error) {
	if !v.IsDocument() {
		return nil, at.refuse(`it needs a document, such as {"to": "decimal", "otherwise": "null"}`)
	}
	given, err := optionsOf(v, at, "to", "otherwise")
	if err != nil {
		return nil, err
	}
	r := &valueRule{kind: convertTo}
	if to := given["to"]; to.Type == bson.TypeString {
		if i := slices.Index(convertNames(), textOf(to)); i >= 0 {
			r.to = conversions()[i].to
		}
	}
	if r.to == none {
		return nil, at.in("to").refuse("it needs %s", listed(convertNames(), "or"))
	}
	r.otherwise, err = readOtherwise(given, at, true)
	return r, err
}

func convert(dst []byte, v value, to bson.Type) ([]byte, string) {
	if v.IsNull() {
		return dst, ""
	}
	if v.Type == to {
		return append(dst, v.Value...), ""
	}
	switch to {
	case bson.TypeString:
		return toString(dst, v)
	case bson.TypeInt32:
		return toWhole(dst, v, 32)
	case bson.TypeInt64:
		return toWhole(dst, v, 64)
	case bson.TypeDouble:
		return toDouble(dst, v)
	case bson.TypeDecimal128:
		return toDecimal(dst, v)
	case bson.TypeBoolean:
		return toBool(dst, v), ""
	case bson.TypeDateTime:
		return toDate(dst, v)
	}
	return toObjectID(dst, v)
}

const (
	noSuch     = "there is no conversion from its type"
	noNumber   = "the text is not a number"
	outOfRange = "the number is out of range"
)

func decimal(v value) bson.Decimal128 {
	return bson.NewDecimal128(binary.LittleEndian.Uint64(v.Value[8:]), binary.LittleEndian.Uint64(v.Value))
}

func whole(v value) (int64, bool) {
	switch v.Type {
	case bson.TypeDateTime:
		return v.Int64(), true
	case bson.TypeBoolean:
		return int64(v.Value[0]), true
	}
	return v.Int()
}

func toString(dst []byte, v value) ([]byte, string) {
	switch v.Type {
	case bson.TypeBoolean:
		return appendText(dst, strconv.FormatBool(v.Value[0] != 0)), ""
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := whole(v)
		return appendText(dst, strconv.FormatInt(n, 10)), ""
	case bson.TypeDouble:
		return appendText(dst, doubleText(v.Double())), ""
	case bson.TypeDecimal128:
		return appendText(dst, decimal(v).String()), ""
	case bson.TypeObjectID:
		return appendText(dst, hex.EncodeToString(v.Value)), ""
	case bson.TypeDateTime:
		at := time.UnixMilli(v.Int64()).UTC()
		if y := at.Year(); y < 0 || y > 9999 {
			return dst, "the date is not in the years 0 to 9999"
		}
		return appendText(dst, at.Format("2006-01-02T15:04:05.000Z")), ""
	}
	return dst, noSuch
}

// doubleText returns what servers write, six digits (observed on 4.2 to 6.0), if that reads back as
// the same number, else the shortest text that does.
func doubleText(f float64) string {
	switch {
	case math.IsNaN(f):
		return "NaN"
	case math.IsInf(f, 1):
		return "Infinity"
	case math.IsInf(f, -1):
		return "-Infinity"
	}
	text := strconv.FormatFloat(f, 'g', 6, 64)
	if read, err := strconv.ParseFloat(text, 64); err == nil && read == f {
		return text
	}
	if a := math.Abs(f); a < 1e-6 || a >= 1e21 {
		return strconv.FormatFloat(f, 'e', -1, 64)
	}
	return strconv.FormatFloat(f, 'f', -1, 64)
}

func toWhole(dst []byte, v value, bits int) ([]byte, string) {
	n, why := wholeOf(v, bits)
	switch {
	case why != "":
		return dst, why
	case bits == 64:
		return appendInt64(dst, n), ""
	case n != int64(int32(n)):
		return dst, outOfRange
	}
	return binary.LittleEndian.AppendUint32(dst, uint32(n)), ""
}

func wholeOf(v value, bits int) (int64, string) {
	switch v.Type {
	case bson.TypeDouble, bson.TypeDecimal128:
		n, ok := v.Truncated()
		if !ok || bits == 32 && v.Type == bson.TypeDouble && (v.Double() < math.MinInt32 || v.Double() > math.MaxInt32) {
			return 0, outOfRange // a double before the cut
		}
		return n, ""
	case bson.TypeString:
		n, err := strconv.ParseInt(textOf(v), 10, bits)
		if err != nil {
			return 0, noNumber
		}
		return n, ""
	}
	n, ok := whole(v)
	if !ok || bits == 32 && v.Type == bson.TypeDateTime {
		return 0, noSuch
	}
	return n, ""
}

func toDouble(dst []byte, v value) ([]byte, string) {
	var f float64
	switch v.Type {
	case bson.TypeString:
		var ok bool
		if f, ok = parseDouble(textOf(v)); !ok {
			return dst, noNumber
		}
	case bson.TypeDecimal128:
		var err error
		if f, err = strconv.ParseFloat(decimal(v).String(), 64); err != nil || tooSmall(f) && toBool(nil, v)[0] == 1 {
			return dst, outOfRange
		}
	default:
		n, ok := whole(v)
		if !ok {
			return dst, noSuch
		}
		f = float64(n)
	}
	if math.IsNaN(f) {
		return binary.LittleEndian.AppendUint64(dst, oneNaN), ""
	}
	return binary.LittleEndian.AppendUint64(dst, math.Float64bits(f)), ""
}

const oneNaN = 0x7ff8 << 48 // as servers write it

// tooSmall reports a number so near to zero that it has lost digits.
func tooSmall(f float64) bool { return math.Abs(f) < 0x1p-1022 }

func parseDouble(text string) (float64, bool) {
	if strings.ContainsAny(text, "xXpP_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && (!tooSmall(f) || !strings.ContainsAny(mantissa(text), "123456789"))
}

func mantissa(text string) string {
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		return text[:i]
	}
	return text
}

func toDecimal(dst []byte, v value) ([]byte, string) {
	var text string
	switch v.Type {
	case bson.TypeString:
		text = textOf(v)
	case bson.TypeDouble:
		text = roundedText(v.Double())
	default:
		n, ok := whole(v)
		if !ok {
			return dst, noSuch
		}
		text = strconv.FormatInt(n, 10)
	}
	d, err := bson.ParseDecimal128(text)
	if err != nil {
		return dst, noNumber
	}
	high, low := d.GetBytes()
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(dst, low), high), ""
}

// roundedText is a double with the 15 digits with which servers make it a decimal.
func roundedText(f float64) string {
	if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return doubleText(f)
	}
	return strconv.FormatFloat(f, 'e', 14, 64)
}

// toBool: only numbers that are zero are false.
func toBool(dst []byte, v value) []byte {
	yes := true
	switch v.Type {
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := whole(v)
		yes = n != 0
	case bson.TypeDouble:
		yes = v.Double() != 0
	case bson.TypeDecimal128:
		n, _, err := decimal(v).BigInt()
		yes = err != nil || n.Sign() != 0
	}
	return appendBool(dst, yes)
}

func toDate(dst []byte, v value) ([]byte, string) {
	switch v.Type {
	case bson.TypeInt64:
		return append(dst, v.Value...), ""
	case bson.TypeDouble, bson.TypeDecimal128:
		return toWhole(dst, v, 64)
	case bson.TypeObjectID: // with a sign (observed on 6.0.5)
		return appendInt64(dst, int64(int32(binary.BigEndian.Uint32(v.Value)))*1000), ""
	case bson.TypeTimestamp:
		return appendInt64(dst, int64(binary.LittleEndian.Uint32(v.Value[4:]))*1000), ""
	case bson.TypeString:
		at, ok := parseDate(textOf(v))
		if !ok {
			return dst, "the text is not a date such as 2026-01-31 or 2026-01-31T10:00:00.000Z"
		}
		return appendInt64(dst, at.UnixMilli()), ""
	}
	return dst, noSuch
}

func parseDate(text string) (time.Time, bool) {
	for _, form := range []string{"2006-01-02", "2006-01-02T15:04:05", "2006-01-02T15:04:05Z07:00",
		"2006-01-02T15:04:05Z0700", "2006-01-02 15:04:05", "2006-01-02T15:04Z07:00", "2006-01-02T15:04Z0700",
		"2006-01-02T15:04"} {
		if at, err := time.Parse(form, text); err == nil {
			// package time takes an offset of 60 minutes, servers do not
			return at, !strings.Contains(form, "Z07") || !strings.HasSuffix(text, "60")
		}
	}
	return time.Time{}, false
}

func toObjectID(dst []byte, v value) ([]byte, string) {
	if v.Type != bson.TypeString {
		return dst, noSuch
	}
	id, err := bson.ObjectIDFromHex(textOf(v))
	if err != nil {
		return dst, "the text is not 24 hexadecimal digits"
	}
	return append(dst, id[:]...), ""
}
