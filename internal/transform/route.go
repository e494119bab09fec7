package transform

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

// Route is the result of the rules for a source collection and its documents. It is immutable.
type Route struct {
	stream.Route
	Kept       bool         // false: nothing of it is moved
	Filter     *query.Query // which documents are kept; nil is all
	Skips      stream.Ops   // operations that are left out, on it and on its documents
	Fields     *fields.Map  // how documents are mapped; nil is not at all
	SoftDelete string       // the field that marks what the source has deleted; "" has it deleted
	History    bool         // the target has the versions of documents in place of documents
	Ruled      bool         // a rule decides what the target has, so no other collection can replace it

	mapping                          *mapping // of Fields
	filter, skip, fields, softDelete int      // indexes of the rules, below 0 for none
}

const maxKnown = 1 << 16

type routes struct {
	mu  sync.RWMutex
	all map[string]*Route
}

// Route returns the route of a source namespace. Buckets have the rules for operations and soft
// deletions of their time series, and no other rules for documents.
func (s *Set) Route(ns string) *Route {
	if s == nil || s.routes == nil {
		return s.newRoute(ns)
	}
	s.routes.mu.RLock()
	r := s.routes.all[ns]
	s.routes.mu.RUnlock()
	if r != nil {
		return r
	}
	r = s.newRoute(ns)
	s.routes.mu.Lock()
	defer s.routes.mu.Unlock()
	if s.routes.all == nil || len(s.routes.all) >= maxKnown {
		s.routes.all = map[string]*Route{}
	}
	s.routes.all[ns] = r
	return r
}

// Unruled is the route of a collection without rules.
func Unruled(source, target string) *Route { return (*Set)(nil).newRoute(source).To(target) }

// To is the same route to another target.
func (r *Route) To(target string) *Route {
	if r.Target == target {
		return r
	}
	to := *r
	to.Target = target
	return &to
}

func (s *Set) newRoute(ns string) *Route {
	r := &Route{Route: stream.Route{Source: ns, Target: s.Target(ns)}, Kept: s.Match(ns), filter: -1, skip: -1, fields: -1,
		softDelete: -1}
	if s == nil {
		return r
	}
	r.Ruled = s.byCommand
	if s.staged(ns) {
		return r
	}
	r.skip, r.softDelete = s.skips.of(mongo.SeriesNS(ns)), s.softDeletes.of(mongo.SeriesNS(ns))
	if !mongo.IsBuckets(ns) {
		r.filter, r.fields, r.History = s.filters.of(ns), s.mappings.of(ns), s.histories.of(ns) >= 0
	}
	if r.filter >= 0 {
		r.Filter = s.filters[r.filter].is
	}
	if r.skip >= 0 {
		r.Skips = s.skips[r.skip].is
	}
	if r.fields >= 0 {
		r.mapping = &s.mappings[r.fields].is
		r.Fields = r.mapping.fields
	}
	if r.softDelete >= 0 {
		r.SoftDelete = s.softDeletes[r.softDelete].is
	}
	r.Ruled = r.Ruled || r.filter >= 0 || r.skip >= 0 || r.fields >= 0 || r.softDelete >= 0 || r.History
	r.Filtered, r.MayFail, r.KeepsExpired = r.Filter != nil, r.Fields != nil &&
		r.Fields.MayFail(), r.Skips.Has(stream.OpTTL)
	r.Stale = r.Skips.Has(stream.OpInsert | stream.OpUpdate | stream.OpReplace)
	return r
}

// Reads reports that updates may need documents of the source.
func (r *Route) Reads() bool { return r.Filter != nil || r.Fields != nil }

// Keep is Filter for copied or compared documents, counted; nil keeps all. The function is safe for
// concurrent use.
func (r *Route) Keep(t *Counters) func(doc []byte) bool {
	if r.Filter == nil {
		return nil
	}
	n := countsOf(t.all().filters, r.filter)
	return func(doc []byte) bool {
		if r.Filter.Match(doc) {
			n.copied.Add(1)
			return true
		}
		n.leftOut.Add(1)
		return false
	}
}

// Sent is the filter if servers evaluate it the same, else nil.
func (r *Route) Sent() *query.Query {
	if r.Filter != nil && r.Filter.OfAll() {
		return r.Filter
	}
	return nil
}

// Unmarked selects the target's documents that the source still has; nil selects all.
func (r *Route) Unmarked() func(doc []byte) bool {
	if r.SoftDelete == "" {
		return nil
	}
	return func(doc []byte) bool {
		_, marked := bsonraw.Field(doc, r.SoftDelete)
		return !marked
	}
}

// SameDocuments reports whether the same documents become the same under another route.
func (r *Route) SameDocuments(other *Route) bool {
	return r.Filter == other.Filter && r.Fields == other.Fields && (r.Fields == nil || !r.Fields.NamesNamespace()) &&
		r.History == other.History && r.leftAlike(other)
}

func (r *Route) leftAlike(other *Route) bool {
	under := other.Skips
	if under.Has(stream.OpDelete) { // ttl is a part of it
		under |= stream.OpTTL
	}
	return (r.SoftDelete == "" || r.SoftDelete == other.SoftDelete) && (r.Skips&^under&(stream.OpDocuments|leaves)) == 0
}

// NoHistory returns why the other rules exclude versions, or "".
func (r *Route) NoHistory() string {
	switch {
	case r.Filter != nil:
		return "a filter keeps some of its documents, and the state of one that comes into the filter is not known for " +
			"each of its changes"
	case r.SoftDelete != "":
		return "deleted documents are marked (--soft-delete), and a history tells of them by itself"
	case r.Stale:
		return fmt.Sprintf("%s is skipped, and later versions are made of what was skipped",
			r.Skips&(stream.OpInsert|stream.OpUpdate|stream.OpReplace))
	case r.Skips.Has(stream.OpCreate | stream.OpDrop | stream.OpRename):
		return fmt.Sprintf("%s is skipped, and a history tells of it",
			r.Skips&(stream.OpCreate|stream.OpDrop|stream.OpRename))
	case r.KeepsExpired:
		return "ttl is skipped, which is decided on documents of the target, and a history has none"
	case r.Fields != nil && !r.Fields.Translates():
		return "its fields are mapped by more than keep, drop, rename and set of fields at the top level: that takes whole " +
			"documents of the source now and then, and the state of one is not known for each of its changes"
	}
	return ""
}

// Try returns what becomes of one document, as the copy would; nil where the rules do not keep it.
func (r *Route) Try(doc bson.Raw) (bson.Raw, error) {
	if !r.Kept || r.Filter != nil && !r.Filter.Match(doc) {
		return nil, nil
	}
	if to := r.Mapper(bson.Timestamp{}, nil); to != nil {
		return to(nil, doc)
	}
	return doc, nil
}

const (
	maxDBBytes = 63
	maxNSBytes = 255
)

func (s *Set) addRename(text string) error {
	from, to, err := SplitRename(text)
	if err != nil {
		return fmt.Errorf("rename %q: %w; write db=db2 or db.coll=db2.coll2", text, err)
	}
	names := s.dbs
	if strings.Contains(from, ".") {
		names = s.colls
	}
	if old, ok := names[from]; ok && old != to {
		return fmt.Errorf("rename %q: %s is renamed to %s already", text, from, old)
	}
	names[from] = to
	return nil
}

// SplitRename reads "from=to". An error says what is wrong with it.
func SplitRename(text string) (from, to string, err error) {
	sides, err := unescapeSides(text)
	if err != nil {
		return "", "", err
	}
	from, to = sides[0], sides[1]
	if strings.Contains(from, ".") != strings.Contains(to, ".") {
		return "", "", errors.New("one side names a database and the other a collection")
	}
	for i, side := range sides {
		if err := checkName(side); err != nil {
			return "", "", fmt.Errorf("the name %s = %s: %w", []string{"before", "after"}[i], side, err)
		}
		if db, _ := mongo.SplitNS(side); mongo.IsInternal(db) {
			return "", "", fmt.Errorf("%s is internal and takes part in no job", db)
		}
	}
	return from, to, nil
}

func unescapeSides(text string) ([2]string, error) {
	var sides [2]strings.Builder
	if !utf8.ValidString(text) {
		return [2]string{}, errors.New("it is not valid text")
	}
	side, escaped := 0, false
	for _, r := range text {
		switch {
		case escaped:
			sides[side].WriteRune(r)
			escaped = false
		case r == '\\':
			escaped = true
		case r == '=' && side == 0:
			side = 1
		case r == '=':
			return [2]string{}, errors.New("there is more than one =; write \\= for one within a name")
		case r == '*' || r == '?':
			return [2]string{}, errors.New("wildcards are not possible in a rename")
		default:
			sides[side].WriteRune(r)
		}
	}
	if side == 0 {
		return [2]string{}, errors.New("the = is missing")
	}
	if escaped {
		return [2]string{}, errors.New("a backslash at the end escapes nothing")
	}
	return [2]string{sides[0].String(), sides[1].String()}, nil
}

func checkName(name string) error {
	db, coll, dotted := strings.Cut(name, ".")
	switch {
	case db == "":
		return errors.New("the database is missing")
	case len(db) > maxDBBytes:
		return fmt.Errorf("a database name has at most %d bytes", maxDBBytes)
	case strings.ContainsAny(db, "/\\ \"$*<>:|?\x00"):
		return errors.New(`a database name cannot have any of /\ "$*<>:|? or a space`)
	case !dotted:
		return nil
	case coll == "":
		return errors.New("the collection after the dot is missing")
	case len(name) > maxNSBytes:
		return fmt.Errorf("database and collection have more than %d bytes together", maxNSBytes)
	case strings.ContainsAny(coll, "\x00$"):
		return errors.New("a collection name cannot have a $")
	case coll[0] == '.':
		return errors.New("a collection name cannot start with a dot")
	case strings.HasPrefix(coll, "system.") && coll != "system.js":
		return errors.New("names that start with system. belong to the server")
	}
	return nil
}

// Collisions checks the names of kept source namespaces on the target: none twice, none that a server
// refuses, no databases that differ in case only. One error has all problems.
func (s *Set) Collisions(nss []string) error {
	taken, folded := map[string]string{}, map[string]string{}
	var errs []error
	for _, ns := range slices.Sorted(slices.Values(nss)) {
		if !s.Match(ns) {
			continue
		}
		to := s.Target(ns)
		if first, ok := taken[to]; ok && first != ns {
			errs = append(errs, fmt.Errorf("%s and %s would both become %s", first, ns, to))
		}
		taken[to] = ns
		if to != ns {
			if err := checkName(to); err != nil {
				errs = append(errs, fmt.Errorf("%s would become %s: %w", ns, to, err))
			}
		}
		db, _ := mongo.SplitNS(to)
		fold := strings.ToLower(db)
		if first, ok := folded[fold]; ok && first != db {
			errs = append(errs, fmt.Errorf("databases %s and %s of the target would differ in case alone", first, db))
		}
		folded[fold] = db
	}
	return errors.Join(errs...)
}
