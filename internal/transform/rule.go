// Package transform decides what a job moves and under which name. A Set holds
// the rules: filters and renames of namespaces, as pure functions, for the copy,
// verify and the schema. A Stage applies them to the events between a source and
// a sink. Nothing here asks a server, or knows where events come from and go to.
package transform

import (
	"crypto/sha256"
	"encoding/hex"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/stream"
)

// Config is a job's rules as the operator writes them.
//
// Include and Exclude hold patterns: "db", "db.coll", "db.*"; * stands for any
// characters (dots too), ? for one, in either part; a backslash takes the next
// character as it is. Without Include everything is kept; Exclude wins.
// Rename holds "db=db2" or "db.coll=db2.coll2" with plain names; the rule of a
// collection wins over that of its database.
// Filter holds "pattern={…}": of the collections that match the pattern only the
// documents that find would return for the filter, in extended JSON, are kept. Of
// several rules the first that matches counts.
// Skip holds "pattern=operation,operation": those operations on what matches the pattern
// are left out while the job follows; the first that matches counts.
// Fields holds "pattern={…}": how the documents of what matches the pattern are mapped, as
// package fields reads it; the first that matches counts.
type Config struct {
	Include, Exclude []string
	Rename           []string
	Filter           []string
	Skip             []string
	Fields           []string
	// SoftDelete holds "pattern=field": documents that the source deletes stay on the
	// target, with the time in that field; the first that matches counts.
	SoftDelete []string
	// History holds patterns: of the documents of what matches the target holds all versions.
	History []string
	// Secret gives what a reference of Fields names; nil is ReadSecret.
	Secret func(ref string) (string, error)
}

// Set is an immutable set of rules. The zero value and nil keep everything under
// its own name (but never the servers' internal databases). Safe for concurrent use.
type Set struct {
	include, exclude []pattern
	dbs, colls       map[string]string   // source name to target name
	dbSources        map[string][]string // target database to sources, sorted
	collSources      map[string][]string // target namespace to sources, sorted
	filters          rules[*query.Query]
	skips            rules[stream.Ops]
	mappings         rules[mapping]
	softDeletes      rules[string] // fields
	histories        rules[struct{}]
	text             string
	byCommand        bool // see ByCommand
	routes           *routes
}

// New compiles c. An error names the pattern or rename and what is wrong with it.
func New(c Config) (*Set, error) {
	s := &Set{dbs: map[string]string{}, colls: map[string]string{}, routes: &routes{}}
	var err error
	if s.include, err = compileAll("include", c.Include); err != nil {
		return nil, err
	}
	if s.exclude, err = compileAll("exclude", c.Exclude); err != nil {
		return nil, err
	}
	for _, r := range c.Rename {
		if err := s.addRename(r); err != nil {
			return nil, err
		}
	}
	if s.filters, err = compileRules("filter", `db.coll={"status": "open"}`, c.Filter, parseFilter); err != nil {
		return nil, err
	}
	if s.skips, err = compileRules("skip", "db.coll=delete,drop", c.Skip, parseSkip); err != nil {
		return nil, err
	}
	if s.mappings, err = compileRules("fields", `db.coll={"drop": ["card"]}`, c.Fields,
		parseMapping(c.Secret)); err != nil {
		return nil, err
	}
	if s.softDeletes, err = compileRules("soft-delete", "db.coll=deletedAt", c.SoftDelete, parseSoftDelete); err != nil {
		return nil, err
	}
	histories, err := compileAll("history", c.History)
	if err != nil {
		return nil, err
	}
	for _, p := range histories {
		s.histories = append(s.histories, rule[struct{}]{pattern: p})
	}
	s.dbSources, s.collSources = invert(s.dbs), invert(s.colls)
	s.text = s.canonical()
	return s, nil
}

func invert(m map[string]string) map[string][]string {
	inverse := map[string][]string{}
	for from, to := range m {
		inverse[to] = append(inverse[to], from)
	}
	for _, froms := range inverse {
		slices.Sort(froms)
	}
	return inverse
}

// Match reports whether the namespace is kept. A system.buckets collection is
// judged as its time-series collection; of the other system collections only
// system.js can be kept, for it alone holds user data.
func (s *Set) Match(ns string) bool {
	db, coll := mongo.SplitNS(ns)
	if mongo.IsInternal(db) || db == "" {
		return false
	}
	coll = strings.TrimPrefix(coll, mongo.BucketsPrefix)
	if coll == "" || coll[0] == '$' || strings.HasPrefix(coll, "system.") && coll != "system.js" {
		return false
	}
	if s.staged(ns) {
		return s.matchStaged(ns)
	}
	return s.chooses(db, coll)
}

// Chooses reports whether the patterns choose a namespace, also one of those that are
// never kept.
func (s *Set) Chooses(ns string) bool {
	db, coll := mongo.SplitNS(ns)
	return s.chooses(db, strings.TrimPrefix(coll, mongo.BucketsPrefix))
}

func (s *Set) chooses(db, coll string) bool {
	if s == nil {
		return true
	}
	return (len(s.include) == 0 || anyMatches(s.include, db, coll)) && !anyMatches(s.exclude, db, coll)
}

// Rule is one of a set, in canonical form.
type Rule struct{ Kind, Text string } // include, exclude, rename, filter, skip, fields, soft-delete or history

// Unused are the rules that mean none of the names: patterns that match none, and
// renames of others.
func (s *Set) Unused(names []string) (out []Rule) {
	if s == nil {
		return nil
	}
	dbs, all := map[string]bool{}, map[string]bool{}
	for _, ns := range names {
		db, _ := mongo.SplitNS(ns)
		dbs[db], all[ns] = true, true
	}
	unused := func(kind string, patterns []pattern) {
		for _, p := range patterns {
			if !slices.ContainsFunc(names, func(ns string) bool { return p.matches(mongo.SplitNS(ns)) }) {
				out = append(out, Rule{kind, p.String()})
			}
		}
	}
	unused("include", s.include)
	unused("exclude", s.exclude)
	unused("history", s.histories.patterns())
	unused("filter", s.filters.patterns())
	unused("skip", s.skips.patterns())
	unused("fields", s.mappings.patterns())
	unused("soft-delete", s.softDeletes.patterns())
	for _, from := range slices.Sorted(maps.Keys(s.dbs)) {
		if !dbs[from] {
			out = append(out, Rule{"rename", from})
		}
	}
	for _, from := range slices.Sorted(maps.Keys(s.colls)) {
		if !all[from] {
			out = append(out, Rule{"rename", from})
		}
	}
	return out
}

// MatchDB reports whether anything of the database could be kept.
func (s *Set) MatchDB(db string) bool {
	if mongo.IsInternal(db) || db == "" {
		return false
	}
	if s == nil {
		return true
	}
	if slices.ContainsFunc(s.exclude, func(p pattern) bool { return p.coll.any && p.db.matches(db) }) {
		return false
	}
	return len(s.include) == 0 || slices.ContainsFunc(s.include, func(p pattern) bool { return p.db.matches(db) })
}

// MatchTargetDB reports whether anything that is kept could be in the database
// on the target.
func (s *Set) MatchTargetDB(db string) bool {
	if mongo.IsInternal(db) || db == "" {
		return false
	}
	if s == nil {
		return true
	}
	for from, to := range s.colls {
		if toDB, _ := mongo.SplitNS(to); toDB == db && s.Match(from) {
			return true
		}
	}
	if slices.ContainsFunc(s.dbSources[db], s.MatchDB) {
		return true
	}
	_, renamed := s.dbs[db]
	return !renamed && s.MatchDB(db)
}

// NamesTargetDB reports whether the rules name the database on the target: by a
// rename into it, or by an include that is not for all databases.
func (s *Set) NamesTargetDB(db string) bool {
	if !s.MatchTargetDB(db) || s == nil {
		return false
	}
	for _, to := range s.colls {
		if toDB, _ := mongo.SplitNS(to); toDB == db {
			return true
		}
	}
	return len(s.dbSources[db]) > 0 || slices.ContainsFunc(s.include,
		func(p pattern) bool { return !p.db.any && p.db.matches(db) })
}

// Target is the name of the source namespace ns on the target. A
// system.buckets collection moves with its time-series collection.
func (s *Set) Target(ns string) string {
	if !s.Renames() {
		return ns
	}
	if s.staged(ns) {
		return s.targetStaged(ns)
	}
	db, coll := mongo.SplitNS(ns)
	if series, ok := strings.CutPrefix(coll, mongo.BucketsPrefix); ok {
		db, coll = mongo.SplitNS(s.Target(db + "." + series))
		return db + "." + mongo.BucketsPrefix + coll
	}
	if to, ok := s.colls[ns]; ok {
		return to
	}
	if to, ok := s.dbs[db]; ok {
		return to + "." + coll
	}
	return ns
}

// Renames reports whether any name changes on the way.
func (s *Set) Renames() bool { return s != nil && len(s.dbs)+len(s.colls) > 0 }

// Source is the inverse of Target: the kept source namespace that has this
// name on the target, if there can be one. With several rules into one target
// database there can be more, of which this is the first: see Sources.
func (s *Set) Source(targetNS string) (string, bool) {
	all := s.Sources(targetNS)
	if len(all) == 0 {
		return "", false
	}
	return all[0], true
}

// Sources are all kept source namespaces that have this name on the target, if
// they exist.
func (s *Set) Sources(targetNS string) []string {
	var out []string
	for _, ns := range s.sources(targetNS) {
		if s.Match(ns) && s.Target(ns) == targetNS && !slices.Contains(out, ns) {
			out = append(out, ns)
		}
	}
	return out
}

// Ambiguous reports that more than one kept source namespace can have this name
// on the target.
func (s *Set) Ambiguous(targetNS string) bool { return len(s.Sources(targetNS)) > 1 }

// sources are the names that might map to targetNS.
func (s *Set) sources(targetNS string) []string {
	if s == nil {
		return []string{targetNS}
	}
	db, coll := mongo.SplitNS(targetNS)
	var out []string
	if series, ok := strings.CutPrefix(coll, mongo.BucketsPrefix); ok {
		for _, ns := range s.sources(db + "." + series) {
			sdb, scoll := mongo.SplitNS(ns)
			out = append(out, sdb+"."+mongo.BucketsPrefix+scoll)
		}
		return out
	}
	out = append(out, s.collSources[targetNS]...)
	for _, from := range s.dbSources[db] {
		out = append(out, from+"."+coll)
	}
	if s.staged(targetNS) {
		for from, to := range s.colls {
			if toDB, _ := mongo.SplitNS(to); toDB == db {
				fromDB, _ := mongo.SplitNS(from)
				out = append(out, fromDB+"."+coll)
			}
		}
		slices.Sort(out)
	}
	return append(out, targetNS)
}

// String is a canonical form: equal rules give equal text.
func (s *Set) String() string {
	if s == nil || s.text == "" {
		return "everything"
	}
	return s.text
}

// Hash identifies the rules within a job's identity: 16 hexadecimal digits.
func (s *Set) Hash() string {
	sum := sha256.Sum256([]byte(s.String()))
	return hex.EncodeToString(sum[:8])
}

// canonical sorts and joins the rules.
func (s *Set) canonical() string {
	var parts []string
	add := func(kind string, items []string) {
		slices.Sort(items)
		for _, it := range slices.Compact(items) {
			parts = append(parts, kind+" "+it)
		}
	}
	add("include", texts(s.include))
	add("exclude", texts(s.exclude))
	var renames []string
	for _, m := range []map[string]string{s.dbs, s.colls} {
		for from, to := range m {
			renames = append(renames, escape(from)+"="+escape(to))
		}
	}
	add("rename", renames)
	parts = s.filters.appendTexts(parts, "filter") // their order counts
	parts = s.skips.appendTexts(parts, "skip")
	parts = s.mappings.appendTexts(parts, "fields")
	parts = s.softDeletes.appendTexts(parts, "soft-delete")
	add("history", texts(s.histories.patterns()))
	return strings.Join(parts, "; ")
}

// Includes reports whether the rules choose only some databases or collections by name.
func (s *Set) Includes() bool { return s != nil && len(s.include) > 0 }
