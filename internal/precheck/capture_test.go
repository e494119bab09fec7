package precheck

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/changestream"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// TestCaptureIsPossible: what a source by change streams must be, and what no stream tells.
func TestCaptureIsPossible(t *testing.T) {
	const set, sharded, alone = mongo.KindReplicaSet, mongo.KindSharded, mongo.KindStandalone
	for _, c := range []struct {
		name    string
		src     mongo.Kind
		version mongo.Version
		via     origin.Via
		skip    []string
		want    []string
	}{
		{"a set", set, mongo.Version{Major: 4, Minor: 4}, "", nil, nil},
		{"routers", sharded, mongo.Version{Major: 6}, origin.ViaRouters, nil, nil},
		{"old routers", sharded, mongo.Version{Major: 5}, origin.ViaRouters, nil,
			[]string{"fail capture: the change streams of a sharded cluster of MongoDB 5.0.0 do not tell"}},
		{"routers of a set", set, mongo.Version{Major: 6}, origin.ViaRouters, nil,
			[]string{"fail capture: --via routers is for a sharded source, and the source is a replica set"}},
		{"alone", alone, mongo.Version{Major: 6}, "", nil,
			[]string{"fail capture: a standalone server has no change streams"}},
		{"expiry", set, mongo.Version{Major: 6}, "", []string{"d.c=ttl"},
			[]string{"fail capture: --skip …=ttl is not possible with change streams"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := between(c.src, set).with(t, transform.Config{Skip: c.skip})
			p.Source.Info.Version, p.Streamed = c.version, &origin.Streamed{Cluster: p.Source}
			p.Capture = Capture{By: state.CaptureStreams, Via: c.via}
			capturing{p}.possible()
			expect(t, p.lines(), c.want...)
		})
	}
}

// TestUnreportedCollections: collections whose writes no stream reports are rejected by name.
func TestUnreportedCollections(t *testing.T) {
	p := between(mongo.KindReplicaSet, mongo.KindReplicaSet)
	series := coll(t, "d.temperatures", `{"timeseries":{"timeField":"at"}}`)
	series.Type = schema.TypeTimeSeries
	capturing{p}.unreported([]schema.Collection{coll(t, "d.c", `{}`), series,
		coll(t, "d.kept", `{"clusteredIndex":{"key":{"_id":1},"unique":true}}`),
		coll(t, "d.sessions", `{"clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":60}`)}, changestream.Support{Expanded: true})
	expect(t, p.lines(), "fail capture: change streams do not report writes to time series: 1 collections, d.temperatures",
		"fail capture: change streams do not report expiry in clustered collections: 1 collections, d.sessions")
}

// TestRulesNeedOperations: rules about what users did are rejected where it is not reported exactly.
func TestRulesNeedOperations(t *testing.T) {
	all := changestream.Support{Raw: true, Expanded: true}
	for _, c := range []struct {
		rules    transform.Config
		s        changestream.Support
		rejected bool
	}{
		{transform.Config{History: []string{"d.c"}}, changestream.Support{}, true},
		{transform.Config{Skip: []string{"d.c=drop"}}, changestream.Support{Expanded: true}, true},
		{transform.Config{SoftDelete: []string{"d.c=gone"}}, changestream.Support{}, true},
		{transform.Config{SoftDelete: []string{"d.c=gone"}}, all, false},
		{transform.Config{Filter: []string{`d.c={"a": 1}`}}, changestream.Support{}, false},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t, c.rules)
		capturing{p}.judging(c.s)
		if p.plan.Checks.Failed() != c.rejected {
			t.Errorf("%+v: %v", c, p.lines())
		}
	}
}

// TestResumeByTheSameCapture: a job continues only as it began, and those of earlier versions by oplogs.
func TestResumeByTheSameCapture(t *testing.T) {
	for _, c := range []struct {
		stored, now state.Capture
		ok          bool
	}{
		{"", state.CaptureOplog, true},
		{"", state.CaptureStreams, false},
		{state.CaptureOplog, state.CaptureStreams, false},
		{state.CaptureStreams, state.CaptureOplog, false},
		{state.CaptureStreams, state.CaptureStreams, true},
	} {
		p := between(mongo.KindReplicaSet, mongo.KindReplicaSet).with(t, transform.Config{})
		p.Keys, p.Capture.By = &transform.Keys{}, c.now
		stored := state.Job{ID: "j", Mode: state.ModeAll, Rules: p.Rules.String(), SourceSet: p.Source.Info.SetID,
			TargetSet: p.Target.Info.SetID, Phase: state.PhaseFollowing, Capture: c.stored}
		p.seen.job = func() (state.Job, bool, error) { return stored, true, nil }
		if err := (planStored(p)).resume(t.Context()); err != nil || p.plan.Checks.Failed() == c.ok {
			t.Errorf("%q, then %q: %v, %v", c.stored, c.now, p.lines(), err)
		}
	}
}

func planStored(p *planner) stored { return stored{p} }
