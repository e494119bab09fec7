package precheck

import (
	"context"
	"errors"
	"fmt"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/query"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// Sample is how many of some documents, drawn at random, a filter keeps.
type Sample struct {
	Docs int64 `json:"docs"`
	Kept int64 `json:"kept"`
}

const (
	sampleDocs = 1000
	// mostSampled bounds the collections of which documents are drawn, those that are
	// listed first.
	mostSampled = 20
)

// filters looks whether collections can be filtered, and operations be skipped, as the
// rules want it, and how much a filter leaves of them.
func (p *planner) filters(ctx context.Context) error {
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
			p.ok("filters", "%s: %s of %s documents drawn at random are kept", c.NS, humanize.Comma(s.Kept),
				humanize.Comma(s.Docs))
		}
	}
	p.plan.Rules = tried.Effects()
	for _, e := range p.plan.Rules {
		p.effect(e)
	}
	return nil
}

// effect notes what a rule does to documents that it is not meant for.
func (p *planner) effect(e transform.Effect) {
	if e.Failed > 0 {
		p.add(Warn, "fields",
			"say what becomes of such values (\"otherwise\"), have --filter leave these documents out, or go on without them "+
				"by --on-conflict skip",
			"%s of %s documents drawn at random cannot be mapped by %s: %s", humanize.Comma(e.Failed), humanize.Comma(e.Docs),
			e.Rule, e.Why[0].Text)
	}
	if e.Marked > 0 {
		p.add(Warn, "soft-delete", "choose another field: documents that have it count as deleted by the source",
			"%s of %s documents drawn at random have the field of %s already", humanize.Comma(e.Marked), humanize.Comma(e.Docs),
			e.Rule)
	}
}

// filterable notes why a collection cannot be filtered, if it cannot.
func (p *planner) filterable(c schema.Collection, keep *query.Query) bool {
	if err := schema.CheckFilter(c, p.Rules); err != nil {
		p.add(Fail, "filters", mongo.HintOf(err), "%v", err)
		return false
	}
	// Servers before 5.0 find others by a $mod of decimals, NaN and large numbers.
	if keep.HasMod() && !p.Source.Info.Version.AtLeast(5, 0) {
		p.add(Fail, "filters", "use another condition than $mod",
			"%s: by $mod a source before 5.0 finds other documents than millrace", c.NS)
		return false
	}
	return true
}

func (p *planner) sample(ctx context.Context, c schema.Collection, keep *query.Query,
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
