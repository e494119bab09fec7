package precheck

import (
	"bytes"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

func TestList(t *testing.T) {
	var l List
	l.Add(OK, "versions", "fine", "")
	l.Add(Warn, "lag", "3 s behind", "wait")
	if l.Failed() || l.Err() != nil {
		t.Errorf("%v", l.Err())
	}
	var log bytes.Buffer
	l.LogWarnings(slog.New(slog.NewTextHandler(&log, nil)))
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "3 s behind") ||
		!strings.Contains(s, "hint=wait") {
		t.Errorf("%s", s)
	}

	l.Add(Fail, "source", "no replica set", "initiate it")
	if err := l.Err(); !l.Failed() || err.Error() != "precheck source: no replica set" ||
		mongo.HintOf(err) != "initiate it" {
		t.Errorf("%v", err)
	}

	l.Add(Fail, "target", "too old", "")
	const want = "2 checks failed:\n  source: no replica set\n    hint: initiate it\n  target: too old"
	if err := l.Err(); err.Error() != want {
		t.Errorf("%v", err)
	}
}

// TestUntestedVersions: a server newer than the tested ones is said to be so, on
// either side.
func TestUntestedVersions(t *testing.T) {
	_, newest := mongo.Tested()
	next := mongo.Version{Major: newest.Major + 1}
	for _, c := range []struct {
		src, dst mongo.Version
		want     []string
	}{
		{newest, newest, nil},
		{newest, next, []string{"target version"}},
		{next, next, []string{"source version", "target version"}},
		{mongo.Version{Major: 6, Minor: 0, Patch: 27}, mongo.Version{Major: newest.Major, Patch: 99}, nil},
	} {
		p := &planner{plan: &Plan{}, Input: Input{Source: &mongo.Cluster{Info: mongo.Info{Version: c.src}},
			Target: &mongo.Cluster{Info: mongo.Info{Version: c.dst}}}}
		p.versions()
		var got []string
		for _, w := range p.plan.Checks.Of(Warn) {
			if !strings.Contains(w.Message, next.String()) || !strings.Contains(w.Message,
				fmt.Sprintf("newer than %d.%d,", newest.Major, newest.Minor)) || w.Hint == "" {
				t.Errorf("%+v", w)
			}
			got = append(got, w.Name)
		}
		if !slices.Equal(got, c.want) || p.plan.Checks.Failed() {
			t.Errorf("%v to %v: %v, want warnings %v", c.src, c.dst, p.plan.Checks, c.want)
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
		p.deployments()
		failed := slices.ContainsFunc(p.plan.Checks.Of(Fail), func(f Check) bool { return f.Name == "rules" })
		if failed != c.fails {
			t.Errorf("%s to %s, %s: %v", c.src, c.dst, c.skip, p.plan.Checks)
		}
	}
}
