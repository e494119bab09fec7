package reverse

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// inverter has the rules of a job with their renames, but for those of what the rules leave out.
type inverter struct {
	rules      transform.Config
	set        *transform.Set
	dbs, colls map[string]string // source to target
}

func newInverter(r transform.Config) (*inverter, error) {
	v := &inverter{rules: r, dbs: map[string]string{}, colls: map[string]string{}}
	var err error
	if v.set, err = compiled(r); err != nil {
		return nil, err
	}
	for _, text := range r.Rename {
		from, to, err := transform.SplitRename(text)
		switch {
		case err != nil:
			return nil, err
		case from == to:
		case strings.Contains(from, "."):
			if v.set.Match(from) {
				v.colls[from] = to
			}
		case v.set.MatchDB(from):
			v.dbs[from] = to
		}
	}
	for _, m := range []map[string]string{v.dbs, v.colls} {
		taken := map[string]string{}
		for _, from := range slices.Sorted(maps.Keys(m)) {
			if other, twice := taken[m[from]]; twice {
				return nil, fmt.Errorf("--rename: %s and %s both lead to %s: %w", other, from, m[from], errAmbiguous)
			}
			taken[m[from]] = from
		}
	}
	return v, nil
}

// pattern is a pattern of namespaces, taken apart.
type pattern struct{ text, db, coll string }

func read(text string) pattern {
	db, coll, dotted := strings.Cut(text, ".")
	if !dotted {
		coll = "*"
	}
	return pattern{db + "." + coll, db, coll}
}

// matches compares with a namespace, or with a database where it has no dot.
func (p pattern) matches(name string) bool {
	text := p.text
	if !strings.Contains(name, ".") {
		text, name = p.db+".*", name+".x"
	}
	s, err := transform.New(transform.Config{Include: []string{text}})
	return err == nil && s.Chooses(name)
}

// literal is the name that a glob without wildcards means.
func literal(glob string) (name string, ok bool) {
	var b strings.Builder
	escaped := false
	for _, r := range glob {
		switch {
		case escaped:
			escaped = false
			b.WriteRune(r)
		case r == '\\':
			escaped = true
		case r == '*' || r == '?':
			return "", false
		default:
			b.WriteRune(r)
		}
	}
	return b.String(), true
}

// name is the database, or the namespace, that a pattern without wildcards means.
func (p pattern) name() (db, ns string) {
	db, ok := literal(p.db)
	if !ok {
		return "", ""
	}
	if coll, ok := literal(p.coll); ok {
		ns = db + "." + coll
	}
	return db, ns
}

// moved are the patterns on the target of what a pattern matches under another name there.
func (v *inverter) moved(p pattern) (out []string) {
	for _, from := range slices.Sorted(maps.Keys(v.dbs)) {
		if p.matches(from) {
			out = append(out, transform.Literal(v.dbs[from])+"."+p.coll)
		}
	}
	for _, from := range slices.Sorted(maps.Keys(v.colls)) {
		if p.matches(from) {
			out = append(out, transform.Literal(v.colls[from]))
		}
	}
	return out
}

// patterns are those on the target of what a pattern matches on the source.
func (v *inverter) patterns(text string) []string {
	p := read(text)
	out := v.moved(p)
	db, ns := p.name()
	_, dbMoves := v.dbs[db]
	if _, moves := v.colls[ns]; !dbMoves && !moves {
		out = append(out, text)
	}
	return out
}

// names inverts the rules of names, for collections that exist and for later ones.
func (v *inverter) names(all []Name) (back transform.Config, err error) {
	for _, p := range v.rules.Include {
		back.Include = append(back.Include, v.patterns(p)...)
	}
	for _, m := range []map[string]string{v.dbs, v.colls} {
		for _, from := range slices.Sorted(maps.Keys(m)) {
			back.Rename = append(back.Rename, transform.Literal(m[from])+"="+transform.Literal(from))
		}
	}
	for _, p := range v.rules.Exclude {
		more, err := v.excluded(read(p))
		if err != nil {
			return back, err
		}
		back.Exclude = append(back.Exclude, more...)
	}
	if err := v.free(&back); err != nil {
		return back, err
	}
	back.Include, back.Exclude = distinct(back.Include), distinct(back.Exclude)
	return v.checked(back, all)
}

func distinct(list []string) []string {
	seen := map[string]bool{}
	return slices.DeleteFunc(list, func(s string) bool {
		was := seen[s]
		seen[s] = true
		return was
	})
}

// excluded inverts a pattern of what is left out.
func (v *inverter) excluded(p pattern) (out []string, err error) {
	db, ns := p.name()
	_, moves := v.dbs[db]
	for i, m := range []map[string]string{v.dbs, v.colls} {
		for from, to := range m {
			if !p.matches(to) || p.matches(from) {
				continue
			}
			if to != []string{db, ns}[i] {
				return nil, fmt.Errorf("--exclude %s: %s is on the target %s, which the pattern has too: %w", p.text, from, to,
					errAmbiguous)
			}
			moves = true
		}
	}
	for _, from := range slices.Sorted(maps.Keys(v.dbs)) {
		if p.matches(from) {
			out = append(out, transform.Literal(v.dbs[from])+"."+p.coll)
		}
	}
	if !moves {
		out = append(out, p.text)
	}
	return out, nil
}

// free leaves out names of the target that nothing of the source leads to, because what had them
// there has another name.
func (v *inverter) free(back *transform.Config) error {
	targets := slices.Collect(maps.Values(v.colls))
	dbTargets := slices.Collect(maps.Values(v.dbs))
	for _, from := range slices.Sorted(maps.Keys(v.dbs)) {
		s, err := compiled(*back)
		if err != nil {
			return err
		}
		if slices.Contains(dbTargets, from) || !s.MatchDB(from) {
			continue
		}
		for _, to := range targets {
			if db, _ := mongo.SplitNS(to); db == from {
				return fmt.Errorf("--rename: %s leads into the database %s, which is renamed: %w", to, from, errAmbiguous)
			}
		}
		back.Exclude = append(back.Exclude, transform.Literal(from)+".*")
	}
	for _, from := range slices.Sorted(maps.Keys(v.colls)) {
		s, err := compiled(*back)
		if err != nil {
			return err
		}
		db, coll := mongo.SplitNS(from)
		left := from // the name that it would have without its rule
		if to, moves := v.dbs[db]; moves {
			left = to + "." + coll
		}
		if !slices.Contains(targets, left) && s.Match(left) {
			back.Exclude = append(back.Exclude, transform.Literal(left))
		}
	}
	return nil
}

// checked is the inverse with a rename for each collection that its rules do not lead back.
func (v *inverter) checked(back transform.Config, all []Name) (transform.Config, error) {
	for from, to := range v.colls {
		all = append(all[:len(all):len(all)], Name{from, to})
	}
	s, err := compiled(back)
	if err != nil {
		return back, fmt.Errorf("invert the rules: %w", err)
	}
	leads := func(n Name) bool { return s.Match(n.Target) && s.Target(n.Target) == n.Source }
	for _, n := range all {
		if !leads(n) {
			back.Rename = append(back.Rename, transform.Literal(n.Target)+"="+transform.Literal(n.Source))
		}
	}
	if s, err = compiled(back); err != nil {
		return back, fmt.Errorf("invert the rules: %w", err)
	}
	for _, n := range all {
		if !leads(n) {
			return back, fmt.Errorf("nothing leads from %s on the target back to %s: %w", n.Target, n.Source, errAmbiguous)
		}
	}
	return back, nil
}
