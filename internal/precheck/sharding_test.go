package precheck

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// sharded is a planner whose target is a sharded cluster of two shards, and whose job has rules for
// shard keys.
func sharded(t *testing.T, s sharding, texts ...string) *planner {
	t.Helper()
	p := between(mongo.KindReplicaSet, mongo.KindSharded)
	keys, err := placing.ParseRules(texts)
	if err != nil {
		t.Fatal(err)
	}
	p.Desired = &placing.Source{Rules: keys}
	s.shards = []placing.Shard{{Name: "s0", Hosts: []string{"h0:1"}}, {Name: "s1", Hosts: []string{"h1:1"}}}
	p.seen.sharding = func() (sharding, error) { return s, nil }
	return p
}

func key(t *testing.T, text string) placing.Desired {
	t.Helper()
	return placing.Desired{Key: doc(t, text)}
}

func entry(t *testing.T, text string) schema.Entry {
	t.Helper()
	return schema.Entry{Key: doc(t, text)}
}

// TestSharding: by which keys collections are to be sharded, and which cannot be.
func TestSharding(t *testing.T) {
	unique := coll(t, "a.b", `{}`, `{"key":{"u":1},"name":"u_1","unique":true}`)
	byK := map[string]placing.Desired{"a.b": key(t, `{"k":1}`)}
	const all = "ok sharding: 1 collections are to be sharded over 2 shards, the others are not: a.b by k:1."
	const none = "ok sharding: no collection is to be sharded on the target (2 shards)"
	for _, c := range []struct {
		name   string
		coll   schema.Collection
		s      sharding
		change func(*planner)
		want   []string
	}{
		{"none", coll(t, "a.b", `{}`), sharding{}, nil, []string{none}},
		{"one", coll(t, "a.b", `{}`), sharding{desired: byK}, nil, []string{all}},
		{"incremental", coll(t, "a.b", `{}`), sharding{desired: byK},
			func(p *planner) { p.Mode = state.ModeIncremental }, nil},
		{"not as the source", coll(t, "a.b", `{}`), sharding{desired: map[string]placing.Desired{"a.b": {Why: "it is a series"}}},
			nil, []string{"warn sharding: a.b is sharded on the source, and will not be on the target: it is a series", none}},
		{"unique index", unique, sharding{desired: byK}, nil,
			[]string{"fail sharding: a.b cannot have its unique indexes when it is sharded by k:1, with which", all}},
		{"collation", coll(t, "a.b", `{"collation":{"locale":"fr"}}`),
			sharding{desired: map[string]placing.Desired{"a.b": key(t, `{"_id":1}`)}}, nil,
			[]string{"fail sharding: a.b has a collation, with which servers do not shard by _id", "ok sharding: 1 "}},
		{"exists as wanted", unique, sharding{desired: byK, have: map[string]schema.Entry{"a.b": entry(t, `{"k":1}`)}},
			func(p *planner) { p.targetHas("a.b") },
			[]string{"fail sharding: a.b cannot have its unique indexes when it is sharded by k:1", none}},
		{"exists by another key", unique, sharding{desired: byK, have: map[string]schema.Entry{"a.b": entry(t, `{"u":1}`)}},
			func(p *planner) { p.targetHas("a.b") },
			[]string{"warn sharding: a.b exists on the target and stays as it is: its shard key is u:1, not k:1", none}},
		{"exists unsharded", unique, sharding{desired: byK}, func(p *planner) { p.targetHas("a.b") },
			[]string{"warn sharding: a.b exists on the target and stays as it is: its shard key is none, not k:1", none}},
		{"is dropped", coll(t, "a.b", `{}`), sharding{desired: byK}, func(p *planner) {
			p.targetHas("a.b")
			p.OnExisting = state.ExistingDrop
		}, []string{all}},
		{"was being made", coll(t, "a.b", `{}`), sharding{desired: byK}, func(p *planner) {
			p.targetHas("a.b")
			p.resumes(state.PhaseCreating)
		}, []string{all}},
		{"silent router", coll(t, "a.b", `{}`), sharding{silent: []string{"r1:1", "r2:1"}}, nil,
			[]string{"warn target: these routers do not answer: r1:1, r2:1", none}},
		{"own shard", coll(t, "a.b", `{}`), sharding{}, func(p *planner) { p.Source.Info.Hosts = []string{"h1:1"} },
			[]string{"fail identity: the source is a shard of the target, s1", none}},
		{"mapped key", coll(t, "a.b", `{}`), sharding{desired: byK},
			func(p *planner) { p.with(t, transform.Config{Fields: []string{`a.b={"drop":["k"]}`}}) },
			[]string{"fail rules: the fields of a.b cannot be mapped: a rule is about \"k\", which is of the shard key", all}},
		{"unread", unique, sharding{desired: byK}, func(p *planner) { p.unread = true }, nil},
	} {
		p := sharded(t, c.s)
		p.has(c.coll)
		if c.change != nil {
			c.change(p)
		}
		if err := (sharder{p}).sharding(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
	}
}

// TestShardRules: rules for shard keys need a sharded target, and a collection that can be sharded.
func TestShardRules(t *testing.T) {
	p := sharded(t, sharding{}, "a.capped=k:1", "a.view=k:1", "a.series=k:1", "a.b=k:1", "a.plain=none")
	p.has(coll(t, "a.capped", `{"capped":true,"size":1}`), coll(t, "a.b", `{}`), coll(t, "a.plain", `{"capped":true}`),
		schema.Collection{NS: "a.view", Type: schema.TypeView},
		schema.Collection{NS: "a.series", Type: schema.TypeTimeSeries})
	if err := (sharder{p}).ruled(t.Context(), p.Desired.Rules.Names()); err != nil {
		t.Fatal(err)
	}
	expect(t, p.lines(), "fail sharding: --shard a.capped=k:1: a.capped is capped and cannot be sharded",
		"fail sharding: --shard a.series=k:1: a.series is a time-series collection",
		"fail sharding: --shard a.view=k:1: a.view is a view and cannot be sharded")

	p = sharded(t, sharding{}, "a.b=k:1")
	p.Target.Info.Kind = mongo.KindReplicaSet
	p.Desired.Zones, _ = placing.ParseZones([]string{"EU=s0"})
	if err := (sharder{p}).sharding(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, p.lines(), "fail zones: the target is not a sharded cluster",
		"fail sharding: the target is not a sharded cluster")

	p = sharded(t, sharding{}, "a.gone=k:1") // of a job that has begun, nobody looks for it
	p.resumes(state.PhaseCopying)
	if err := (sharder{p}).ruled(t.Context(), p.Desired.Rules.Names()); err != nil || len(p.plan.Checks) > 0 {
		t.Errorf("%v, %v", p.lines(), err)
	}
}

// TestUnmatchedShard: a rule for the shard key of nothing may be mistyped.
func TestUnmatchedShard(t *testing.T) {
	names := []string{"shop.orders", "shop.left"}
	for _, c := range []struct {
		ns      string
		allowed bool
		want    Check
	}{
		{"shop.left", false, Check{Name: "sharding", Level: Warn,
			Message: "--shard shop.left names a collection that the other rules leave out"}},
		{"shop.ordres", false, Check{Name: "sharding", Level: Fail,
			Message: "--shard shop.ordres matches nothing on the source",
			Hint:    "did you mean shop.orders? --allow-missing accepts what is yet to come"}},
		{"crm.people", false, Check{Name: "sharding", Level: Fail,
			Message: "--shard crm.people matches nothing on the source",
			Hint:    "--allow-missing accepts what is yet to come"}},
		{"shop.ordres", true, Check{Name: "sharding", Level: Warn,
			Message: "--shard shop.ordres matches nothing on the source",
			Hint:    "did you mean shop.orders?"}},
	} {
		if got := unmatchedShard(c.ns, names, c.allowed); got != c.want {
			t.Errorf("%+v, want %+v", got, c.want)
		}
	}
}

// TestKeepsUnsharded: a rule that keeps a collection unsharded does not change one that is sharded.
func TestKeepsUnsharded(t *testing.T) {
	for rule, want := range map[string][]string{
		"a.b=none": {"warn sharding: a.b exists on the target and stays as it is: its shard key is k:1, not none"},
		"":         nil,
	} {
		s := sharding{have: map[string]schema.Entry{"a.b": entry(t, `{"k":1}`)}}
		var texts []string
		if rule != "" {
			texts = append(texts, rule)
		}
		p := sharded(t, s, texts...)
		if text := (sharder{p}).shard(coll(t, "a.b", `{}`), s); text != "" {
			t.Errorf("%q", text)
		}
		expect(t, p.lines(), want...)
	}
}
