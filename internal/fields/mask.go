package fields

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const maskForms = `"null", "year", "month", "day", {"hmac": "env:NAME"}, {"hmac": "file:/path"}, {"first": 2} or {"last": 4}`

func (p *parser) readMask(v value, at place) (*valueRule, error) {
	switch v.Type {
	case bson.TypeString:
		return namedMask(textOf(v), at)
	case bson.TypeNull: // as YAML has it without quotes
		return namedMask("null", at)
	}
	if !v.IsDocument() {
		return nil, at.refuse("it needs %s", maskForms)
	}
	given, err := optionsOf(v, at, "hmac", "first", "last")
	if err != nil {
		return nil, err
	}
	if len(given) != 1 {
		return nil, at.refuse("it needs one of %s", maskForms)
	}
	if ref, ok := given["hmac"]; ok {
		return p.readSum(ref, at.in("hmac"))
	}
	if n, ok := given["first"]; ok {
		return readStars(maskFirst, n, at.in("first"))
	}
	return readStars(maskLast, given["last"], at.in("last"))
}

func namedMask(name string, at place) (*valueRule, error) {
	if name == "null" {
		return &valueRule{kind: maskNull}, nil
	}
	if i := slices.Index(dateUnits(), name); i >= 0 {
		return &valueRule{kind: maskDate, unit: dateUnit(i)}, nil
	}
	return nil, at.refuse("there is no mask %q; write %s", name, maskForms)
}

func dateUnits() []string { return []string{"year", "month", "day"} }

const mostKept = 1000

func maskSchema() schema {
	kept := schema{"type": "integer", "minimum": 1, "maximum": mostKept}
	one := optionSchema("", schema{"hmac": schema{"type": "string", "pattern": "^(env|file):.",
		"description": "where the key is: env:NAME or file:/path"}, "first": kept, "last": kept})
	one["minProperties"], one["maxProperties"] = 1, 1
	return either(schema{"enum": append([]any{"null", nil}, anyOf(dateUnits())...)}, one)
}

func readStars(kind ruleKind, v value, at place) (*valueRule, error) {
	n, ok := bson.RawValue{Type: v.Type, Value: v.Value}.AsInt64OK()
	if !ok || n < 1 || n > mostKept {
		return nil, at.refuse("it needs a number of characters from 1 to %d; to keep none, mask by \"null\"", mostKept)
	}
	return &valueRule{kind: kind, n: int(n)}, nil
}

// leastKey is the least length of a key in bytes: a shorter one can be guessed.
const leastKey = 16

func (p *parser) readSum(v value, at place) (*valueRule, error) {
	if v.Type != bson.TypeString {
		return nil, at.refuse(`it needs a reference, "env:NAME" or "file:/path"`)
	}
	ref := textOf(v)
	kind, name, _ := strings.Cut(ref, ":")
	if kind != "env" && kind != "file" || name == "" {
		return nil, at.refuse(`it needs a reference, "env:NAME" or "file:/path", and not the key itself`)
	}
	key, err := p.secret(ref)
	if err != nil {
		return nil, at.refuse("the key of %s cannot be read: %v; have it where millrace runs", ref, err)
	}
	if len(key) < leastKey {
		return nil,
			at.refuse("the key of %s has less than %d bytes, and could be found by trying; make one of 32 random bytes",
				ref, leastKey)
	}
	return &valueRule{kind: maskSum, key: newKeyedSum([]byte(key))}, nil
}

func (p *parser) secret(ref string) (string, error) {
	if key, ok := p.keys[ref]; ok {
		return key, nil
	}
	key, err := p.secrets(ref)
	if err == nil {
		if p.keys == nil {
			p.keys = map[string]string{}
		}
		p.keys[ref] = key
	}
	return key, err
}

// keyedSum is HMAC-SHA-256 (RFC 2104) on the output buffer: crypto/hmac allocates for each value, or
// keeps state.
type keyedSum struct{ inner, outer [sha256.BlockSize]byte }

func newKeyedSum(key []byte) *keyedSum {
	if len(key) > sha256.BlockSize {
		sum := sha256.Sum256(key)
		key = sum[:]
	}
	var k keyedSum
	copy(k.inner[:], key)
	copy(k.outer[:], key)
	for i := range k.inner {
		k.inner[i] ^= 0x36
		k.outer[i] ^= 0x5c
	}
	return &k
}

func (k *keyedSum) append(dst []byte, v value) []byte {
	at := len(dst)
	dst = append(append(append(dst, k.inner[:]...), byte(v.Type)), v.Value...)
	sum := sha256.Sum256(dst[at:])
	dst = append(append(dst[:at], k.outer[:]...), sum[:]...)
	sum = sha256.Sum256(dst[at:])
	dst = append(dst[:at], 2*sha256.Size+1, 0, 0, 0)
	return append(hex.AppendEncode(dst, sum[:]), 0)
}

// stars keeps the first or last characters of a text. A text that is not longer becomes all stars.
func (r *valueRule) stars(dst []byte, v value) ([]byte, bson.Type) {
	if v.Type != bson.TypeString {
		return dst, bson.TypeNull
	}
	text := v.Value[4 : len(v.Value)-1]
	count := utf8.RuneCount(text)
	keep := r.n
	if count <= keep {
		keep = 0
	}
	dst = append(dst, 0, 0, 0, 0)
	at := len(dst)
	if r.kind == maskFirst {
		dst = append(dst, text[:firstOf(text, keep)]...)
	}
	dst = appendStars(dst, count-keep)
	if r.kind == maskLast {
		dst = append(dst, text[lastOf(text, keep):]...)
	}
	dst = append(dst, 0)
	binary.LittleEndian.PutUint32(dst[at-4:], uint32(len(dst)-at))
	return dst, bson.TypeString
}

func firstOf(text []byte, n int) int {
	at := 0
	for range n {
		_, size := utf8.DecodeRune(text[at:])
		at += size
	}
	return at
}

func lastOf(text []byte, n int) int {
	at := len(text)
	for range n {
		_, size := utf8.DecodeLastRune(text[:at])
		at -= size
	}
	return at
}

func appendStars(dst []byte, n int) []byte {
	const stars = "********************************"
	for ; n > len(stars); n -= len(stars) {
		dst = append(dst, stars...)
	}
	return append(dst, stars[:n]...)
}

type dateUnit uint8

const (
	toYear dateUnit = iota
	toMonth
	toDay
)

func (u dateUnit) truncate(dst []byte, v value) ([]byte, bson.Type) {
	if v.Type != bson.TypeDateTime {
		return dst, bson.TypeNull
	}
	year, month, day := time.UnixMilli(v.Int64()).UTC().Date()
	switch u {
	case toYear:
		month, day = time.January, 1
	case toMonth:
		day = 1
	}
	return appendInt64(dst, time.Date(year, month, day, 0, 0, 0, 0, time.UTC).UnixMilli()), v.Type
}

// Masked lists the fields of the result that hold masked values.
func (m *Map) Masked() []string {
	var out []string
	for i := range m.claims {
		if c := &m.claims[i]; c.rule.masks() {
			out = append(out, m.inPlace(c.path))
		}
	}
	for i := range m.outputs {
		if o := &m.outputs[i]; o.make.rule.masks() {
			out = append(out, o.path.text)
		}
	}
	return out
}

func (m *Map) inPlace(p path) string {
	names := make([]string, 0, len(p.names))
	n := m.root
	for _, name := range p.names {
		if n = n.find([]byte(name)); n == nil {
			return p.text
		} else if n.as != "" {
			name = n.as
		}
		names = append(names, name)
	}
	return strings.Join(names, ".")
}

func (r *valueRule) masks() bool { return r != nil && r.kind != convertTo }

type valueRule struct {
	kind      ruleKind
	to        bson.Type // convert
	otherwise otherwise
	n         int       // maskFirst, maskLast
	unit      dateUnit  // maskDate
	key       *keyedSum // maskSum
}

type ruleKind uint8

const (
	convertTo ruleKind = iota
	maskSum
	maskFirst
	maskLast
	maskNull
	maskDate
)

func (r *valueRule) append(dst []byte, v value, path string) ([]byte, bson.Type, error) {
	switch r.kind {
	case maskSum:
		return r.key.append(dst, v), bson.TypeString, nil
	case maskFirst, maskLast:
		dst, typ := r.stars(dst, v)
		return dst, typ, nil
	case maskDate:
		dst, typ := r.unit.truncate(dst, v)
		return dst, typ, nil
	case maskNull:
		return dst, bson.TypeNull, nil
	}
	at := len(dst)
	dst, why := convert(dst, v, r.to)
	if why == "" {
		if v.IsNull() {
			return dst, bson.TypeNull, nil
		}
		return dst, r.to, nil
	}
	switch dst = dst[:at]; r.otherwise {
	case otherwiseKeep:
		return append(dst, v.Value...), v.Type, nil
	case otherwiseNull:
		return dst, bson.TypeNull, nil
	case otherwiseDrop:
		return dst, none, nil
	}
	return nil, none, &Misfit{path, why}
}
