package schema

import (
	"context"
	"slices"
	"strings"
	"sync"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestSeriesIndexUnderWay: a build on a time series, which servers list in no listing that
// tells builds apart, counts as one under way and is no reason to fail.
func TestSeriesIndexUnderWay(t *testing.T) {
	lab.NeedServers(t)
	if !src.Info.Version.AtLeast(6, 0) {
		t.Skip("no index on measurements before 6.0")
	}
	db := newDB()
	rules := newRules(t, transform.Config{})
	do(t, src, db, `{"create":"s","timeseries":{"timeField":"t","metaField":"m"}}`)
	do(t, src, db, `{"insert":"s","documents":[{"t":{"$date":"2026-01-01T00:00:00Z"},"m":1,"v":1}]}`)
	do(t, src, db, `{"createIndexes":"s","indexes":[{"key":{"v":-1},"name":"ready"}]}`)
	ended := buildSlowly(t, db, `{"createIndexes":"s","indexes":[{"key":{"m":1,"v":1},"name":"slow"}]}`)
	kit.Until(t, "the build begins", func() bool {
		building, err := buildsUnderWay(t.Context(), src, db+".system.buckets.s")
		return err == nil && slices.Contains(building, "slow")
	})
	colls, err := List(t.Context(), src, scopeOf(rules, db))
	if err != nil {
		t.Fatal(err)
	}
	if got := indexNames(colls[0].Indexes); got != "ready" {
		t.Errorf("finished: %s", got)
	}
	if got := indexNames(colls[0].Building); got != "slow" {
		t.Errorf("under way: %s", got)
	}
	ended()
	if colls, err = List(t.Context(), src, scopeOf(rules, db)); err != nil {
		t.Fatal(err)
	}
	if done, building := indexNames(colls[0].Indexes), indexNames(colls[0].Building); done != "ready slow" ||
		building != "" {
		t.Errorf("after its end: finished %s, under way %s", done, building)
	}
}

// buildSlowly begins to build an index that does not end before ended is called.
func buildSlowly(t *testing.T, db, cmd string) (ended func()) {
	t.Helper()
	failPoint := func(mode string) {
		if _, err := src.Command(context.Background(), "admin",
			bson.D{{Key: "configureFailPoint", Value: "hangAfterStartingIndexBuild"}, {Key: "mode", Value: mode}}); err != nil {
			t.Error(err)
		}
	}
	failPoint("alwaysOn")
	done := make(chan error, 1)
	go func() {
		_, err := src.Command(context.Background(), db, js(t, cmd))
		done <- err
	}()
	ended = sync.OnceFunc(func() {
		failPoint("off")
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	t.Cleanup(ended)
	return ended
}

func indexNames(list []stream.Index) string {
	var names []string
	for _, ix := range list {
		names = append(names, ix.Name)
	}
	slices.Sort(names)
	return strings.Join(names, " ")
}

// TestBuildUnderWayDiffers: what the source is building is a difference, unless the target
// has it, and names what finalize waits for unless rules leave indexes out.
func TestBuildUnderWayDiffers(t *testing.T) {
	lab.NeedServers(t)
	db := newDB()
	rules := newRules(t, transform.Config{})
	r := newReplica(t, rules, db)
	r.run(db, []string{seed})
	r.copy()
	ended := buildSlowly(t, db,
		`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"lacks"},{"key":{"b":1},"name":"has"},{"key":{"d":1},"name":"other"}]}`)
	kit.Until(t, "the build begins", func() bool {
		building, err := buildsUnderWay(t.Context(), src, db+".c")
		return err == nil && len(building) == 3
	})
	do(t, dst, db, `{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"has"},{"key":{"e":1},"name":"other"}]}`)
	diffs, err := Diff(t.Context(), src, dst, rules, DiffOptions{Keep: only(rules, db)})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, d := range diffs {
		if !d.Building || d.NS != db+".c" {
			t.Errorf("difference %+v", d)
		}
		got = append(got, d.What)
	}
	slices.Sort(got)
	if want := []string{"index lacks", "index other"}; !slices.Equal(got, want) {
		t.Errorf("differences %q, want %q", got, want)
	}
	for skip, want := range map[string]int{"": 3, db + ".c=createIndexes": 0} {
		c := transform.Config{Include: []string{db + ".*"}}
		if skip != "" {
			c.Skip = []string{skip}
		}
		rules := newRules(t, c)
		colls, err := Building(t.Context(), src, rules)
		if err != nil {
			t.Fatal(err)
		}
		if builds, err := BuildingNames(colls, rules); err != nil || len(builds) != want {
			t.Errorf("with --skip %q: %v, %v, want %d builds", skip, builds, err, want)
		}
	}
	ended()
}
