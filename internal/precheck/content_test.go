package precheck

import (
	"fmt"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
)

// TestCollections: a plan lists what is copied, and names what the target cannot have.
func TestCollections(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t,
		transform.Config{Rename: []string{"shop.a=shop.c", "shop.b=shop.c"}})
	p.Target.Info.Version = mongo.Version{Major: 5}
	a := coll(t, "shop.a", `{"clusteredIndex":{"key":{"_id":1},"unique":true}}`, `{"key":{"x":1},"name":"x_1"}`,
		`{"key":{"y":1},"name":"y_1","prepareUnique":true}`)
	a.Count, a.Bytes = 3, 5000
	b := coll(t, "shop.b", `{}`)
	b.Bytes = 1000
	b.Building = []stream.Index{{Name: "z_1", Spec: doc(t, `{"key":{"z":1},"name":"z_1"}`)}}
	p.has(a, b)
	if err := (content{p}).collections(t.Context()); err != nil {
		t.Fatal(err)
	}
	expect(t, p.lines(), "fail features: the target cannot hold 2 things: shop.a: a clustered collection needs a target",
		"fail names: ", "ok collections: 2, 6.0 kB", "warn index builds: 1 index builds of the source are under way")
	want := []Collection{
		{Source: "shop.a", Target: "shop.c", Type: schema.TypeCollection, Docs: 3, Bytes: 5000, Indexes: 2},
		{Source: "shop.b", Target: "shop.c", Type: schema.TypeCollection, Bytes: 1000},
	}
	if got := p.plan.Collections; fmt.Sprint(got) != fmt.Sprint(want) || p.data != 6000 {
		t.Errorf("%+v, %d bytes", got, p.data)
	}
}

// TestBuildHint: a job that follows gets indexes when their builds end, one that only copies waits first.
func TestBuildHint(t *testing.T) {
	hints := map[string]bool{}
	for _, mode := range []state.Mode{state.ModeAll, state.ModeStructure} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.Mode = mode
		c := coll(t, "a.b", `{}`)
		c.Building = []stream.Index{{Name: "z", Spec: doc(t, `{"key":{"z":1},"name":"z"}`)}}
		if err := (content{p}).building(t.Context(), []schema.Collection{c, coll(t, "a.c", `{}`)}); err != nil {
			t.Fatal(err)
		}
		expect(t, p.lines(), "warn index builds: 1 index builds of the source are under way and left out until they end: "+
			"z of a.b")
		hints[p.plan.Checks[0].Hint] = true
	}
	if len(hints) != 2 {
		t.Errorf("%v", hints)
	}
}

// TestSeriesWithoutBuckets: time series in the form of 8.3 and newer are refused on either side, by name.
func TestSeriesWithoutBuckets(t *testing.T) {
	with, without := coll(t, "a.s", `{"timeseries":{"timeField":"t"}}`), coll(t, "a.t", `{"timeseries":{"timeField":"t"}}`)
	with.Type, without.Type = schema.TypeTimeSeries, schema.TypeTimeSeries
	with.UUID = bson.Binary{Subtype: 4, Data: make([]byte, 16)}
	for _, c := range []struct {
		target mongo.Version
		colls  []schema.Collection
		want   []string
	}{
		{mongo.Version{Major: 8}, []schema.Collection{with}, nil},
		{mongo.Version{Major: 8}, []schema.Collection{with, without},
			[]string{"fail features: 1 time series of the source have no system.buckets collection, as from MongoDB 8.3 on: " +
				"a.t"}},
		{mongo.Version{Major: 8, Minor: 3}, []schema.Collection{with},
			[]string{"fail features: the target cannot hold 1 things: a.s: a time-series collection: version 8.3 and newer"}},
		{mongo.Version{Major: 9}, []schema.Collection{coll(t, "a.c", `{}`)}, nil},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t, transform.Config{})
		p.Target.Info.Version = c.target
		p.has(c.colls...)
		if err := (content{p}).collections(t.Context()); err != nil {
			t.Fatal(err)
		}
		expect(t, p.lines(Fail), c.want...)
	}
}

// TestOmissions: what cannot be copied is listed, up to a bound.
func TestOmissions(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	var list []schema.Omission
	p.seen.omissions = func() ([]schema.Omission, error) { return list, nil }
	for _, n := range []int{0, 2, 103} {
		*p.plan = Plan{}
		for list = nil; len(list) < n; {
			list = append(list, schema.Omission{NS: fmt.Sprint("a.", len(list)), Why: "reserved"})
		}
		if err := (content{p}).omissions(t.Context()); err != nil {
			t.Fatal(err)
		}
		left := p.plan.LeftOut
		switch n {
		case 0:
			expect(t, p.lines())
		case 2:
			expect(t, left, "a.0: reserved", "a.1: reserved")
			expect(t, p.lines(), "warn left out: 2 things are not copied as they are: a.0: reserved; a.1: reserved")
		default:
			if len(left) != 101 || left[100] != "and 3 more" {
				t.Errorf("%d: %q", len(left), left[len(left)-1])
			}
		}
	}
}

// TestExisting: what the target has already stops a new job, unless it is to merge or drop it.
func TestExisting(t *testing.T) {
	for _, c := range []struct {
		name     string
		have     []string
		asked    state.OnExisting
		began    state.OnExisting
		change   func(*planner)
		want     []string
		settings int
	}{
		{"none", nil, "", "", nil, []string{"ok target collections: none of them exists yet"}, 0},
		{"some", []string{"b.d", "a.c"}, state.ExistingFail, "", nil,
			[]string{"fail target collections: 2 exist already: a.c, b.d"}, 2},
		{"merge", []string{"a.c"}, state.ExistingMerge, "", nil,
			[]string{"warn target collections: 1 exist and will be merged into: a.c"}, 0},
		{"drop", []string{"a.c"}, state.ExistingDrop, "", nil,
			[]string{"warn target collections: 1 exist and will be DROPPED: a.c"}, 0},
		{"as begun", []string{"a.c"}, state.ExistingFail, state.ExistingMerge, nil,
			[]string{"warn target collections: 1 exist and will be merged into: a.c"}, 0},
		{"copied", []string{"a.c"}, "", "", func(p *planner) { p.resumes(state.PhaseCopying) }, nil, 0},
		{"incremental", []string{"a.c"}, "", "", func(p *planner) { p.Mode = state.ModeIncremental }, nil, 0},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.OnExisting, p.job.OnExisting = c.asked, c.began
		p.targetHas(c.have...)
		if c.change != nil {
			c.change(p)
		}
		if err := (content{p}).existing(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
		for _, check := range p.plan.Checks {
			if len(check.Skips()) != c.settings {
				t.Errorf("%s: %v", c.name, check.Skips())
			}
		}
	}
}

// TestRoom: data that the target's disk has no room for are warned of, where the server tells.
func TestRoom(t *testing.T) {
	for _, c := range []struct {
		name  string
		stats bson.D
		phase state.Phase
		want  []string
	}{
		{"enough", kit.D("fsTotalSize", 9e9, "fsUsedSize", 1e9), "", []string{"ok disk: 8.0 GB free for 5.0 GB of data"}},
		{"too little", kit.D("fsTotalSize", 9e9, "fsUsedSize", 8e9), "",
			[]string{"warn disk: the data are 5.0 GB uncompressed, the target has 1.0 GB free"}},
		{"more than all", kit.D("fsTotalSize", 1e9, "fsUsedSize", 2e9), "",
			[]string{"warn disk: the data are 5.0 GB uncompressed, the target has 0 B free"}},
		{"unknown", kit.D("ok", 1), "", nil},
		{"copied", kit.D("fsTotalSize", 9e9, "fsUsedSize", 8e9), state.PhaseCopying, nil},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.data = 5e9
		if c.phase != "" {
			p.resumes(c.phase)
		}
		p.seen.disk = func() (bson.Raw, error) { return kit.Raw(c.stats), nil }
		if err := (content{p}).room(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, p.lines(), c.want...) })
		p.seen.disk = func() (bson.Raw, error) { return nil, errAnswer }
		if err := (content{p}).room(t.Context()); err != nil {
			t.Errorf("a server that does not say: %v", err)
		}
	}
}
