package transform

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/versions"
)

type mapping struct {
	fields  *fields.Map
	careful *fields.Map // where documents that cannot be mapped are left out
	parts   func() ([]fields.Part, error)
}

func (s *Set) mayFail() bool {
	return s != nil && slices.ContainsFunc(s.mappings, func(r rule[mapping]) bool { return r.is.fields.MayFail() })
}

// OperationCopy is $operation in documents that were copied, or read from the source again.
const OperationCopy = "copy"

// Mapper returns the function that appends to dst the mapping of a document read from the source at
// a time, and counts it; nil if documents stay unchanged. It is safe for concurrent use.
func (r *Route) Mapper(at bson.Timestamp, t *Counters) func(dst, doc []byte) ([]byte, error) {
	to := r.mapper(at, t)
	if r.History {
		return copied(at, to)
	}
	return to
}

func (r *Route) mapper(at bson.Timestamp, t *Counters) func(dst, doc []byte) ([]byte, error) {
	if r.Fields == nil {
		return nil
	}
	n := countsOf(t.all().maps, r.fields)
	meta := fields.Meta{Namespace: r.Source, Operation: OperationCopy, ClusterTime: at}
	return func(dst, doc []byte) ([]byte, error) {
		n.copied.Add(1)
		out, err := r.Fields.Apply(dst, doc, meta)
		switch {
		case err != nil:
			n.failed.Add(1)
		case !bytes.Equal(out[len(dst):], doc):
			n.changed.Add(1)
		}
		return out, misfit(err, r.Source, doc)
	}
}

// Comparer returns how to compare documents of the source with those of the target. apply maps a
// source document, strip a target document; both leave out what a later read of the source cannot
// show. nil changes nothing. A document that cannot be mapped becomes one for which IsUnmapped
// returns true.
func (r *Route) Comparer() (apply, strip func(dst, doc []byte) ([]byte, error)) {
	m := r.Fields
	if m == nil {
		return nil, nil
	}
	mapper := r.mapper(bson.Timestamp{}, nil)
	apply = func(dst, doc []byte) ([]byte, error) {
		out, err := mapper(dst, doc)
		if why, ok := Unmappable(err); ok {
			return appendUnmapped(dst, doc, why), nil
		}
		return out, err
	}
	if len(m.Volatile()) == 0 {
		return apply, nil
	}
	strip = func(dst, doc []byte) ([]byte, error) { return m.Strip(dst, doc) }
	return func(dst, doc []byte) ([]byte, error) {
		whole, err := apply(nil, doc)
		if err != nil {
			return dst, err
		}
		return strip(dst, whole)
	}, strip
}

const unmappedField = "$unmapped"

func appendUnmapped(dst, doc []byte, why string) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = bsoncore.AppendValueElement(dst, "_id", bsonraw.IDOf(doc))
	dst = bsoncore.AppendStringElement(dst, unmappedField, why)
	return bsonraw.Close(dst, i)
}

// IsUnmapped reports what Comparer makes of a document that cannot be mapped.
func IsUnmapped(doc []byte) bool {
	_, ok := bsonraw.Field(doc, unmappedField)
	return ok
}

// Unmappable reports an error of a document that the rules cannot map, and the reason.
func Unmappable(err error) (why string, ok bool) {
	var m *fields.Misfit
	if !errors.As(err, &m) {
		return "", false
	}
	return m.Error(), true
}

func misfit(err error, ns string, doc bson.Raw) error {
	if err == nil {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("map the fields of a document of %s, _id %s: %w", ns,
		bsonraw.IDText(bsonraw.IDOf(doc)), err),
		`say in --fields what becomes of such values ("otherwise": "keep", "null" or "drop"), correct the document on the source, or have --filter leave it out; then start again with --restart. --on-conflict skip goes on without such documents`)
}

func parseMapping(secret func(ref string) (string, error)) func(text string) (mapping, string, error) {
	if secret == nil {
		secret = ReadSecret
	}
	return func(text string) (m mapping, canonical string, err error) {
		var raw bson.Raw
		if err := bson.UnmarshalExtJSON([]byte(text), false, &raw); err != nil {
			return m, "", fmt.Errorf("the rules are no JSON: %w", err)
		}
		if m.fields, err = fields.Parse(raw, secret); err != nil {
			return m, "", explained{err}
		}
		m.careful = m.fields.Careful()
		m.parts = func() ([]fields.Part, error) { return fields.Parts(raw, secret) }
		return m, strings.ReplaceAll(m.fields.String(), ";", `\u003b`), nil
	}
}

// ReadSecret returns the value of env:NAME, an environment variable, or file:/path, a file without
// the end of its last line.
func ReadSecret(ref string) (string, error) {
	kind, name, _ := strings.Cut(ref, ":")
	switch kind {
	case "env":
		if v := os.Getenv(name); v != "" {
			return v, nil
		}
		return "", fmt.Errorf("the environment variable %s is not set", name)
	case "file":
		b, err := os.ReadFile(name)
		if v := strings.TrimRight(string(b), "\r\n"); err != nil || v != "" {
			return v, err
		}
		return "", fmt.Errorf("the file %s is empty", name)
	}
	return "", fmt.Errorf("%q names no secret: write env:NAME or file:/path", ref)
}

func (s *Set) Histories() bool { return s != nil && len(s.histories) > 0 }

func copied(start bson.Timestamp, to func(dst, doc []byte) ([]byte, error)) func(dst, doc []byte) ([]byte, error) {
	return func(dst, doc []byte) (_ []byte, err error) {
		if to != nil {
			if doc, err = to(nil, doc); err != nil {
				return dst, err
			}
		}
		return versions.AppendCopy(slices.Grow(dst, len(doc)+versions.Size), doc, start, start), nil
	}
}

// Keys remembers the keys that rules were made with. The zero value is ready. Its methods are safe
// for concurrent use.
type Keys struct {
	mu   sync.Mutex
	keys map[string]string // by reference
}

// Remember wraps read as the Secret of a Config, and remembers its results. nil is ReadSecret.
func (k *Keys) Remember(read func(ref string) (string, error)) func(ref string) (string, error) {
	if read == nil {
		read = ReadSecret
	}
	return func(ref string) (string, error) {
		key, err := read(ref)
		k.mu.Lock()
		defer k.mu.Unlock()
		if _, known := k.keys[ref]; err == nil && !known { // what the rules were made with
			if k.keys == nil {
				k.keys = map[string]string{}
			}
			k.keys[ref] = key
		}
		return key, err
	}
}

// Mark identifies rules and the keys of their masks. It differs for each token, so that it reveals
// nothing of a key.
func (k *Keys) Mark(rules *Set, token string) string {
	sum := sha256.New()
	_, _ = fmt.Fprintf(sum, "%s\n", rules)
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, ref := range slices.Sorted(maps.Keys(k.keys)) {
		mac := hmac.New(sha256.New, []byte(k.keys[ref]))
		_, _ = mac.Write([]byte("millrace rules " + token))
		_, _ = sum.Write(mac.Sum(nil))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Seal is a Mark to store, with its token and a colon before it; "" where the rules have no keys.
func (k *Keys) Seal(rules *Set, token string) string {
	k.mu.Lock()
	none := len(k.keys) == 0
	k.mu.Unlock()
	if none {
		return ""
	}
	return token + ":" + k.Mark(rules, token)
}

// Fits reports that the seal has the same keys. An empty seal fits all.
func (k *Keys) Fits(rules *Set, seal string) bool {
	token, _, _ := strings.Cut(seal, ":")
	return seal == "" || k.Seal(rules, token) == seal
}
