package fields

import (
	"encoding/binary"
	"encoding/hex"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// conversion is to a type, by its name as $convert has it.
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
	if !v.isDocument() {
		return nil, at.refuse(`it needs a document, such as {"to": "decimal", "otherwise": "null"}`)
	}
	given, err := optionsOf(v, at, "to", "otherwise")
	if err != nil {
		return nil, err
	}
	r := &valueRule{kind: convertTo}
	if to := given["to"]; to.typ == bson.TypeString {
		if i := slices.Index(convertNames(), to.text()); i >= 0 {
			r.to = conversions()[i].to
		}
	}
	if r.to == none {
		return nil, at.in("to").refuse("it needs %s", listed(convertNames(), "or"))
	}
	r.otherwise, err = readOtherwise(given, at, true)
	return r, err
}

// convert writes a value as one of a type, or says why there is none. null stays null.
func convert(dst []byte, v value, to bson.Type) ([]byte, string) {
	if v.isNull() {
		return dst, ""
	}
	if v.typ == to {
		return append(dst, v.data...), ""
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
	noNumber   = "the text is no number"
	outOfRange = "the number is out of range"
)

func (v value) double() float64 { return math.Float64frombits(binary.LittleEndian.Uint64(v.data)) }

func (v value) decimal() bson.Decimal128 {
	return bson.NewDecimal128(binary.LittleEndian.Uint64(v.data[8:]), binary.LittleEndian.Uint64(v.data))
}

// whole is an int, a long, or a date where dates are taken for numbers.
func (v value) whole() (int64, bool) {
	switch v.typ {
	case bson.TypeInt32:
		return int64(int32(binary.LittleEndian.Uint32(v.data))), true
	case bson.TypeInt64, bson.TypeDateTime:
		return v.int64(), true
	case bson.TypeBoolean:
		return int64(v.data[0]), true
	}
	return 0, false
}

func toString(dst []byte, v value) ([]byte, string) {
	switch v.typ {
	case bson.TypeBoolean:
		return appendText(dst, strconv.FormatBool(v.data[0] != 0)), ""
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.whole()
		return appendText(dst, strconv.FormatInt(n, 10)), ""
	case bson.TypeDouble:
		return appendText(dst, doubleText(v.double())), ""
	case bson.TypeDecimal128:
		return appendText(dst, v.decimal().String()), ""
	case bson.TypeObjectID:
		return appendText(dst, hex.EncodeToString(v.data)), ""
	case bson.TypeDateTime:
		at := time.UnixMilli(v.int64()).UTC()
		if y := at.Year(); y < 0 || y > 9999 {
			return dst, "the date is not in the years 0 to 9999"
		}
		return appendText(dst, at.Format("2006-01-02T15:04:05.000Z")), ""
	}
	return dst, noSuch
}

// doubleText returns what servers write, six digits (observed on 4.2 to 6.0), if that reads
// back as the same number. Otherwise it returns the shortest text that does.
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

// toWhole makes an int or a long; fractions are cut off.
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
	switch v.typ {
	case bson.TypeDouble:
		f := v.double()
		if bits == 32 && (f < math.MinInt32 || f > math.MaxInt32) { // before the cut
			return 0, outOfRange
		}
		return cut(f)
	case bson.TypeDecimal128:
		return cutDecimal(v.decimal())
	case bson.TypeString:
		n, err := strconv.ParseInt(v.text(), 10, bits)
		if err != nil {
			return 0, noNumber
		}
		return n, ""
	case bson.TypeDateTime:
		if bits == 32 {
			return 0, noSuch
		}
	}
	n, ok := v.whole()
	if !ok {
		return 0, noSuch
	}
	return n, ""
}

// cut is a double without its fraction.
func cut(f float64) (int64, string) {
	f = math.Trunc(f)
	if !(f >= -(1<<63) && f < 1<<63) { // NaN too
		return 0, outOfRange
	}
	return int64(f), ""
}

func cutDecimal(d bson.Decimal128) (int64, string) {
	n, exp, err := d.BigInt()
	switch {
	case err != nil: // NaN, infinite
		return 0, outOfRange
	case n.Sign() == 0 || exp < -40:
		return 0, ""
	case exp > 20:
		return 0, outOfRange
	}
	power := new(big.Int).Exp(big.NewInt(10), big.NewInt(int64(max(exp, -exp))), nil)
	if exp < 0 {
		n.Quo(n, power)
	} else {
		n.Mul(n, power)
	}
	if !n.IsInt64() {
		return 0, outOfRange
	}
	return n.Int64(), ""
}

func toDouble(dst []byte, v value) ([]byte, string) {
	var f float64
	switch v.typ {
	case bson.TypeString:
		var ok bool
		if f, ok = parseDouble(v.text()); !ok {
			return dst, noNumber
		}
	case bson.TypeDecimal128:
		var err error
		if f, err = strconv.ParseFloat(v.decimal().String(), 64); err != nil || tooSmall(f) && toBool(nil, v)[0] == 1 {
			return dst, outOfRange
		}
	default:
		n, ok := v.whole()
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

// oneNaN is the NaN that servers write.
const oneNaN = 0x7ff8 << 48

// tooSmall says of a number that digits were lost because it is so near to zero.
func tooSmall(f float64) bool { return math.Abs(f) < 0x1p-1022 }

// parseDouble reads decimal notation.
func parseDouble(text string) (float64, bool) {
	if strings.ContainsAny(text, "xXpP_") {
		return 0, false
	}
	f, err := strconv.ParseFloat(text, 64)
	return f, err == nil && (!tooSmall(f) || !strings.ContainsAny(mantissa(text), "123456789"))
}

// mantissa is a number's text before its exponent.
func mantissa(text string) string {
	if i := strings.IndexAny(text, "eE"); i >= 0 {
		return text[:i]
	}
	return text
}

func toDecimal(dst []byte, v value) ([]byte, string) {
	var text string
	switch v.typ {
	case bson.TypeString:
		text = v.text()
	case bson.TypeDouble:
		text = roundedText(v.double())
	default:
		n, ok := v.whole()
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

// roundedText is a double as servers make it a decimal: with 15 digits.
func roundedText(f float64) string {
	if f == 0 || math.IsNaN(f) || math.IsInf(f, 0) {
		return doubleText(f)
	}
	return strconv.FormatFloat(f, 'e', 14, 64)
}

// toBool: only numbers that are zero are false.
func toBool(dst []byte, v value) []byte {
	yes := true
	switch v.typ {
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.whole()
		yes = n != 0
	case bson.TypeDouble:
		yes = v.double() != 0
	case bson.TypeDecimal128:
		n, _, err := v.decimal().BigInt()
		yes = err != nil || n.Sign() != 0
	}
	return appendBool(dst, yes)
}

func toDate(dst []byte, v value) ([]byte, string) {
	switch v.typ {
	case bson.TypeInt64:
		return append(dst, v.data...), ""
	case bson.TypeDouble, bson.TypeDecimal128:
		return toWhole(dst, v, 64)
	case bson.TypeObjectID: // with a sign (observed on 6.0.5)
		return appendInt64(dst, int64(int32(binary.BigEndian.Uint32(v.data)))*1000), ""
	case bson.TypeTimestamp:
		return appendInt64(dst, int64(binary.LittleEndian.Uint32(v.data[4:]))*1000), ""
	case bson.TypeString:
		at, ok := parseDate(v.text())
		if !ok {
			return dst, "the text is no date such as 2026-01-31 or 2026-01-31T10:00:00.000Z"
		}
		return appendInt64(dst, at.UnixMilli()), ""
	}
	return dst, noSuch
}

// parseDate reads ISO 8601; without an offset it is UTC.
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
	if v.typ != bson.TypeString {
		return dst, noSuch
	}
	id, err := bson.ObjectIDFromHex(v.text())
	if err != nil {
		return dst, "the text is not 24 hexadecimal digits"
	}
	return append(dst, id[:]...), ""
}
