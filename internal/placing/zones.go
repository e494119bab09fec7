package placing

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
)

func sameZone(a, b schema.Zone) bool {
	return a.Tag == b.Tag && bytes.Equal(a.Min, b.Min) && bytes.Equal(a.Max, b.Max)
}

// SameZones reports that two collections have the same ranges in the same zones.
func SameZones(a, b []schema.Zone) bool { return slices.EqualFunc(a, b, sameZone) }

// ZonesText is the zones of a collection for people.
func ZonesText(zones []schema.Zone) string {
	var all []string
	for _, z := range zones {
		all = append(all, fmt.Sprintf("%s from %s to %s", z.Tag, z.Min, z.Max))
	}
	return cmp.Or(strings.Join(all, "; "), "none")
}

// ZoneRules say which shards of the target are in a zone of the source. The zero value has none.
type ZoneRules struct{ ruled[[]string] } // none for a zone that is to be left out

// ParseZones reads rules such as EU=shard0,shard1, and EU=none for a zone to leave out.
func ParseZones(texts []string) (ZoneRules, error) {
	r := ZoneRules{ruled[[]string]{map[string][]string{}}}
	for _, text := range texts {
		name, list, ok := strings.Cut(text, "=")
		if name = strings.TrimSpace(name); !ok || name == "" {
			return r, fmt.Errorf("%q is not zone=shard,shard", text)
		}
		if _, twice := r.by[name]; twice {
			return r, fmt.Errorf("names zone %s twice", name)
		}
		r.by[name] = nil
		if strings.TrimSpace(list) == "none" {
			continue
		}
		for shard := range strings.SplitSeq(list, ",") {
			if shard = strings.TrimSpace(shard); shard == "" {
				return r, fmt.Errorf("%q names a shard without a name", text)
			}
			if !slices.Contains(r.by[name], shard) {
				r.by[name] = append(r.by[name], shard)
			}
		}
	}
	return r, nil
}

// Out reports a zone that a rule leaves out.
func (r ZoneRules) Out(zone string) bool {
	shards, ok := r.by[zone]
	return ok && len(shards) == 0
}

// Join says which shards of the target belong to a zone.
type Join struct {
	Has    []string // these are in it already
	Add    []string // these are to be
	ByName bool     // Add are those with the names of the source's
}

// JoinOf finds the target's shards for a zone of the source: those in it and those of its rule; without a rule and
// members, those named like the source's. Of these it takes none in a zone which the source's shard is not in: that
// was decided on the target. Shards that are being removed do not count.
func JoinOf(zone string, rules ZoneRules, source, target []Shard) (j Join) {
	listed, ruled := rules.Of(zone)
	byName := map[string]Shard{}
	for _, s := range source {
		byName[s.Name] = s
	}
	var namesakes []string
	for _, s := range target {
		switch twin := byName[s.Name]; {
		case s.Draining:
		case slices.Contains(s.Zones, zone):
			j.Has = append(j.Has, s.Name)
		case slices.Contains(listed, s.Name):
			j.Add = append(j.Add, s.Name)
		case slices.Contains(twin.Zones, zone) && !slices.ContainsFunc(s.Zones,
			func(z string) bool { return !slices.Contains(twin.Zones, z) }):
			namesakes = append(namesakes, s.Name)
		}
	}
	if !ruled && len(j.Has) == 0 {
		j.Add, j.ByName = namesakes, len(namesakes) > 0
	}
	return j
}

// zoneNote remembers the shards chosen for a zone by name: when some are in it, the target does not show the others.
type zoneNote struct {
	ID     zoneNoteID `bson:"_id"`
	Shards []string   `bson:"shards"`
}

type zoneNoteID struct {
	Job  string `bson:"job"`
	Zone string `bson:"zone"`
}

// members returns the shards of a zone, none if the target has no shard for it, and adds them to the zone.
func (p *Placer) members(ctx context.Context, zone string) ([]string, error) {
	if err := lock(ctx, p.joining); err != nil {
		return nil, err
	}
	defer func() { <-p.joining }()
	if of, known := p.joined[zone]; known {
		return of, nil
	}
	target, err := Shards(ctx, p.c)
	if err != nil {
		return nil, err
	}
	source, err := Shards(ctx, p.o.Source.Cluster)
	if err != nil {
		return nil, err
	}
	j := JoinOf(zone, p.o.Source.Zones, source, target)
	if _, ruled := p.o.Source.Zones.Of(zone); !ruled {
		if err := p.chosen(ctx, zone, target, &j); err != nil {
			return nil, err
		}
	}
	for _, shard := range j.Add {
		p.step("zone.join")
		if err := p.run(ctx, bson.D{{Key: "addShardToZone", Value: shard}, {Key: "zone", Value: zone}}); err != nil {
			return nil, fmt.Errorf("add shard %s of the target to zone %s: %w", shard, zone, err)
		}
		p.o.Log.Info("added a shard of the target to a zone", "shard", shard, "zone", zone)
	}
	all := append(j.Has, j.Add...)
	slices.Sort(all)
	if len(all) > 0 {
		p.joined[zone] = all
	}
	return all, nil
}

// chosen notes a choice by names before it is made, or continues one that was noted.
func (p *Placer) chosen(ctx context.Context, zone string, target []Shard, j *Join) error {
	n := zoneNote{ID: zoneNoteID{p.o.Job, zone}, Shards: j.Add}
	if len(j.Add) > 0 {
		return p.saveAs(ctx, n.ID, n)
	}
	found, err := p.find(ctx, n.ID, &n)
	if err != nil || !found {
		return err
	}
	for _, s := range target {
		if !s.Draining && slices.Contains(n.Shards, s.Name) && !slices.Contains(s.Zones, zone) {
			j.Add = append(j.Add, s.Name)
		}
	}
	return nil
}

type zoned struct {
	schema.Zone
	of []string
}

// zones chooses the zones of a collection that will be made. Zones that the target has for its name stay.
func (p *Placer) zones(ctx context.Context, desired Desired, n *note) (all []zoned, err error) {
	have, err := schema.Zones(ctx, p.c, []string{n.ID.NS})
	if err != nil {
		return nil, err
	}
	if there := have[n.ID.NS]; len(there) > 0 {
		n.Foreign = true
		return p.foreign(ctx, there)
	}
	all, err = p.shardedZones(ctx, desired.Zones, n.ID.NS)
	for _, z := range all {
		n.Zones = append(n.Zones, noted(z.Zone))
	}
	return all, err
}

// shardedZones are the zones for which the target has shards. It warns of others, whose documents come anyway.
func (p *Placer) shardedZones(ctx context.Context, zones []schema.Zone, ns string) (all []zoned, err error) {
	of := map[string][]string{}
	for _, z := range zones {
		if _, known := of[z.Tag]; !known {
			if of[z.Tag], err = p.members(ctx, z.Tag); err != nil {
				return nil, err
			}
			if len(of[z.Tag]) == 0 {
				p.o.Log.Warn("a zone has no shard on the target, and is left out", "ns", ns, "zone", z.Tag, "hint", ZoneHint(z.Tag))
			}
		}
		if len(of[z.Tag]) > 0 {
			all = append(all, zoned{z, of[z.Tag]})
		}
	}
	return all, nil
}

// ZoneHint says what to do about a zone without shards.
func ZoneHint(tag string) string {
	return fmt.Sprintf("name shards of the target with --zone %s=shard,shard, or leave the zone out with --zone %s=none",
		tag, tag)
}

// foreign are zones of the target that have shards.
func (p *Placer) foreign(ctx context.Context, zones []schema.Zone) (all []zoned, err error) {
	shards, err := Shards(ctx, p.c)
	if err != nil {
		return nil, err
	}
	for _, z := range zones {
		var of []string
		for _, s := range shards {
			if !s.Draining && slices.Contains(s.Zones, z.Tag) {
				of = append(of, s.Name)
			}
		}
		if len(of) > 0 {
			all = append(all, zoned{z, of})
		}
	}
	return all, nil
}

// notedZone has bytes: names of fields may have dots.
type notedZone struct {
	Min []byte `bson:"min"`
	Max []byte `bson:"max"`
	Tag string `bson:"tag"`
}

func noted(z schema.Zone) notedZone { return notedZone{z.Min, z.Max, z.Tag} }

func (z notedZone) zone() schema.Zone { return schema.Zone{Min: z.Min, Max: z.Max, Tag: z.Tag} }

// setZones gives a collection the noted ranges and removes others that the job had set.
func (p *Placer) setZones(ctx context.Context, ns string, want, had []notedZone) error {
	all, err := schema.Zones(ctx, p.c, []string{ns})
	if err != nil {
		return err
	}
	have := all[ns]
	in := func(list []notedZone, z schema.Zone) bool {
		return slices.ContainsFunc(list, func(o notedZone) bool { return sameZone(o.zone(), z) })
	}
	for _, z := range have {
		if in(had, z) && !in(want, z) {
			if err := p.setZone(ctx, ns, z, nil); err != nil {
				return err
			}
		}
	}
	for _, n := range want {
		z := n.zone()
		if !slices.ContainsFunc(have, func(o schema.Zone) bool { return sameZone(o, z) }) {
			if err := p.setZone(ctx, ns, z, z.Tag); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *Placer) setZone(ctx context.Context, ns string, z schema.Zone, to any) error {
	p.step("zone.range")
	err := p.run(ctx, bson.D{{Key: "updateZoneKeyRange", Value: ns}, {Key: "min", Value: z.Min},
		{Key: "max", Value: z.Max}, {Key: "zone", Value: to}})
	return mongo.Wrap(mongo.WithHint(err,
		"see which zones the collection has on the target, and which shards are in zone "+z.Tag),
		"set zone %s of %s from %s to %s on the target", z.Tag, ns, z.Min, z.Max)
}

// Pair is a collection of the source and its name on the target.
type Pair struct{ NS, Target string }

// Rezoned is a collection whose zones are not as on the source.
type Rezoned struct {
	Pair
	Source, Target string // both for people
}

// Rezone gives the job's collections the source's zones, and returns those with which that is not possible.
// Collections with another shard key, or with zones that the target had before, keep theirs. It may be repeated.
func (p *Placer) Rezone(ctx context.Context, pairs []Pair) (left []Rezoned, err error) {
	all, err := p.rezonings(ctx, pairs)
	if err != nil {
		return nil, err
	}
	var targets []string
	for _, r := range all {
		targets = append(targets, r.ID.NS)
		err := p.rezone(ctx, r)
		if err != nil && (ctx.Err() != nil || mongo.Classify(err) == mongo.ClassRetry) {
			return nil, err
		}
		if err != nil {
			p.o.Log.Warn("the zones of a collection cannot be set as on the source", "ns", r.ID.NS, "error", err)
		}
	}
	have, err := schema.Zones(ctx, p.c, targets)
	for _, r := range all {
		if SameZones(r.want, have[r.ID.NS]) {
			continue
		}
		if r.Foreign {
			p.o.Log.Warn("a collection has zones on the target that are not the job's, and stay",
				"ns", r.ID.NS, "source", ZonesText(r.want), "target", ZonesText(have[r.ID.NS]))
			continue
		}
		left = append(left, Rezoned{r.Pair, ZonesText(r.want), ZonesText(have[r.ID.NS])})
	}
	return left, err
}

type rezoning struct {
	note
	Pair
	want []schema.Zone
}

// rezonings are the job's collections with the source's shard key.
func (p *Placer) rezonings(ctx context.Context, pairs []Pair) (all []rezoning, err error) {
	if p.o.Source == nil || !p.o.Source.sharded() {
		return nil, nil
	}
	notes, err := p.notes(ctx)
	if err != nil {
		return nil, err
	}
	sources := map[string]string{}
	for _, one := range pairs {
		sources[one.Target] = one.NS
	}
	var names []string
	for _, n := range notes {
		if ns := sources[n.ID.NS]; ns != "" {
			all, names = append(all, rezoning{note: n, Pair: Pair{ns, n.ID.NS}}), append(names, ns)
		}
	}
	entries, err := schema.Entries(ctx, p.o.Source.Cluster, names)
	if err != nil {
		return nil, err
	}
	zones, err := schema.Zones(ctx, p.o.Source.Cluster, names)
	for i := range all {
		all[i].want = p.o.Source.Kept(zones[all[i].Pair.NS])
	}
	return slices.DeleteFunc(all, func(r rezoning) bool { return !SameKey(entries[r.Pair.NS].Key, r.Key) }), err
}

func (p *Placer) rezone(ctx context.Context, r rezoning) error {
	n := r.note
	if n.Foreign || len(r.want) == 0 && len(n.Zones) == 0 {
		return nil
	}
	had := n.Zones
	want, err := p.shardedZones(ctx, r.want, n.ID.NS)
	if err != nil {
		return err
	}
	next := make([]notedZone, 0, len(want))
	for _, z := range want {
		next = append(next, noted(z.Zone))
	}
	n.Zones = append(slices.Clone(had), next...)
	if err := p.save(ctx, n); err != nil {
		return err
	}
	if err := p.setZones(ctx, n.ID.NS, next, had); err != nil {
		return err
	}
	n.Zones = next
	return p.save(ctx, n)
}
