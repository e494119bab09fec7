// Package transform decides what a job moves and under which name. A Set holds the rules as pure
// functions, for the copy, verify and the schema. A Stage applies them to events between a source
// and a sink. Nothing here asks a server, or knows where events come from and go to.
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

// Config is a job's rules as the operator writes them. Of several rules with a pattern, the first
// that matches counts.
//
// Include and Exclude hold patterns: "db", "db.coll", "db.*"; * stands for any characters (dots
// too), ? for one; a backslash escapes the next one. Without Include everything is kept; Exclude
// wins. Rename holds "db=db2" or "db.coll=db2.coll2"; the rule of a collection wins over that of its
// database. Filter holds "pattern={…}", a filter of find in extended JSON. Skip holds
// "pattern=operation,operation", which are left out while the job follows. Fields holds
// "pattern={…}", as package fields reads it.
type Config struct {
	Include, Exclude []string
	Rename           []string
	Filter           []string
	Skip             []string
	Fields           []string
	// SoftDelete holds "pattern=field": keep deleted documents, with the time in this field.
	SoftDelete []string
	// History holds patterns: the target holds all versions of documents.
	History []string
	// Secret resolves references of Fields; nil is ReadSecret.
	Secret func(ref string) (string, error)
}

// Set is an immutable set of rules. The zero value and nil keep everything under its own name,
// except the servers' internal databases.
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

// New compiles c. An error names the rule and what is wrong with it.
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
	if s.filters, err = compileRules("filter", `db.coll={"status": "open"}`, c.Filter, boundedFilters()); err != nil {
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

// Match reports whether the namespace is kept. A system.buckets collection counts as its time
// series. Of other system collections, only system.js holds user data and can be kept.
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

// Chooses reports whether the patterns match a namespace, even if it can never be kept.
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

// Unused lists the rules that none of the names matches.
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

// MatchDB reports whether anything in the database may be kept.
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

// MatchTargetDB reports whether the target's database may get anything.
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

// NamesTargetDB reports whether a rename, or an include for some databases only, names the target's
// database.
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

// Target returns the name of a source namespace on the target. Buckets move with their time series.
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

func (s *Set) Renames() bool { return s != nil && len(s.dbs)+len(s.colls) > 0 }

// Source is the inverse of Target: the first of Sources.
func (s *Set) Source(targetNS string) (string, bool) {
	all := s.Sources(targetNS)
	if len(all) == 0 {
		return "", false
	}
	return all[0], true
}

// Sources lists all kept source namespaces that would get this name on the target. With several
// rules for one target database, there can be more than one.
func (s *Set) Sources(targetNS string) []string {
	var out []string
	for _, ns := range s.sources(targetNS) {
		if s.Match(ns) && s.Target(ns) == targetNS && !slices.Contains(out, ns) {
			out = append(out, ns)
		}
	}
	return out
}

// Ambiguous reports more than one of Sources.
func (s *Set) Ambiguous(targetNS string) bool { return len(s.Sources(targetNS)) > 1 }

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

// String is canonical: equal rules have equal text.
func (s *Set) String() string {
	if s == nil || s.text == "" {
		return "everything"
	}
	return s.text
}

// Hash identifies the rules in a job's identity: 16 hexadecimal digits.
func (s *Set) Hash() string {
	sum := sha256.Sum256([]byte(s.String()))
	return hex.EncodeToString(sum[:8])
}

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
			renames = append(renames, Literal(from)+"="+Literal(to))
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

func (s *Set) Includes() bool { return s != nil && len(s.include) > 0 }

// ByCommand returns the rules of a job whose target also has documents of others: no collection can
// replace another one there.
func (s *Set) ByCommand() *Set {
	out := Set{}
	if s != nil {
		out = *s
	}
	out.byCommand, out.routes = true, &routes{}
	return &out
}

// Commands reports whether the server's steps for one user command count as that command: the
// target's content matters for some collection.
func (s *Set) Commands() bool {
	return s != nil && (s.byCommand || len(s.filters)+len(s.skips)+len(s.mappings)+len(s.softDeletes)+len(s.histories) > 0)
}

// JudgeOperations reports rules about what a user did to a document or collection, not about what it is now.
func (s *Set) JudgeOperations() bool {
	return s != nil && (s.byCommand || len(s.skips)+len(s.softDeletes)+len(s.histories) > 0)
}

// Others reports that the target's collections also have documents of others.
func (s *Set) Others() bool { return s != nil && s.byCommand }

// staged reports a collection that a server fills for a command. No rule names it; it is kept if the
// command may concern kept ones.
func (s *Set) staged(ns string) bool {
	if !s.Commands() {
		return false
	}
	c, _ := mongo.Staged(ns)
	return c != 0
}

func (s *Set) matchStaged(ns string) bool {
	switch c, of := mongo.Staged(ns); c {
	case mongo.CommandCapped:
		return s.Match(of)
	case mongo.CommandOut, mongo.CommandMove:
		db, _ := mongo.SplitNS(ns)
		return s.MatchDB(db)
	}
	return false
}

func (s *Set) targetStaged(ns string) string {
	db, coll := mongo.SplitNS(ns)
	if to, ok := s.dbs[db]; ok {
		return to + "." + coll
	}
	if s.MatchTargetDB(db) {
		return ns
	}
	for _, from := range slices.Sorted(maps.Keys(s.colls)) {
		if of, _ := mongo.SplitNS(from); of == db && s.Match(from) {
			to, _ := mongo.SplitNS(s.colls[from])
			return to + "." + coll
		}
	}
	return ns
}
