package precheck

import (
	"context"
	"fmt"
	"maps"
	"slices"

	"github.com/dustin/go-humanize"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/users"
)

type content struct{ *planner }

func (p content) collections(ctx context.Context) error {
	colls, err := p.seen.collections()
	if err != nil {
		return err
	}
	var lacks, viewless []string
	for _, c := range colls {
		if c.Type == schema.TypeTimeSeries && len(c.UUID.Data) == 0 {
			viewless = append(viewless, c.NS)
		}
		lacks = append(lacks, schema.Unsupported(c, p.Target.Info.Version)...)
		p.plan.Collections = append(p.plan.Collections, Collection{
			Source: c.NS, Target: p.Rules.Target(c.NS), Type: c.Type, Docs: c.Count, Bytes: c.Bytes, Indexes: len(c.Indexes)})
		p.data += c.Bytes
	}
	if len(lacks) > 0 {
		p.add(Fail, "features", "use a newer target, or exclude these", "the target cannot hold %d things: %s", len(lacks),
			some(lacks, "; "))
	}
	if len(viewless) > 0 {
		p.add(Fail, "features", "exclude them, and copy them by other means",
			"%d time series of the source have no system.buckets collection, as from MongoDB 8.3 on: %s", len(viewless),
			some(viewless, ", "))
	}
	if err := schema.CheckRules(colls, p.Rules); err != nil {
		p.add(Fail, "names", "change --rename or exclude one of them", "%v", err)
	}
	p.ok("collections", "%d, %s", len(colls), humanize.Bytes(uint64(p.data)))
	return p.building(ctx, colls)
}

// building warns of index builds on the source, which the target gets after their end.
func (p content) building(ctx context.Context, colls []schema.Collection) error {
	if p.Shards != nil { // each shard builds by itself
		of, err := p.Shards.Building(ctx, p.Rules)
		if mongo.RefusedDirectly(err) {
			p.add(Fail, "shards", mongo.HintOf(err), "%s", mongo.Brief(err))
			return nil
		}
		if mongo.IsCode(err, mongo.CodeUnauthorized) { // the check of privileges names what is missing
			of, err = nil, nil
		}
		if err != nil {
			return err
		}
		colls = of
	}
	builds, err := schema.BuildingNames(colls, p.Rules)
	if err != nil || len(builds) == 0 {
		return err
	}
	hint := "the target gets them when they have ended; finalize waits for them, as long as --index-wait says"
	if p.Mode == state.ModeStructure || p.Source.Info.Kind == mongo.KindStandalone {
		hint = "the job waits for them before it begins, as long as --index-wait says"
	}
	p.add(Warn, "index builds", hint, "%d index builds of the source are under way and left out until they end: %s",
		len(builds), schema.NameAll(builds))
	return nil
}

func (p content) omissions(context.Context) error {
	const most = 100
	list, err := p.seen.omissions()
	for _, o := range list[:min(len(list), most)] {
		p.plan.LeftOut = append(p.plan.LeftOut, o.String())
	}
	if more := len(list) - most; more > 0 {
		p.plan.LeftOut = append(p.plan.LeftOut, fmt.Sprintf("and %d more", more))
	}
	if len(list) > 0 {
		p.add(Warn, "left out", "copy them by other means, or rename or exclude them",
			"%d things are not copied as they are: %s", len(list),
			some(p.plan.LeftOut, "; "))
	}
	return err
}

func (p content) existing(context.Context) error {
	if p.copied() || p.Mode == state.ModeIncremental {
		return nil
	}
	have, err := p.seen.existing()
	if err != nil {
		return err
	}
	if len(have) == 0 {
		p.ok(checkExisting, "none of them exists yet")
		return nil
	}
	names := slices.Sorted(maps.Keys(have))
	p.plan.Existing = names
	list := some(names, ", ")
	switch p.onExisting() {
	case state.ExistingDrop:
		p.add(Warn, checkExisting, "", "%d exist and will be DROPPED: %s", len(names), list)
	case state.ExistingMerge:
		p.add(Warn, checkExisting, "", "%d exist and will be merged into: %s", len(names), list)
	default:
		p.add(Fail, checkExisting, "drop them, or choose --on-existing merge or --on-existing drop", "%d exist already: %s",
			len(names), list)
	}
	return nil
}

// room compares the data with the free space of the target, if dbStats has it (3.6 and newer).
func (p content) room(context.Context) error {
	raw, err := p.seen.disk()
	if err != nil {
		return nil //nolint:nilerr // a server that does not say is no obstacle
	}
	total, ok1 := raw.Lookup("fsTotalSize").AsFloat64OK()
	used, ok2 := raw.Lookup("fsUsedSize").AsFloat64OK()
	if !ok1 || !ok2 || p.copied() {
		return nil
	}
	free := uint64(max(total-used, 0))
	if uint64(p.data) > free {
		p.add(Warn, "disk", "free space on the target, or rely on compression",
			"the data are %s uncompressed, the target has %s free",
			humanize.Bytes(uint64(p.data)), humanize.Bytes(free))
		return nil
	}
	p.ok("disk", "%s free for %s of data (uncompressed)", humanize.Bytes(free), humanize.Bytes(uint64(p.data)))
	return nil
}

type accounts struct{ *planner }

func (p accounts) users(ctx context.Context) error {
	if !p.Users || p.plan.Checks.Failed() { // perhaps for missing rights, which the check of privileges names
		return nil
	}
	var want, have users.Set
	source, target, done, err := p.Homes(ctx)
	if err == nil {
		defer done()
		want, have, err = users.Both(ctx, source, target, p.Rules)
	}
	switch {
	case mongo.Classify(err) == mongo.ClassRetry:
		return err
	case err != nil:
		p.add(Fail, "users", mongo.HintOf(err), "%v", err)
		return nil
	}
	own := users.Own{}
	for _, u := range p.job.Users {
		own[u.ID] = append(own[u.ID], u.Sum)
	}
	p.plan.Users = want.Names()
	c := users.Plan(want, have, own)
	put, drop := c.Counts()
	text := fmt.Sprintf("%d users and roles are written, %d removed, %d are there", put, drop,
		len(want)-put-len(c.Foreign))
	if put > 0 {
		text += ": " + c.Text()
	}
	p.ok("users", "%s", text)
	if len(c.Foreign) > 0 {
		var names []string
		for _, d := range c.Foreign {
			names = append(names, d.NS+" ("+d.What+")")
		}
		p.add(Warn, "users", "remove them on the target to get the source's",
			"the target keeps its own of the same names: %s", some(names, ", "))
	}
	return nil
}
