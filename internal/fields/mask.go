package fields

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"
)

const maskForms = `"null", "year", "month", "day", {"hmac": "env:NAME"}, {"hmac": "file:/path"}, {"first": 2} or {"last": 4}`

func (p *parser) readMask(v value, at place) (*valueRule, error) {
	switch v.typ {
	case bson.TypeString:
		return namedMask(v.text(), at)
	case bson.TypeNull: // as YAML has it without quotes
		return namedMask("null", at)
	}
	if !v.isDocument() {
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

// dateUnits are in the order of dateUnit.
func dateUnits() []string { return []string{"year", "month", "day"} }

// mostKept is how many characters a mask leaves at most.
const mostKept = 1000

func maskSchema() schema {
	kept := schema{"type": "integer", "minimum": 1, "maximum": mostKept}
	one := optionSchema("", schema{"hmac": schema{"type": "string", "pattern": "^(env|file):.",
		"description": "where the key is: env:NAME or file:/path"}, "first": kept, "last": kept})
	one["minProperties"], one["maxProperties"] = 1, 1
	return either(schema{"enum": append([]any{"null", nil}, anyOf(dateUnits())...)}, one)
}

func readStars(kind ruleKind, v value, at place) (*valueRule, error) {
	n, ok := bson.RawValue{Type: v.typ, Value: v.data}.AsInt64OK()
	if !ok || n < 1 || n > mostKept {
		return nil, at.refuse("it needs a number of characters from 1 to %d; to keep none, mask by \"null\"", mostKept)
	}
	return &valueRule{kind: kind, n: int(n)}, nil
}

// leastKey is how many bytes a key has at least: a shorter one can be found by trying.
const leastKey = 16

func (p *parser) readSum(v value, at place) (*valueRule, error) {
	if v.typ != bson.TypeString {
		return nil, at.refuse(`it needs a reference, "env:NAME" or "file:/path"`)
	}
	ref := v.text()
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

// secret asks for each reference once.
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

// keyedSum is HMAC-SHA-256 (RFC 2104) under a key. It is done here on the buffer that
// is written to: crypto/hmac allocates for each value, or keeps state.
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

// append writes the sum of a value's type and bytes as a string in hex.
func (k *keyedSum) append(dst []byte, v value) []byte {
	at := len(dst)
	dst = append(append(append(dst, k.inner[:]...), byte(v.typ)), v.data...)
	sum := sha256.Sum256(dst[at:])
	dst = append(append(dst[:at], k.outer[:]...), sum[:]...)
	sum = sha256.Sum256(dst[at:])
	dst = append(dst[:at], 2*sha256.Size+1, 0, 0, 0)
	return append(hex.AppendEncode(dst, sum[:]), 0)
}

// stars keeps the first or last characters of a text. What has no more characters than
// are to be kept would be shown whole, and is all stars.
func (r *valueRule) stars(dst []byte, v value) ([]byte, bson.Type) {
	if v.typ != bson.TypeString {
		return dst, bson.TypeNull
	}
	text := v.data[4 : len(v.data)-1]
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
	putLength(dst[at-4:], len(dst)-at)
	return dst, bson.TypeString
}

// firstOf is where the first n characters end.
func firstOf(text []byte, n int) int {
	at := 0
	for range n {
		_, size := utf8.DecodeRune(text[at:])
		at += size
	}
	return at
}

// lastOf is where the last n characters begin.
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

// dateUnit is what dates are truncated to.
type dateUnit uint8

const (
	toYear dateUnit = iota
	toMonth
	toDay
)

func (u dateUnit) truncate(dst []byte, v value) ([]byte, bson.Type) {
	if v.typ != bson.TypeDateTime {
		return dst, bson.TypeNull
	}
	year, month, day := time.UnixMilli(v.int64()).UTC().Date()
	switch u {
	case toYear:
		month, day = time.January, 1
	case toMonth:
		day = 1
	}
	return appendInt64(dst, time.Date(year, month, day, 0, 0, 0, 0, time.UTC).UnixMilli()), v.typ
}
