package precheck

import (
	"maps"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/suggest"
)

// zoner checks which shards of the target are in the zones of collections.
type zoner struct{ *planner }

// zones checks which shards of the target are to be in the zones of collections that the
// job makes.
func (p zoner) zones(colls []schema.Collection, s sharding) {
	if p.Source.Info.Kind != mongo.KindSharded {
		if len(p.Wishes.Zones.Names()) > 0 {
			p.add(Fail, "zones", "leave --zone out", "the source is no sharded cluster, so that it has no zones")
		}
		return
	}
	p.zoneShards(s)
	used := map[string][]string{} // collections, by zone
	for _, c := range colls {
		for _, tag := range p.zonesFor(c, s) {
			used[tag] = append(used[tag], c.NS)
		}
	}
	var texts []string
	for _, tag := range slices.Sorted(maps.Keys(used)) {
		if text := p.zone(tag, used[tag], s); text != "" {
			texts = append(texts, text)
		}
	}
	p.zoneRules(colls, s)
	if len(texts) > 0 {
		p.ok("zones", "the target's shards are in these zones: %s", strings.Join(texts, "; "))
	}
}

// zoneShards looks for shards of rules that the target does not have.
func (p zoner) zoneShards(s sharding) {
	var names []string
	for _, one := range s.shards {
		if !one.Draining {
			names = append(names, one.Name)
		}
	}
	for _, zone := range p.Wishes.Zones.Names() {
		listed, _ := p.Wishes.Zones.Of(zone)
		for _, shard := range listed {
			if slices.Contains(names, shard) {
				continue
			}
			hint := didYouMean(suggest.Name(shard, names), "the target has "+strings.Join(names, ", "))
			p.add(Fail, "zones", hint, "--zone %s=%s: the target has no such shard %s, or it is being removed", zone,
				strings.Join(listed, ","), shard)
		}
	}
}

// zonesFor are the names of the zones that the job gives a collection.
func (p zoner) zonesFor(c schema.Collection, s sharding) (tags []string) {
	w, target := s.wishes[c.NS], p.Rules.Target(c.NS)
	if w.Unzoned {
		p.add(Warn, "zones", "make zones for it on the target, with its key",
			"%s has zones on the source, which do not come along: its shard key on the target is %s", c.NS,
			placing.KeyText(w.Key))
	}
	drops := p.onExisting() == state.ExistingDrop
	have := s.zones[target]
	if _, sharded := s.have[target]; sharded && drops {
		have = nil // they are dropped with it
	}
	if p.copied() || len(have) == 0 && (drops || !p.exists(target)) {
		return tagsOf(w.Zones)
	}
	if w.Key != nil && !placing.SameZones(w.Zones, have) {
		p.add(Warn, "zones", "set them there with updateZoneKeyRange",
			"the zones that the target has for %s stay as they are: %s, not %s", target, placing.ZonesText(have),
			placing.ZonesText(w.Zones))
	}
	return nil
}

// tagsOf are the names of zones.
func tagsOf(zones []placing.Zone) (tags []string) {
	for _, z := range zones {
		if !slices.Contains(tags, z.Tag) {
			tags = append(tags, z.Tag)
		}
	}
	return tags
}

// zone checks one zone, and says which shards are in it.
func (p zoner) zone(tag string, colls []string, s sharding) string {
	j := placing.JoinOf(tag, p.Wishes.Zones, s.from, s.shards)
	if len(j.Has)+len(j.Add) == 0 {
		level := Fail
		if p.copied() { // it is told when the job is finalized
			level = Warn
		}
		var names []string
		for _, one := range s.from {
			if slices.Contains(one.Zones, tag) {
				names = append(names, one.Name)
			}
		}
		p.add(level, "zones", placing.ZoneHint(tag), "zone %s of %s has no shard on the target; on the source it has %s", tag,
			some(colls, ", "), strings.Join(names, ", "))
		return ""
	}
	text := tag + " has " + strings.Join(append(slices.Clone(j.Has), j.Add...), ", ")
	if len(j.Add) > 0 {
		why := " is added"
		if len(j.Add) > 1 {
			why = " are added"
		}
		if j.ByName {
			why += " for the name that the source's shard has"
		}
		text += " (" + strings.Join(j.Add, ", ") + why + ")"
	}
	return text
}

// zoneRules looks for rules that match nothing.
func (p zoner) zoneRules(colls []schema.Collection, s sharding) {
	known := map[string]bool{}
	for _, one := range s.from {
		for _, tag := range one.Zones {
			known[tag] = true
		}
	}
	for _, c := range colls {
		for _, z := range s.wishes[c.NS].Zones {
			known[z.Tag] = true
		}
	}
	for _, tag := range p.Wishes.Zones.Names() {
		if known[tag] {
			continue
		}
		level, hint := unmatched(p.AllowMissing || p.copied())
		hint = didYouMean(suggest.Name(tag, slices.Sorted(maps.Keys(known))), hint)
		p.add(level, "zones", hint, "--zone %s matches no zone of the source", tag)
	}
}
