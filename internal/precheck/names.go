package precheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/near"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

// names looks for rules that match nothing, for they may be mistyped. A job that
// has begun goes on whatever was dropped since.
func (p *planner) names(ctx context.Context) error {
	if p.copied() {
		return nil
	}
	var kept []string
	for _, c := range p.plan.Collections {
		kept = append(kept, c.Source)
	}
	if len(p.Rules.Unused(kept)) == 0 {
		return nil
	}
	all, err := schema.AllNames(ctx, p.Source)
	if err != nil {
		return err
	}
	p.plan.Checks = append(p.plan.Checks, unused(p.Rules.Unused(all), all, p.AllowMissing)...)
	return nil
}

// cases compares the names of databases that the job makes with each other and with the
// target's: a server has no two that differ in case only.
func (p *planner) cases(context.Context) error {
	have, err := p.seen.databases()
	if err != nil || p.copied() {
		return err
	}
	for _, clash := range caseClashes(p.plan.Collections, have) {
		p.add(Fail, "names", "give one of them another name with --rename, or drop the database of the target if it is "+
			"not needed", "%s", clash)
	}
	return nil
}

// caseClashes says which databases of the target would differ in case only. have are
// those that it has.
func caseClashes(colls []Collection, have []string) (out []string) {
	by := map[string]string{}
	for _, db := range have {
		by[strings.ToLower(db)] = db
	}
	reported := map[string]bool{}
	for _, c := range colls {
		db, _ := mongo.SplitNS(c.Target)
		other, there := by[strings.ToLower(db)]
		switch {
		case !there:
			by[strings.ToLower(db)] = db
		case other == db || reported[db]:
		case slices.Contains(have, other):
			reported[db] = true
			out = append(out, fmt.Sprintf("the target has the database %s, and %s is to come: their names differ in case only",
				other, db))
		default:
			reported[db] = true
			out = append(out, fmt.Sprintf("the rules lead to the databases %s and %s of the target, whose names differ in "+
				"case only", other, db))
		}
	}
	return out
}

// unused judges rules that match none of the source's names.
func unused(rules []transform.Rule, names []string, allowed bool) (out List) {
	for _, r := range rules {
		level, hint := Warn, ""
		if best := meant(r.Text, names); best != "" {
			hint = "did you mean " + best + "?"
		}
		if (r.Kind == "include" || r.Kind == "filter" || r.Kind == "skip" || r.Kind == "fields" || r.Kind == "soft-delete" ||
			r.Kind == "history") && !allowed {
			level, hint = Fail, strings.TrimPrefix(hint+" --allow-missing accepts what is yet to come", " ")
		}
		out.Add(level, "names", fmt.Sprintf("--%s %s matches nothing on the source", r.Kind, r.Text), hint)
	}
	return out
}

// meant is what a mistyped pattern or name most likely means: a database where it
// is of a whole one.
func meant(text string, names []string) string {
	db, coll := mongo.SplitNS(text)
	if coll != "" && coll != "*" {
		return near.Name(text, names)
	}
	var dbs []string
	for _, ns := range names {
		name, _ := mongo.SplitNS(ns)
		dbs = append(dbs, name)
	}
	best := near.Name(db, dbs)
	if best != "" && coll != "" {
		best += ".*"
	}
	return best
}
