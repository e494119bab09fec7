package schema

import (
	"maps"
	"testing"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/transform"
)

// TestHoldTTL: what the target has of its own expires again in the end, also
// when the job begins anew, and unless the source's takes its place.
func TestHoldTTL(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	own :=
		`{"createIndexes":"c","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":30},{"key":{"o":1},"name":"own","expireAfterSeconds":40},{"key":{"p":1},"name":"plain"}]}`
	do(t, dst, db, own)
	do(t, src, db,
		`{"createIndexes":"c","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":7},{"key":{"p":1},"name":"plain"}]}`)
	names := []string{db + ".c", db + ".none"}
	expires := func(when string, want map[string]int64) {
		t.Helper()
		all, _, err := indexes(t.Context(), dst, db+".c")
		if err != nil {
			t.Fatal(err)
		}
		for _, ix := range all {
			v := ix.Spec.Lookup("expireAfterSeconds")
			n, _ := v.AsInt64OK()
			if w := want[ix.Name]; w >= 0 && n != w || w < 0 && !expiry.StandsIn(v) {
				t.Errorf("%s: %s expires after %d, want %d", when, ix.Name, n, w)
			}
		}
	}
	for range 2 {
		if err := r.target.Expiries.Defer(t.Context(), names); err != nil {
			t.Fatal(err)
		}
		expires("held", map[string]int64{"t": -1, "own": -1})
	}
	r.copy() // over what is there
	expires("copied", map[string]int64{"t": -1, "own": -1})
	if err := r.target.Expiries.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	expires("restored", map[string]int64{"t": 7, "own": 40})

	if err := r.target.Expiries.Defer(t.Context(), names); err != nil {
		t.Fatal(err)
	}
	if err := r.target.Deferred.Forget(t.Context()); err != nil {
		t.Fatal(err)
	}
	do(t, src, db, `{"dropIndexes":"c","index":"t"}`)
	do(t, src, db, `{"createIndexes":"c","indexes":[{"key":{"t":1},"name":"t"}]}`)
	r.copy()
	expires("begun anew", map[string]int64{"t": -1, "own": -1})
	if err := r.target.Expiries.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	expires("restored after it began anew", map[string]int64{"t": 7, "own": 40})
	if held, err := r.target.Deferred.List(t.Context()); err != nil || len(held) != 0 {
		t.Errorf("still held back: %+v, %v", held, err)
	}
}

// TestCreateOurs: what a late write left without options is made anew while it
// is empty, refused when it is not, and never touched where it is not ours.
func TestCreateOurs(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	for _, cmd := range []string{`{"create":"capped","capped":true,"size":4096}`,
		`{"create":"collated","collation":{"locale":"fr"}}`,
		`{"create":"series","timeseries":{"timeField":"t"},"expireAfterSeconds":100}`,
		`{"create":"view","viewOn":"capped","pipeline":[]}`,
		`{"create":"clustered","clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":50}`} {
		if _, err := try(t, src, db, cmd); err != nil {
			t.Logf("%s: %v", cmd, err)
		}
	}
	snap, err := TakeSnapshot(t.Context(), src, scopeOf(r.rules, db), oplog.Changes(src))
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range snap.Collections {
		_, name := mongo.SplitNS(c.NS)
		do(t, dst, db, `{"create":"`+name+`"}`)
		if err := r.target.Collections.Create(t.Context(), c, c.NS, r.rules); err == nil {
			t.Errorf("%s: what is not ours was taken", c.NS)
		}
		for range 2 {
			if err := r.target.Collections.CreateOurs(t.Context(), c, c.NS, r.rules); err != nil {
				t.Errorf("made anew: %v", err)
			}
		}
		do(t, dst, db, `{"drop":"`+name+`"}`)
		do(t, dst, db, `{"insert":"`+name+`","documents":[{"_id":1}]}`)
		if err := r.target.Collections.CreateOurs(t.Context(), c, c.NS, r.rules); err == nil {
			t.Errorf("%s: taken with documents of somebody", c.NS)
		}
		do(t, dst, db, `{"drop":"`+name+`"}`)
		if err := r.target.Collections.CreateOurs(t.Context(), c, c.NS, r.rules); err != nil {
			t.Error(err)
		}
	}
	if err := r.target.WaitMajority(t.Context()); err != nil {
		t.Error(err)
	}
	r.finish()
}

// TestHoldTTLOfBuckets: the same of a time series, whose buckets expire by an index that
// collMod does not change. Making it anew breaks off half way.
func TestHoldTTLOfBuckets(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{}), db)
	if !runnable(since{major: 7}) {
		t.Skip("needs a source and a target of 7.0")
	}
	index := func(name, direction, after string) string {
		return `{"createIndexes":"m","indexes":[{"key":{"t":` + direction + `},"name":"` + name + `","expireAfterSeconds":` +
			after + `,"hidden":true,"partialFilterExpression":{"m":"x"}}]}`
	}
	for _, c := range []*mongo.Cluster{src, dst} {
		do(t, c, db, `{"create":"m","timeseries":{"timeField":"t","metaField":"m"}}`)
		do(t, c, db, `{"dropIndexes":"m","index":"*"}`)
	}
	do(t, dst, db, index("t", "1", "30"))
	do(t, dst, db, index("own", "-1", "40"))
	do(t, src, db, index("t", "1", "7"))
	broken := func(step func() error) {
		t.Helper()
		do(t, dst, db,
			`admin {"configureFailPoint":"failCommand","mode":{"times":1},"data":{"failCommands":["createIndexes"],"errorCode":10107,"namespace":"@.system.buckets.m"}}`)
		if err := step(); err == nil {
			t.Error("it did not break off")
		}
		for range 2 {
			if err := step(); err != nil {
				t.Fatal(err)
			}
		}
	}
	expires := func(want map[string]int64) {
		t.Helper()
		all, _, err := indexes(t.Context(), dst, db+"."+mongo.BucketsPrefix+"m")
		if err != nil {
			t.Fatal(err)
		}
		got := map[string]int64{}
		for _, ix := range all {
			if n, ok := ix.Spec.Lookup("expireAfterSeconds").AsInt64OK(); ok {
				got[ix.Name] = n
			}
			if !truthyField(ix.Spec, "hidden") {
				t.Errorf("%s is not hidden", ix.Name)
			}
		}
		if !maps.Equal(got, want) {
			t.Errorf("expire: %v, want %v", got, want)
		}
	}
	broken(func() error { return r.target.Expiries.Defer(t.Context(), []string{db + ".m"}) })
	expires(nil)
	r.copy() // over what is there
	expires(nil)
	broken(func() error { return r.target.Expiries.Restore(t.Context()) })
	expires(map[string]int64{"t": 7, "own": 40})
}
