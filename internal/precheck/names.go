package precheck

import (
	"context"
	"fmt"
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

// unused judges rules that match none of the source's names.
func unused(rules []transform.Rule, names []string, allowed bool) (out List) {
	for _, r := range rules {
		level, hint := Warn, ""
		if best := meant(r.Text, names); best != "" {
			hint = "did you mean " + best + "?"
		}
		if (r.Kind == "include" || r.Kind == "filter" || r.Kind == "skip" || r.Kind == "fields" || r.Kind == "soft-delete" || r.Kind == "history") && !allowed {
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
