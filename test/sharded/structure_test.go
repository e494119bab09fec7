package sharded_test

import (
	"bytes"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/verify"
	"github.com/millrace/millrace/test"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// kinds makes one collection of each kind on the source, some with documents, and a view.
func (b *bed) kinds() {
	b.Helper()
	for _, name := range []string{"orders", "hashed", "wide", "plain"} {
		b.insert(name, 0, 500)
	}
	b.index("orders", "x", true)
	b.index("orders", "y", false)
	for _, cmd := range []string{
		`{"create":"capped","capped":true,"size":8192}`,
		`{"create":"valid","validator":{"n":{"$gte":0}},"collation":{"locale":"en","strength":2}}`,
		`{"create":"view","viewOn":"orders","pipeline":[{"$match":{"x":1}}]}`,
		`{"create":"series","timeseries":{"timeField":"t","metaField":"m"},"expireAfterSeconds":7200}`,
		`{"create":"clustered","clusteredIndex":{"key":{"_id":1},"unique":true}}`,
		`{"createIndexes":"wide","indexes":[{"key":{"at":1},"name":"at","expireAfterSeconds":3600}]}`,
	} {
		var doc bson.D
		b.ok(bson.UnmarshalExtJSON([]byte(cmd), false, &doc))
		b.ok(b.source.Database("d").RunCommand(b.Context(), doc).Err())
	}
}

// structured wants a job of mode structure to end with the source's structure on the
// target, sharded as told, and no document.
func (b *bed) structured(spec job.Spec, keys string) {
	b.Helper()
	spec.Mode = job.ModeStructure
	j, done := b.start(spec)
	b.ok(<-done)
	st := j.Status()
	if len(st.Differences) > 0 || st.Structure == nil || st.Structure.Sharded != len(strings.Split(keys, ", ")) ||
		st.Structure.Indexes != st.Structure.IndexesTotal {
		b.Errorf("%v %+v", st.Differences, st.Structure)
	}
	b.sameStructure(keys)
}

// sameStructure wants the target to have the source's structure, and no document.
func (b *bed) sameStructure(keys string) {
	b.Helper()
	b.wants("in the end", keys)
	report, err := verify.Clusters(b.Context(),
		verify.Spec{Source: b.sourceURI, Target: b.targetURI, Rules: transform.Config{Include: []string{"d.*"}},
			Options: verify.Options{StructureOnly: true}})
	b.ok(err)
	if !report.Same || !report.StructureOnly || len(report.Collections) > 0 {
		b.Errorf("%+v", report)
	}
	names, err := b.target.Database("d").ListCollectionNames(b.Context(), bson.D{{Key: "type", Value: "collection"}})
	b.ok(err)
	for _, name := range names {
		if n, err := b.target.Database("d").Collection(name).CountDocuments(b.Context(), bson.D{}); !strings.HasPrefix(name,
			"system.views") && (err != nil || n > 0) {
			b.Errorf("%d documents in %s: %v", n, name, err)
		}
	}
	cur, err := b.target.Database("d").Collection("orders").Indexes().List(b.Context())
	b.ok(err)
	var indexes []struct {
		Name   string
		Unique bool
	}
	b.ok(cur.All(b.Context(), &indexes))
	var texts []string
	for _, ix := range indexes {
		text := ix.Name
		if ix.Unique {
			text += " unique"
		}
		texts = append(texts, text)
	}
	if slices.Sort(texts); strings.Join(texts, ", ") != "_id_, x_1 unique, y_1" {
		b.Errorf("indexes of orders: %v", texts)
	}
}

// TestStructureOfSet: what a replica set has is made on a sharded cluster, by the rules'
// keys.
func TestStructureOfSet(t *testing.T) {
	b := outward(t, false)
	b.kinds()
	spec := b.spec()
	spec.Shard = []string{"d.orders=x:1", "d.hashed=_id:hashed", "d.wide=y:1,_id:1"}
	b.structured(spec, "hashed _id:hashed, orders x:1, wide y:1 _id:1")
	again := spec
	again.Mode = job.ModeStructure
	j, err := job.Open(t.Context(), again)
	b.ok(err)
	defer j.Close()
	if plan, err := j.Plan(t.Context()); err != nil || plan.Finalized == nil {
		t.Errorf("done again: %+v %v", plan, err)
	}
}

// TestStructureOfShards: collections get the keys that they have on the source.
func TestStructureOfShards(t *testing.T) {
	lab.Nightly(t)
	b := outward(t, false)
	from := sharded.ForTest(t, sharded.Options{Options: lab.Options{Topology: "sharded:2x1"}, Routers: 1})
	b.sourceURI = from.URI()
	b.source = b.client(b.sourceURI)
	b.index("orders", "x", true)
	for name, key := range map[string]bson.D{"orders": {{Key: "x", Value: 1}}, "hashed": {{Key: "_id", Value: "hashed"}},
		"wide": {{Key: "y", Value: 1}, {Key: "_id", Value: 1}}} {
		b.ok(b.source.Database("admin").RunCommand(t.Context(),
			bson.D{{Key: "shardCollection", Value: "d." + name}, {Key: "key", Value: key}}).Err())
	}
	b.kinds()
	b.structured(b.spec(), "hashed _id:hashed, orders x:1, wide y:1 _id:1")
}

// TestStructureBesideOtherKeys: a collection that exists on the target with another shard
// key stays as it is, and is a difference.
func TestStructureBesideOtherKeys(t *testing.T) {
	b := outward(t, false)
	b.insert("orders", 0, 10)
	b.ok(b.target.Database("admin").RunCommand(t.Context(), bson.D{{Key: "shardCollection", Value: "d.orders"},
		{Key: "key", Value: bson.D{{Key: "_id", Value: "hashed"}}}}).Err())
	spec := b.spec()
	spec.Mode, spec.OnExisting, spec.Shard = job.ModeStructure, job.ExistingMerge, []string{"d.orders=x:1"}
	j, done := b.start(spec)
	b.ok(<-done)
	if got := strings.Join(j.Status().Differences,
		"; "); got != "d.orders: shard key: source has x:1, target has _id:hashed" {
		t.Errorf("%q", got)
	}
}

// TestStructureKilledWhileSharding: a job that is killed at any step goes on.
func TestStructureKilledWhileSharding(t *testing.T) {
	lab.Nightly(t)
	b := outward(t, false)
	b.insert("orders", 0, 1000)
	b.index("orders", "x", true)
	b.index("orders", "y", false)
	program := test.BuildMillrace(t, "-tags", "failpoint")
	run := func(points string) (string, error) {
		cmd := exec.CommandContext(t.Context(), program, "sync", "--source", b.sourceURI, "--target", b.targetURI,
			"--include", "d.*", "--shard", "d.orders=x:1",
			"--mode", "structure", "--log-level", "warn")
		cmd.Env = append(os.Environ(), "MILLRACE_FAILPOINTS="+points)
		out := new(bytes.Buffer)
		cmd.Stdout, cmd.Stderr = out, out
		err := cmd.Run()
		return out.String(), err
	}
	for _, point := range []string{"shard.before", "shard.made", "shard.held", "shard.split:2", "shard.moved",
		"shard.placed", "make.after", "indexes.after", "release.before", "phase.before:4"} {
		if out, err := run(point + "=kill"); err == nil || !strings.Contains(err.Error(), "killed") {
			t.Errorf("%s: %v\n%s", point, err, out)
		}
		if out, err := run(""); err != nil {
			t.Errorf("after %s: %v\n%s", point, err, out)
		}
		b.sameStructure("orders x:1")
		for _, name := range []string{"d", "millrace"} {
			b.ok(b.target.Database(name).Drop(t.Context()))
		}
	}
}
