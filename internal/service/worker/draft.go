package worker

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/procstat"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/transform"
)

const (
	// Bounds of an answer and of server selection.
	draftTime     = 50 * time.Second
	reachTime     = 5 * time.Second
	draftsAtOnce  = 2
	maxListed     = 500
	maxMembers    = 100
	maxSample     = 20
	maxPlanChecks = 200
	checkBytes    = 2000
)

type drafted struct {
	*Worker
	name    string
	spec    job.Spec
	secrets secrets
}

// draft answers a question about a draft. It writes nothing.
func (w *Worker) draft(life context.Context, q *service.Question) (any, error) {
	select {
	case w.drafts <- struct{}{}:
		defer func() { <-w.drafts }()
	default:
		return nil, notNow(mongo.WithHint(fmt.Errorf("worker %s already checks %d drafts", w.Name, draftsAtOnce),
			"try again in a moment"))
	}
	ctx, cancel := context.WithTimeout(life, draftTime)
	defer cancel()
	d := &drafted{Worker: w, name: q.Job}
	s, err := w.read(q.Job, q.Draft.Settings, w.noting(d.secrets.add))
	if err != nil {
		return nil, d.hide(err)
	}
	d.spec = s.Spec
	body, err := d.answer(ctx, q)
	return body, d.hide(err)
}

func (d *drafted) answer(ctx context.Context, q *service.Question) (any, error) {
	switch q.What {
	case service.AskInspect:
		return d.inspect(ctx, q.Draft.Inspect)
	case service.AskPrecheck:
		return d.precheck(ctx)
	case service.AskSample:
		return d.sample(ctx, q.Draft.Sample)
	}
	return nil, fmt.Errorf("worker %s of version %s does not know %q", d.Name, d.Version, q.What)
}

type redacted struct {
	error
	text string
}

func (v redacted) Error() string { return v.text }

func (v redacted) Unwrap() error { return v.error }

func (d *drafted) hide(err error) error {
	if err == nil {
		return nil
	}
	return redacted{err, d.secrets.hide(mongo.Brief(err))}
}

func (d *drafted) inspect(ctx context.Context, ask service.InspectAsk) (*service.Inspection, error) {
	rules, err := transform.New(d.spec.Rules)
	if err != nil {
		return nil, err
	}
	out := &service.Inspection{Worker: d.Name, Databases: []service.InspectedDatabase{}, Unreadable: []string{}}
	var g errgroup.Group
	g.Go(func() error {
		c, side := d.side(ctx, d.spec.Source)
		out.Source = side
		if c == nil {
			return nil
		}
		defer c.Close()
		if ask.Limit <= 0 {
			return nil
		}
		if err := d.listed(ctx, c, rules, ask, out); err != nil {
			out.Trouble = service.Short(d.hide(err).Error(), textBytes)
		}
		return nil
	})
	g.Go(func() error {
		c, side := d.side(ctx, d.spec.Target)
		if out.Target = side; c != nil {
			c.Close()
		}
		return nil
	})
	_ = g.Wait() // none fails
	return out, context.Cause(ctx)
}

func (d *drafted) side(ctx context.Context, uri string) (*mongo.Cluster, service.Side) {
	c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: lettersApp, ServerSelectionTimeout: reachTime})
	if err != nil {
		return nil, service.Side{Members: []string{}, Error: service.Short(d.hide(err).Error(), textBytes),
			Hint: service.Short(mongo.HintOf(err), textBytes)}
	}
	side := service.Side{Kind: string(c.Info.Kind), Version: c.Info.Version.String(), FCV: c.Info.FCV, Set: c.Info.SetName,
		Members: slices.Clone(c.Info.Hosts)}
	if c.Info.Kind == mongo.KindSharded {
		side.Members = shardNames(ctx, c)
	}
	if side.Members == nil {
		side.Members = []string{}
	}
	side.Members = side.Members[:min(len(side.Members), maxMembers)]
	return c, side
}

// shardNames returns none if the user may not list shards.
func shardNames(ctx context.Context, c *mongo.Cluster) (names []string) {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "listShards", Value: 1}})
	var reply struct {
		Shards []struct {
			ID string `bson:"_id"`
		}
	}
	if err != nil || bson.Unmarshal(raw, &reply) != nil {
		return nil
	}
	for _, s := range reply.Shards {
		names = append(names, s.ID)
	}
	return names
}

func (d *drafted) listed(ctx context.Context, c *mongo.Cluster, rules *transform.Set, ask service.InspectAsk,
	out *service.Inspection) error {
	page, err := schema.ListPage(ctx, c,
		schema.Range{After: ask.After, Search: ask.Search, Limit: min(ask.Limit, maxListed)})
	if err != nil {
		return err
	}
	if out.Unreadable = append(out.Unreadable, page.Unreadable...); page.NoKeys {
		out.Trouble = "which collections are sharded cannot be read: grant the role clusterMonitor"
	}
	room, last := answerBytes, ""
	for _, one := range page.Collections {
		entry := service.InspectedCollection{NS: one.NS, Kind: string(one.Type), Capped: one.Capped, Documents: one.Docs,
			Bytes: one.Bytes, ShardKey: service.Short(one.ShardKey, textBytes)}
		if r := rules.Route(one.NS); r.Kept {
			entry.Kept, entry.Target = true, r.Target
		}
		if last != "" && !fits(&room, entry) {
			page.More = true
			break
		}
		db, _ := mongo.SplitNS(one.NS)
		if n := len(out.Databases); n == 0 || out.Databases[n-1].Name != db {
			out.Databases = append(out.Databases, service.InspectedDatabase{Name: db})
		}
		to := &out.Databases[len(out.Databases)-1]
		to.Collections = append(to.Collections, entry)
		last = one.NS
	}
	if page.More {
		out.Next = last
	}
	return nil
}

func (d *drafted) precheck(ctx context.Context) (*service.DraftPlan, error) {
	spec := d.spec
	spec.Deps = d.Deps
	spec.Log = nil
	spec.Usage = func() procstat.Usage { return procstat.Usage{} }
	spec.Connect = func(ctx context.Context, uri string, o mongo.Options) (*mongo.Cluster, error) {
		o.AppName, o.ServerSelectionTimeout = lettersApp, reachTime
		return mongo.Connect(ctx, uri, o)
	}
	spec.SpoolDir, spec.SpoolBytes = d.SpoolDir, min(spec.SpoolBytes, d.SpoolBytes)
	j, err := job.Open(ctx, spec)
	if err != nil {
		return nil, err
	}
	defer j.Close()
	plan, err := j.Plan(ctx)
	if err != nil {
		return nil, fmt.Errorf("precheck: %w", err)
	}
	return d.summary(plan), nil
}

func (d *drafted) summary(plan *job.Plan) *service.DraftPlan {
	out := &service.DraftPlan{Worker: d.Name, Ready: !plan.Checks.Failed(), Resumes: plan.Resumes,
		Finalized: plan.Finalized != nil, Collections: len(plan.Collections), Checks: []service.DraftCheck{},
		ExistingTotal: len(plan.Existing), Existing: plan.Existing[:min(len(plan.Existing), maxListed)]}
	for _, c := range plan.Collections {
		out.Documents, out.Bytes = out.Documents+c.Docs, out.Bytes+c.Bytes
	}
	checks := plan.Checks
	slices.SortStableFunc(checks, func(a, b precheck.Check) int { return cmp.Compare(rank(a.Level), rank(b.Level)) })
	for _, c := range checks[:min(len(checks), maxPlanChecks)] {
		skips := c.Skips()
		if skips == nil {
			skips = []string{}
		}
		out.Checks = append(out.Checks, service.DraftCheck{Name: service.Short(c.Name, checkBytes), Level: string(c.Level),
			Message: service.Short(c.Message, checkBytes), Hint: service.Short(c.Hint, checkBytes), Skips: skips})
	}
	return out
}

func rank(l precheck.Level) int {
	return slices.Index([]precheck.Level{precheck.Fail, precheck.Warn, precheck.OK}, l)
}

func (d *drafted) sample(ctx context.Context, ask service.SampleAsk) (*service.DraftSample, error) {
	rules, err := transform.New(d.spec.Rules)
	if err != nil {
		return nil, err
	}
	rp, err := mongo.ParseReadPreference(d.spec.ReadPreference, d.spec.ReadTags)
	if err != nil {
		return nil, err
	}
	c, err := mongo.Connect(ctx, d.spec.Source,
		mongo.Options{AppName: lettersApp, ReadPreference: rp, ServerSelectionTimeout: reachTime})
	if err != nil {
		return nil, fmt.Errorf("source: %w", err)
	}
	defer c.Close()
	db, coll := mongo.SplitNS(ask.NS)
	pipeline := bson.A{bson.D{{Key: "$sample", Value: bson.D{{Key: "size", Value: min(max(ask.Docs, 1), maxSample)}}}}}
	cur, err := c.Client.Database(db).Collection(coll).Aggregate(ctx, pipeline, options.Aggregate().SetBatchSize(1))
	if err != nil {
		return nil, fmt.Errorf("draw documents of %s: %w", ask.NS, err)
	}
	defer func() { _ = cur.Close(ctx) }()
	out := &service.DraftSample{Worker: d.Name, NS: ask.NS, Documents: []service.SampleDocument{}}
	if r := rules.Route(ask.NS); r.Kept {
		out.Target = r.Target
	}
	room := answerBytes
	for cur.Next(ctx) {
		one := tried(rules, ask.NS, cur.Current)
		if len(out.Documents) > 0 && !fits(&room, one) {
			out.Cut = true
			break
		}
		out.Documents = append(out.Documents, one)
	}
	return out, mongo.Wrap(cur.Err(), "draw documents of %s", ask.NS)
}

func tried(rules *transform.Set, ns string, doc bson.Raw) (one service.SampleDocument) {
	after, err := rules.Route(ns).Try(doc)
	one.Changed = !bytes.Equal(doc, after)
	one.Before, one.After = sampleJSON(doc, false), sampleJSON(after, false)
	if one.Changed && bytes.Equal(one.Before, one.After) { // the types differ
		one.Before, one.After = sampleJSON(doc, true), sampleJSON(after, true)
	}
	if err != nil {
		one.Changed, one.After, one.Error = false, sampleJSON(nil, false), service.Short(err.Error(), textBytes)
	}
	return one
}

const sampleBytes = 50 << 10

func sampleJSON(doc bson.Raw, canonical bool) json.RawMessage {
	return documentJSON(doc, canonical, sampleBytes, ", which is not shown")
}
