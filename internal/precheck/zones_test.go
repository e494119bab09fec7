package precheck

import (
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// TestZoneNeeds: who may not set zones is told which right is missing.
func TestZoneNeeds(t *testing.T) {
	shards := []placing.Shard{{Name: "s0"}, {Name: "s1", Zones: []string{"US"}}}
	from := []placing.Shard{{Name: "s0", Zones: []string{"EU"}}}
	zones := func(tags ...string) map[string]placing.Desired {
		w := placing.Desired{}
		for _, tag := range tags {
			w.Zones = append(w.Zones, schema.Zone{Tag: tag})
		}
		return map[string]placing.Desired{"d.c": w}
	}
	for _, c := range []struct {
		have  string
		zones []string
		want  string
	}{
		{`{"db":"d","collection":"c"}`, nil, "the user lacks "},
		{`{"db":"d","collection":"c"}`, []string{"US"}, "the user lacks find, update, insert, remove on config.tags"},
		{`{"db":"d","collection":"c"}`, []string{"US", "EU"},
			"the user lacks find, update, insert, remove on config.tags; find, update on config.shards"},
		{`{"db":"config","collection":""}`, []string{"US", "EU"}, "the user lacks "},
		{`{"cluster":true}`, []string{"US", "EU"}, "the user lacks "},
	} {
		var p privilege
		text := `{"resource":` + c.have + `,"actions":["find","update","insert","remove","enableSharding"]}`
		if err := bson.UnmarshalExtJSON([]byte(text), false, &p); err != nil {
			t.Fatal(err)
		}
		now := &needs{have: grants{p}, seen: map[string]bool{}}
		access{&planner{Input: Input{Desired: &placing.Source{}}}}.zoneNeeds(now,
			sharding{desired: zones(c.zones...), from: from, shards: shards})
		if got := now.text(); got != c.want {
			t.Errorf("%s, zones %v: %s, want %s", c.have, c.zones, got, c.want)
		}
	}
}

// TestZones: which shards of the target are in the zones of collections, by rules, or by their names.
func TestZones(t *testing.T) {
	eu := schema.Zone{NS: "a.b", Tag: "EU", Min: doc(t, `{"k":0}`), Max: doc(t, `{"k":9}`)}
	us := schema.Zone{NS: "a.b", Tag: "US", Min: doc(t, `{"k":9}`), Max: doc(t, `{"k":20}`)}
	wanted := placing.Desired{Key: doc(t, `{"k":1}`), Zones: []schema.Zone{eu, us}}
	from := []placing.Shard{{Name: "s0", Zones: []string{"EU"}}, {Name: "x", Zones: []string{"US"}}}
	for _, c := range []struct {
		name   string
		rules  []string
		of     placing.Desired
		have   []schema.Zone
		change func(*planner)
		want   []string
	}{
		{"by name", []string{"US=s1"}, wanted, nil, nil,
			[]string{"ok zones: the target's shards are in these zones: EU has s0 (s0 is added for the name that the " +
				"source's shard has); US has s1 (s1 is added)"}},
		{"no shard", nil, wanted, nil, nil, []string{
			"fail zones: zone US of a.b has no shard on the target; on the source it has x", "ok zones: "}},
		{"no shard later", nil, wanted, nil, func(p *planner) { p.resumes(state.PhaseCopying) },
			[]string{"warn zones: zone US of a.b has no shard on the target", "ok zones: "}},
		{"two", []string{"EU=s0,s1", "US=none"}, placing.Desired{Key: wanted.Key, Zones: []schema.Zone{eu}}, nil, nil,
			[]string{"ok zones: the target's shards are in these zones: EU has s0, s1 (s0, s1 are added)"}},
		{"no such shard", []string{"EU=s3", "US=s1"}, wanted, nil, nil, []string{
			"fail zones: --zone EU=s3: the target has no such shard s3", "fail zones: zone EU of a.b", "ok zones: "}},
		{"removed shard", []string{"EU=s2", "US=s1"}, placing.Desired{}, nil, nil,
			[]string{"fail zones: --zone EU=s2: the target has no such shard s2, or it is being removed"}},
		{"no such zone", []string{"ASIA=s1"}, placing.Desired{}, nil, nil,
			[]string{"fail zones: --zone ASIA matches no zone of the source"}},
		{"to come", []string{"ASIA=s1"}, placing.Desired{}, nil, func(p *planner) { p.AllowMissing = true },
			[]string{"warn zones: --zone ASIA matches no zone of the source"}},
		{"another key", nil, placing.Desired{Unzoned: true}, nil, nil,
			[]string{"warn zones: a.b has zones on the source that are not copied: its shard key on the target is none"}},
		{"of the target", nil, wanted, []schema.Zone{eu}, func(p *planner) { p.targetHas("a.b") },
			[]string{"warn zones: the zones that the target has for a.b stay as they are: EU from "}},
		{"as on the target", nil, wanted, wanted.Zones, func(p *planner) { p.targetHas("a.b") }, nil},
		{"replica set", []string{"EU=s0"}, wanted, nil, func(p *planner) { p.Source.Info.Kind = mongo.KindReplicaSet },
			[]string{"fail zones: the source is not a sharded cluster and has no zones"}},
	} {
		zones, err := placing.ParseZones(c.rules)
		if err != nil {
			t.Fatal(err)
		}
		p := between(mongo.KindSharded, mongo.KindSharded)
		p.Desired = &placing.Source{Zones: zones}
		s := sharding{desired: map[string]placing.Desired{"a.b": c.of}, zones: map[string][]schema.Zone{"a.b": c.have},
			from: from, shards: []placing.Shard{{Name: "s0"}, {Name: "s1"}, {Name: "s2", Draining: true}}}
		if c.change != nil {
			c.change(p)
		}
		zoner{p}.zones([]schema.Collection{coll(t, "a.b", `{}`)}, s)
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
	}
}
