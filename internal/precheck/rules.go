package precheck

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/suggest"
	"github.com/millrace/millrace/internal/transform"
)

type rules struct{ *planner }

// names checks for rules that match nothing: they may be mistyped. A job that has begun goes on
// whatever was dropped since.
func (p rules) names(ctx context.Context) error {
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

// cases checks for databases of the target whose names differ in case only, which servers refuse.
func (p rules) cases(context.Context) error {
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

// caseClashes describes databases of the target that would differ in case only. have are its present ones.
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

// unused reports rules that match nothing: the first of them one by one, which no report has room for without a bound.
func unused(rules []transform.Rule, names []string, allowed bool) (out List) {
	const most = 50
	rest, worst := 0, Warn
	for _, r := range rules {
		level, hint := Warn, ""
		if slices.Contains([]string{"include", "filter", "skip", "fields", "soft-delete", "history"}, r.Kind) {
			level, hint = unmatched(allowed)
		}
		if len(out) == most {
			if rest++; level == Fail {
				worst = Fail
			}
			continue
		}
		out.Add(level, "names", fmt.Sprintf("--%s %s matches nothing on the source", r.Kind, r.Text),
			didYouMean(meant(r.Text, names), hint))
	}
	if rest > 0 {
		out.Add(worst, "names", fmt.Sprintf("%d more rules match nothing on the source", rest), "")
	}
	return out
}

func meant(text string, names []string) string {
	db, coll := mongo.SplitNS(text)
	if coll != "" && coll != "*" {
		return suggest.Name(text, names)
	}
	var dbs []string
	for _, ns := range names {
		name, _ := mongo.SplitNS(ns)
		dbs = append(dbs, name)
	}
	best := suggest.Name(db, dbs)
	if best != "" && coll != "" {
		best += ".*"
	}
	return best
}

// Sample is how many of some random documents a filter keeps.
type Sample struct {
	Docs int64 `json:"docs"`
	Kept int64 `json:"kept"`
}

const (
	sampleDocs = 1000
	// mostSampled bounds the collections that are sampled, in order.
	mostSampled = 20
)

// filters checks whether collections can be filtered, and operations skipped, by the rules, and how
// much a filter keeps.
func (p rules) filters(ctx context.Context) error {
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	tried, err := transform.Rehearse(p.Rules)
	if err != nil {
		return err
	}
	sampled := 0
	for i, c := range colls {
		if later, err := p.comesLater(c); err != nil {
			return err
		} else if later {
			continue
		}
		if err := errors.Join(schema.CheckSkip(c, p.Rules), schema.CheckFields(c, p.Rules, nil),
			schema.CheckHistory(c, p.Rules)); err != nil {
			p.add(Fail, "rules", mongo.HintOf(err), "%v", err)
			continue
		}
		if schema.OfVersions(c, p.Rules) {
			p.add(Warn, "rules", "", "view %s is left out: it reads a collection of which the target holds versions", c.NS)
		}
		if s, err := schema.ExpiryOf(c, p.Rules); err == nil && len(s) > 0 {
			p.ok("rules", "%s: documents that expire (%s) stay on the target, which expires none by itself", c.NS, s)
		}
		if c.Type == schema.TypeView {
			continue
		}
		keep, more := p.Rules.Route(c.NS).Filter, tried.Collection(c.NS)
		if keep != nil && !p.filterable(c, keep) || !more || p.copied() || sampled == mostSampled ||
			p.Mode == state.ModeStructure {
			continue
		}
		sampled++
		s, err := p.sample(ctx, c, keep, tried)
		if mongo.IsCode(err, mongo.CodeSampleFailed) { // by chance
			continue
		}
		if err != nil {
			return err
		}
		if keep != nil {
			p.plan.Collections[i].Sample = &s
			p.ok("filters", "%s: %s of %s sampled documents are kept", c.NS, humanize.Comma(s.Kept),
				humanize.Comma(s.Docs))
		}
	}
	p.plan.Rules = tried.Effects()
	for _, e := range p.plan.Rules {
		p.effect(e)
	}
	return nil
}

// comesLater reports a collection that the stored job lacks: its changes bring and check it.
func (p rules) comesLater(c schema.Collection) (bool, error) {
	if !p.copied() || p.seen.names == nil {
		return false, nil
	}
	names, err := p.seen.names()
	if err != nil {
		return false, err
	}
	one, known := names.Source(c.NS)
	other := len(one.UUID.Data) > 0 && len(c.UUID.Data) > 0 && !one.UUID.Equal(c.UUID)
	return !known || one.Gone || other, nil
}

func (p rules) effect(e transform.Effect) {
	if e.Failed > 0 {
		p.add(Warn, "fields",
			"set \"otherwise\" for such values, exclude these documents with --filter, or skip them with --on-conflict skip",
			"%s of %s sampled documents cannot be mapped by %s: %s", humanize.Comma(e.Failed), humanize.Comma(e.Docs),
			e.Rule, e.Why[0].Text)
	}
	if e.Marked > 0 {
		p.add(Warn, "soft-delete", "choose another field: documents that have it count as deleted by the source",
			"%s of %s sampled documents already have the field of %s", humanize.Comma(e.Marked), humanize.Comma(e.Docs),
			e.Rule)
	}
}

func (p rules) filterable(c schema.Collection, keep *query.Query) bool {
	if err := schema.CheckFilter(c, p.Rules); err != nil {
		p.add(Fail, "filters", mongo.HintOf(err), "%v", err)
		return false
	}
	// Servers before 5.0 evaluate $mod of decimals, NaN and large numbers differently.
	if keep.HasMod() && !p.Source.Info.Version.AtLeast(5, 0) {
		p.add(Fail, "filters", "use another condition than $mod",
			"%s: a source before 5.0 evaluates $mod differently", c.NS)
		return false
	}
	return true
}

func (p rules) sample(ctx context.Context, c schema.Collection, keep *query.Query,
	tried *transform.Rehearsal) (s Sample, err error) {
	db, coll := mongo.SplitNS(c.NS)
	cur, err := p.Source.Client.Database(db).Collection(coll).Aggregate(ctx,
		bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: sampleDocs}}}}})
	if err != nil {
		return s, fmt.Errorf("draw documents of %s: %w", c.NS, err)
	}
	defer func() { _ = cur.Close(ctx) }()
	for cur.Next(ctx) {
		if s.Docs++; keep != nil && keep.Match(cur.Current) {
			s.Kept++
		}
		if err := tried.Document(c.NS, cur.Current); err != nil {
			return s, err
		}
	}
	return s, mongo.Wrap(cur.Err(), "draw documents of %s", c.NS)
}
