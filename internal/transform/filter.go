package transform

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

// filter keeps the documents of some collections that a query matches.
type filter struct {
	pattern
	query *query.Query
	json  string // canonical, without a semicolon
}

// String is canonical.
func (f *filter) String() string { return f.pattern.String() + "=" + f.json }

// Filter says which documents of a source namespace are kept: nil is all. Of the
// buckets of a time series, of views and of system collections all are.
func (s *Set) Filter(ns string) *query.Query {
	if i := s.filterOf(ns); i >= 0 {
		return s.filters[i].query
	}
	return nil
}

// filterOf is the index of the filter of a namespace, below 0 for none.
func (s *Set) filterOf(ns string) int {
	if s == nil || len(s.filters) == 0 || s.staged(ns) {
		return -1
	}
	db, coll := mongo.SplitNS(ns)
	if strings.HasPrefix(coll, mongo.BucketsPrefix) {
		return -1
	}
	return slices.IndexFunc(s.filters, func(f filter) bool { return f.matches(db, coll) })
}

// Keep is Filter for what is copied or compared, counted; nil keeps all. The function
// is safe for concurrent use.
func (s *Set) Keep(ns string, t *Tally) func(doc []byte) bool {
	i := s.filterOf(ns)
	if i < 0 {
		return nil
	}
	keep, n := s.filters[i].query, t.of(i)
	return func(doc []byte) bool {
		if keep.Match(doc) {
			n.copied.Add(1)
			return true
		}
		n.leftOut.Add(1)
		return false
	}
}

// Sent is the filter of a namespace if a server finds by it, too, what is kept; else nil.
func (s *Set) Sent(ns string) *query.Query {
	if q := s.Filter(ns); q != nil && q.OfAll() {
		return q
	}
	return nil
}

// Sifts reports whether some documents of a source namespace may not be kept.
func (s *Set) Sifts(ns string) bool { return s.Filter(ns) != nil }

// MayFail reports that the rules may be unable to map documents of a source namespace.
func (s *Set) MayFail(ns string) bool {
	m := s.Fields(ns)
	return m != nil && m.MayFail()
}

// mayFail reports that there is a rule which may be unable to map documents.
func (s *Set) mayFail() bool {
	return s != nil && slices.ContainsFunc(s.mappings, func(m mapping) bool { return m.fields.MayFail() })
}

// SameDocuments reports whether of the same documents in two source namespaces the same
// becomes.
func (s *Set) SameDocuments(a, b string) bool {
	m := s.Fields(a)
	return s.Filter(a) == s.Filter(b) && m == s.Fields(b) && (m == nil || !m.NamesNamespace()) && s.History(a) == s.History(b) && s.leftAlike(a, b)
}

// leftAlike reports whether what the rules for operations leave on the target under a may
// be there under b, too.
func (s *Set) leftAlike(a, b string) bool {
	field := s.SoftDelete(a)
	under := s.Skips(b)
	if under.Has(stream.OpDelete) { // of which ttl is a part
		under |= stream.OpTTL
	}
	return (field == "" || field == s.SoftDelete(b)) && (s.Skips(a)&^under&(stream.OpDocuments|leaves)) == 0
}

func compileFilters(texts []string) (out []filter, err error) {
	for _, text := range texts {
		f, err := compileFilter(text)
		if err != nil {
			return nil, fmt.Errorf("filter %q: %w; write 'db.coll={\"status\": \"open\"}', as find takes it", text, err)
		}
		out = append(out, f)
	}
	return out, nil
}

// compileFilter reads "pattern={…}".
func compileFilter(text string) (f filter, err error) {
	name, json, found := cutRule(text)
	if !found {
		return f, errors.New("the = between the pattern and the filter is missing")
	}
	if f.pattern, err = compile(name); err != nil {
		return f, fmt.Errorf("the pattern: %w", err)
	}
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(json), false, &raw); err != nil {
		return f, fmt.Errorf("the filter is no JSON: %w", err)
	}
	if f.query, err = query.Parse(raw); err != nil {
		return f, err
	}
	canonical, err := bson.MarshalExtJSON(raw, true, false)
	// A semicolon can only be in a string, and would end the rule in Set.String.
	f.json = strings.ReplaceAll(string(canonical), ";", `\u003b`)
	return f, err
}

// cutRule cuts at the first = that no backslash is before.
func cutRule(text string) (before, after string, found bool) {
	escaped := false
	for i := range len(text) {
		switch {
		case escaped:
			escaped = false
		case text[i] == '\\':
			escaped = true
		case text[i] == '=':
			return text[:i], text[i+1:], true
		}
	}
	return text, "", false
}
