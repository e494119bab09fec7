package precheck

import (
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// TestOlderTargetEndsNothing: the other checks of a job to an older target are made all the same.
func TestOlderTargetEndsNothing(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	p.Source.Info.Version.Major++
	sides{p}.versions()
	if !p.plan.Checks.Failed() || p.ends() {
		t.Errorf("%v", p.lines())
	}
	p.add(Fail, "identity", "", "the same set")
	if !p.ends() {
		t.Error("a failure that forbids to look on is taken for an older target")
	}
}

// TestDeployments: which kinds of deployment a job runs between, by its mode.
func TestDeployments(t *testing.T) {
	const set, sharded, alone = mongo.KindReplicaSet, mongo.KindSharded, mongo.KindStandalone
	for _, c := range []struct {
		name     string
		src, dst mongo.Kind
		change   func(*planner)
		want     []string
	}{
		{"sets", set, set, nil, nil},
		{"clusters", sharded, sharded, nil, nil},
		{"source alone", alone, set, nil, []string{"fail source: a standalone server has no oplog"}},
		{"copied alone", alone, set, func(p *planner) { p.Mode = state.ModeFull },
			[]string{"warn source: a standalone server: writes made during the copy"}},
		{"structure alone", alone, set, func(p *planner) { p.Mode = state.ModeStructure }, nil},
		{"target alone", set, alone, nil, []string{"fail target: a standalone server cannot keep a durable checkpoint"}},
		{"incremental", sharded, set, func(p *planner) { p.Mode = state.ModeIncremental },
			[]string{"fail source: incremental mode cannot start at a time of a sharded cluster"}},
		{"reversed", sharded, set, func(p *planner) { p.Mode, p.StartAt = state.ModeIncremental, "job:shop" }, nil},
		{"old source", sharded, set, func(p *planner) { p.Source.Info.Version = mongo.Version{Major: 4, Minor: 2} },
			[]string{"fail source: a sharded cluster of MongoDB 4.2.0 is not supported as a source"}},
		{"old target", set, sharded, func(p *planner) { p.Target.Info.Version = mongo.Version{Major: 5} },
			[]string{"fail target: a sharded cluster of MongoDB 5.0.0 is not supported as a target"}},
		{"no configuration", set, set, func(p *planner) { p.Target.Info.SetID = bson.ObjectID{} },
			[]string{"warn identity: cannot read the configuration of the target: only the sets' addresses"}},
		{"no configuration of the source", set, set, func(p *planner) { p.Source.Info.SetID = bson.ObjectID{} },
			[]string{"warn identity: cannot read the configuration of the source: only the sets' addresses"}},
	} {
		p := between(c.src, c.dst)
		if c.change != nil {
			c.change(p)
		}
		sides{p}.deployments()
		// Clusters that nobody has connected have one address, and count as the same.
		same := func(line string) bool {
			return strings.HasPrefix(line, "fail identity: source and target are the same")
		}
		got := p.lines(Warn, Fail)
		if !slices.ContainsFunc(got, same) {
			t.Errorf("%s: the same deployment on both sides is not noticed", c.name)
		}
		t.Run(c.name, func(t *testing.T) { expect(t, slices.DeleteFunc(got, same), c.want...) })
	}
}

// TestVersions: an older target is a risk that has to be accepted.
func TestVersions(t *testing.T) {
	six, seven := mongo.Version{Major: 6}, mongo.Version{Major: 7}
	for _, c := range []struct {
		src, dst       mongo.Version
		srcFCV, dstFCV string
		allowed        bool
		want           string
	}{
		{six, seven, "6.0", "7.0", false, "ok versions: 6.0.0 to 7.0.0"},
		{seven, six, "7.0", "6.0", false, "fail versions: the target (6.0.0) is older than the source (7.0.0)"},
		{seven, six, "7.0", "6.0", true, "warn versions: the target (6.0.0) is older than the source (7.0.0); features"},
		{seven, seven, "7.0", "6.0", false, "fail feature compatibility: the target's feature compatibility version (6.0)"},
		{seven, seven, "7.0", "6.0", true, "ok versions: 7.0.0 to 7.0.0"},
		{seven, seven, "7.0", "", false, "ok versions"},
		{six, six, "6.0", "6.0", false, "ok versions"},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
		p.Source.Info.Version, p.Source.Info.FCV, p.Target.Info.Version, p.Target.Info.FCV = c.src, c.srcFCV, c.dst, c.dstFCV
		p.AllowDowngrade = c.allowed
		sides{p}.versions()
		expect(t, p.lines(), c.want)
	}
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	p.Source.Info.Version = mongo.Version{Major: 4}
	sides{p}.versions()
	expect(t, p.lines(), "fail source version: MongoDB 4.0.0 is older than 4.2", "ok versions")
}

// TestUntestedVersions: the plan says of each side whether its series was tested, only read about, or is unknown.
func TestUntestedVersions(t *testing.T) {
	const set, sharded = mongo.KindReplicaSet, mongo.KindSharded
	const read = "is known from documentation only"
	const unknown = "is unknown: the newest series whose documentation was read is 9.0"
	six, seven, next := mongo.Version{Major: 6}, mongo.Version{Major: 7, Patch: 28}, mongo.Version{Major: 9, Minor: 1}
	eight, nine := mongo.Version{Major: 8, Patch: 4}, mongo.Version{Major: 9, Patch: 4}
	for _, c := range []struct {
		kind     mongo.Kind
		src, dst mongo.Version
		of       [2]string
		want     []string
	}{
		{set, six, seven, [2]string{"(tested)", "(tested)"}, nil},
		{set, seven, eight, [2]string{"(tested)", "(known from documentation only)"},
			[]string{"warn target version: replica set of MongoDB 8.0.4 " + read}},
		{set, eight, nine, [2]string{"(known from documentation only)", "(known from documentation only)"},
			[]string{"warn source version: replica set of MongoDB 8.0.4 " + read,
				"warn target version: replica set of MongoDB 9.0.4 " + read}},
		{set, nine, next, [2]string{"(known from documentation only)", "(unknown)"},
			[]string{"warn source version: replica set of MongoDB 9.0.4 " + read,
				"warn target version: MongoDB 9.1.0 " + unknown}},
		{sharded, six, six, [2]string{"(tested)", "(tested)"}, nil},
		{sharded, six, seven, [2]string{"(tested)", "(known from documentation only)"},
			[]string{"warn target version: sharded cluster of MongoDB 7.0.28 " + read}},
	} {
		p := between(c.kind, c.kind)
		p.Source.Info.Version, p.Target.Info.Version = c.src, c.dst
		sides{p}.versions()
		expect(t, p.lines(Warn, Fail), c.want...)
		for i, side := range []mongo.Info{p.Source.Info, p.Target.Info} {
			if text := describe(side); !strings.Contains(text, side.Version.String()+" "+c.of[i]) {
				t.Errorf("%s, want %s", text, c.of[i])
			}
		}
		for _, w := range p.plan.Checks.Of(Warn) {
			if !strings.Contains(w.Hint, "docs/reference/versions.md") {
				t.Errorf("%+v", w)
			}
		}
	}
}

// TestSkipsOfShards: of sharded clusters it is not known what has expired, nor on one
// which documents have been left out.
func TestSkipsOfShards(t *testing.T) {
	for _, c := range []struct {
		src, dst mongo.Kind
		skip     string
		fails    bool
	}{
		{mongo.KindReplicaSet, mongo.KindReplicaSet, "a.*=ttl", false},
		{mongo.KindSharded, mongo.KindReplicaSet, "a.*=ttl", true},
		{mongo.KindReplicaSet, mongo.KindSharded, "a.*=ttl", true},
		{mongo.KindSharded, mongo.KindSharded, "a.*=delete", false},
		{mongo.KindSharded, mongo.KindReplicaSet, "a.*=insert", false},
		{mongo.KindReplicaSet, mongo.KindSharded, "a.*=insert", true},
	} {
		rules, err := transform.New(transform.Config{Skip: []string{c.skip}})
		if err != nil {
			t.Fatal(err)
		}
		_, newest := mongo.Tested()
		cluster := func(k mongo.Kind, id byte) *mongo.Cluster {
			return &mongo.Cluster{Info: mongo.Info{Kind: k, Version: newest, SetID: bson.ObjectID{id}}}
		}
		p := &planner{plan: &Plan{}, Input: Input{Source: cluster(c.src, 1), Target: cluster(c.dst, 2), Rules: rules}}
		sides{p}.deployments()
		failed := slices.ContainsFunc(p.plan.Checks.Of(Fail), func(f Check) bool { return f.Name == "rules" })
		if failed != c.fails {
			t.Errorf("%s to %s, %s: %v", c.src, c.dst, c.skip, p.plan.Checks)
		}
	}
}
