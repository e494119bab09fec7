package schema

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// TestKeepsExpired: where documents stay that have expired, what the source's settings are is
// known at each position, and not taken for what the target has of its own; the target
// never gets an expiry.
func TestKeepsExpired(t *testing.T) {
	t.Parallel()
	db := newDB()
	r := newReplica(t, newRules(t, transform.Config{Skip: []string{db + ".*=ttl"}}), db)
	r.target.link.o.KeepsExpired = func(ns string) bool { return r.rules.Route(ns).KeepsExpired }
	known := func(when, want string) {
		t.Helper()
		got, err := r.target.Deferred.Expiry(t.Context(), db+".c", false, false)
		if err != nil || got.String() != want {
			t.Errorf("%s: %s, %v, want %s", when, got, err, want)
		}
	}
	do(t, dst, db, `{"createIndexes":"c","indexes":[{"key":{"o":1},"name":"own","expireAfterSeconds":40}]}`)
	do(t, src, db,
		`{"createIndexes":"c","indexes":[{"key":{"t":1},"name":"t","expireAfterSeconds":7},{"key":{"h":"hashed"},"name":"h"},{"key":{"u":1},"name":"u","unique":true,"expireAfterSeconds":8}]}`)
	r.copy()
	known("copied", "t + 7 s, u + 8 s")
	if s, err := r.target.Deferred.Expiry(t.Context(), db+".c", false, true); err != nil || len(s) != 3 {
		t.Errorf("with the target's own: %s, %v", s, err)
	}
	do(t, src, db, `{"collMod":"c","index":{"name":"t","expireAfterSeconds":70}}`)
	do(t, src, db, `{"dropIndexes":"c","index":"u"}`)
	do(t, src, db,
		`{"createIndexes":"c","indexes":[{"key":{"p":1},"name":"p","expireAfterSeconds":9,"partialFilterExpression":{"a":{"$gt":1}}}]}`)
	r.follow()
	known("changed", `p + 9 s where {"a": {"$gt": {"$numberInt":"1"}}}, t + 70 s`)
	if err := r.target.Expiries.Restore(t.Context()); err != nil {
		t.Fatal(err)
	}
	known("finalized", `p + 9 s where {"a": {"$gt": {"$numberInt":"1"}}}, t + 70 s`)
	all, _, err := indexes(t.Context(), dst, db+".c")
	if err != nil || len(all) < 4 {
		t.Fatal(all, err)
	}
	for _, ix := range all {
		v := ix.Spec.Lookup("expireAfterSeconds")
		if ix.Name != "own" && v.Type != 0 || ix.Name == "own" && !expiry.StandsIn(v) {
			t.Errorf("the target's %s expires after %s", ix.Name, v)
		}
	}
	diffs, err := Diff(t.Context(), src, dst, r.rules, DiffOptions{Keep: only(r.rules, db)})
	if err != nil {
		t.Fatal(err)
	}
	for _, d := range diffs {
		if (d.Skipped != "ttl") != (d.What == "index own") {
			t.Errorf("%s", d)
		}
	}
	if len(diffs) != 3 {
		t.Errorf("%d differences: %v", len(diffs), diffs)
	}
	// To those who know no such rule it is a difference that stays.
	later, err := AllDeferred(t.Context(), dst)
	if err == nil {
		diffs, err = Diff(t.Context(), src, dst, newRules(t, transform.Config{}),
			DiffOptions{Keep: only(r.rules, db), Deferred: later})
	}
	if err != nil || len(diffs) != 3 {
		t.Fatal(diffs, err)
	}
	for _, d := range diffs {
		if d.Deferred || d.Skipped != "" {
			t.Errorf("%s", d)
		}
	}
}

// TestCheckKept: what cannot be known to have expired is refused.
func TestCheckKept(t *testing.T) {
	ttl := transform.Config{Skip: []string{"a.*=ttl"}}
	mapped := func(rules string) transform.Config {
		return transform.Config{Skip: ttl.Skip, Fields: []string{"a.*=" + rules}}
	}
	index := func(spec string) stream.Index {
		return stream.Index{Name: "i", Spec: js(t, spec)}
	}
	const at = `{"key":{"at":1},"name":"i","expireAfterSeconds":5}`
	for _, c := range []struct {
		rules          transform.Config
		options, index string
		typ            Type
		want           string
	}{
		{ttl, `{}`, at, TypeCollection, ""},
		{ttl, `{"capped":true}`, at, TypeCollection, "capped"},
		{ttl, `{"timeseries":{}}`, at, TypeTimeSeries, "time series"},
		{ttl, `{}`, `{"key":{"at":1},"expireAfterSeconds":5,"partialFilterExpression":{"p":{"$geoWithin":{}}}}`,
			TypeCollection, "partialFilterExpression"},
		{ttl, `{"collation":{"locale":"fr"}}`,
			`{"key":{"at":1},"expireAfterSeconds":5,"partialFilterExpression":{"p":"text"}}`, TypeCollection, "compares text"},
		{ttl, `{"collation":{"locale":"fr"}}`, `{"key":{"at":1},"expireAfterSeconds":5,"partialFilterExpression":{"p":5}}`,
			TypeCollection, ""},
		{ttl, `{}`,
			`{"key":{"at":1},"expireAfterSeconds":5,"partialFilterExpression":{"p":"text"},"collation":{"locale":"fr"}}`,
			TypeCollection, "compares text"},
		{mapped(`{"drop":["at"]}`), `{}`, at, TypeCollection, "index i expires documents"},
		{mapped(`{"mask":{"at":"month"}}`), `{}`, at, TypeCollection, "index i expires documents"},
		{mapped(`{"rename":{"at":"until"}}`), `{}`, at, TypeCollection, ""},
		{mapped(`{"drop":["other"]}`), `{}`, at, TypeCollection, ""},
	} {
		coll := Collection{NS: "a.c", Type: c.typ, Options: js(t, c.options), Indexes: []stream.Index{index(c.index)}}
		err := CheckSkip(coll, newRules(t, c.rules))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%v %s %s: %v, want %q", c.rules.Fields, c.options, c.index, err, c.want)
		}
	}
	c := Collection{NS: "a.c", Type: TypeCollection, Options: js(t, `{"expireAfterSeconds":60}`), Indexes: []stream.Index{
		index(at), index(`{"key":{"a":1,"b":1},"expireAfterSeconds":5}`),
		index(`{"key":{"a":"text"},"expireAfterSeconds":5}`), index(`{"key":{"a":1}}`)}}
	if s, err := ExpiryOf(c, newRules(t, ttl)); err != nil || s.String() != "_id + 60 s, at + 5 s" {
		t.Errorf("%s, %v", s, err)
	}
	if s, err := ExpiryOf(c, newRules(t, transform.Config{})); err != nil || s != nil {
		t.Errorf("without a rule: %s, %v", s, err)
	}
}
