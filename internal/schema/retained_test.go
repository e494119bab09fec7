package schema

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
)

// retainedCase is a piece of life of a database in which operations are skipped.
type retainedCase struct {
	name          string
	major         int // of the least version of both sides
	skip          string
	before, after []string
	want          []string // the target's indexes and options of c in the end
	other         string   // what it has of another collection, after its name and a colon
}

func retainedCases() []retainedCase {
	const (
		xa    = `{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"x"}]}`
		ya    = `{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"y"}]}`
		xaTTL = `{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"x","expireAfterSeconds":10}]}`
		xbTTL = `{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"x","expireAfterSeconds":10}]}`
		dropX = `{"dropIndexes":"c","index":"x"}`
		mod   = `{"collMod":"c","index":{"name":"x","expireAfterSeconds":20}}`
		drop  = `{"drop":"c"}`
		away  = `admin {"renameCollection":"@.c","to":"@.e"}`
	)
	setup := func(more ...string) []string { return append([]string{seed}, more...) }
	again := func(first string, more ...string) []string { return append([]string{first, seed}, more...) }
	plain := []string{`x {"a":1}`}
	return []retainedCase{
		{name: "the dropped index stays", skip: "dropIndexes", before: setup(xa), after: []string{dropX, xbTTL, mod},
			want: plain},
		{name: "the dropped collection stays", skip: "drop", before: setup(xa), after: again(drop, xbTTL, mod), want: plain},
		{name: "the renamed collection stays", skip: "rename", before: setup(xa), after: again(away, xbTTL, mod),
			want: plain},
		{name: "an expiry without collMod", skip: "dropIndexes", before: setup(xa), after: []string{dropX, xbTTL},
			want: plain},
		{name: "by key", skip: "drop", before: setup(xa), after: again(drop, xbTTL,
			`{"collMod":"c","index":{"keyPattern":{"b":1},"expireAfterSeconds":20}}`, `{"dropIndexes":"c","index":{"b":1}}`),
			want: plain},
		{name: "hidden", major: 5, skip: "drop", before: setup(xa),
			after: again(drop, xbTTL, `{"collMod":"c","index":{"name":"x","hidden":true}}`), want: plain},
		{name: "unique", major: 6, skip: "drop", before: setup(xa),
			after: again(drop, `{"createIndexes":"c","indexes":[{"key":{"s":1},"name":"x","expireAfterSeconds":10}]}`,
				`{"collMod":"c","index":{"name":"x","prepareUnique":true}}`, `{"collMod":"c","index":{"name":"x","unique":true}}`),
			want: plain},
		{name: "dropped", skip: "drop", before: setup(xa), after: again(drop, xbTTL, dropX), want: plain},
		{name: "all dropped", skip: "drop", before: setup(xa),
			after: again(drop, xbTTL, `{"createIndexes":"c","indexes":[{"key":{"z":1},"name":"z"}]}`,
				`{"dropIndexes":"c","index":"*"}`), want: plain},
		{name: "of another collation", skip: "drop", before: setup(xa),
			after: again(drop,
				`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"x","collation":{"locale":"fr"},"expireAfterSeconds":10}]}`,
				mod), want: plain},
		{name: "of another filter", skip: "drop", before: setup(xa),
			after: again(drop,
				`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"x","partialFilterExpression":{"a":{"$gt":5}},"expireAfterSeconds":10}]}`, mod), want: plain},
		{name: "of another name", skip: "dropIndexes", before: setup(xa),
			after: []string{dropX, ya, `{"collMod":"c","index":{"name":"y","expireAfterSeconds":20}}`}, major: 6, want: plain},
		{name: "of another name, hidden", major: 5, skip: "drop", before: setup(xa),
			after: again(drop, ya, `{"collMod":"c","index":{"name":"y","hidden":true}}`, `{"dropIndexes":"c","index":"y"}`),
			want:  plain},
		{name: "with another one", skip: "dropIndexes", before: setup(xa),
			after: []string{dropX,
				`{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"x","expireAfterSeconds":10},{"key":{"z":1},"name":"z","expireAfterSeconds":30}]}`, mod},
			want: []string{`x {"a":1}`, `z {"z":1} expire=30`}},
		{name: "a unique one", skip: "dropIndexes", before: setup(xa),
			after: []string{dropX, `{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"x","unique":true,"sparse":true}]}`},
			want:  plain},
		{name: "a unique one of another name", skip: "dropIndexes",
			before: setup(
				`{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"x","unique":true,"sparse":true,"expireAfterSeconds":8}]}`),
			after: []string{dropX, `{"createIndexes":"c","indexes":[{"key":{"b":1},"name":"y","unique":true,"sparse":true}]}`,
				`{"dropIndexes":"c","index":"y"}`}, want: []string{`x {"b":1} unique`}},
		{name: "its creation is skipped", skip: "createIndexes,dropIndexes", before: setup(xa),
			after: []string{dropX, xbTTL, mod}, want: plain},
		{name: "made once more", skip: "dropIndexes", before: setup(xa), after: []string{dropX, xbTTL, dropX, xaTTL, mod},
			want: []string{`x {"a":1} expire=20`}},
		{name: "an expiry that was dropped", skip: "dropIndexes", before: setup(xaTTL), after: []string{dropX}, want: plain},
		{name: "an expiry of a collection that is made again", skip: "drop", before: setup(xaTTL), after: again(drop),
			want: plain},
		{name: "an expiry of a collection that is made again under another rule", skip: "rename", before: setup(xaTTL),
			after: again(away), want: plain},
		{name: "an expiry of a collection that is dropped for good", skip: "drop", before: setup(xaTTL),
			after: []string{drop}, want: []string{`x {"a":1} expire=10`}},
		{name: "clustered", major: 6, skip: "drop",
			before: []string{`{"create":"c","clusteredIndex":{"key":{"_id":1},"unique":true},"expireAfterSeconds":70}`},
			after:  []string{drop, `{"create":"c","clusteredIndex":{"key":{"_id":1},"unique":true}}`}},
		{name: "capped", major: 6, skip: "drop", before: []string{`{"create":"c","capped":true,"size":4096,"max":10}`},
			after: []string{`{"collMod":"c","cappedMax":5}`, drop, `{"create":"c","capped":true,"size":4096,"max":10}`},
			want:  []string{`max 10`, `size 4096`}},
		{name: "renamed onto it", skip: "drop", before: setup(xaTTL),
			after: []string{drop, `{"insert":"d","documents":[{"_id":9}]}`,
				`{"createIndexes":"d","indexes":[{"key":{"b":1},"name":"x","expireAfterSeconds":10},{"key":{"z":1},"name":"z","expireAfterSeconds":30}]}`,
				`admin {"renameCollection":"@.d","to":"@.c"}`, mod, `{"collMod":"c","index":{"name":"z","expireAfterSeconds":40}}`},
			major: 6, want: []string{`x {"a":1}`, `z {"z":1} expire=40`}},
		{name: "moved", skip: "drop", before: setup(xa), after: again(drop, xbTTL, away,
			`{"collMod":"e","index":{"name":"x","expireAfterSeconds":20}}`), other: `e:x {"a":1}`},
	}
}

// has lists the indexes and options of a collection of the target.
func (r *replica) has(ns string) (out []string) {
	r.t.Helper()
	coll, _, err := r.target.find(r.t.Context(), ns)
	if err != nil {
		r.t.Fatal(err)
	}
	all, _, err := indexes(r.t.Context(), dst, ns)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, ix := range all {
		text := ix.Name + " " + sub(ix.Spec, "key").String()
		text = strings.ReplaceAll(strings.ReplaceAll(text, `{"$numberInt":"1"}`, "1"), ": ", ":")
		v := ix.Spec.Lookup("expireAfterSeconds")
		if n, ok := expiry.Seconds(v); ok && !expiry.StandsIn(v) {
			text += fmt.Sprintf(" expire=%d", n)
		}
		for _, flag := range []string{"unique", "prepareUnique", "hidden"} {
			if truthyField(ix.Spec, flag) {
				text += " " + flag
			}
		}
		out = append(out, text)
	}
	for _, option := range []string{"expireAfterSeconds", "size", "max"} {
		if n, ok := coll.Options.Lookup(option).AsInt64OK(); ok {
			out = append(out, fmt.Sprint(option, " ", n))
		}
	}
	slices.Sort(out)
	return out
}

// TestRetained: what stays on the target because its drop is skipped is not changed by what
// happens to an index of the same name, or of a collection of the same name, that the source
// makes later; and the job goes on.
func TestRetained(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel()
	if dst.Info.Kind == mongo.KindSharded {
		t.Skip("every index of the shard key is the placer's")
	}
	for _, v := range []struct {
		name          string
		window, twice bool
	}{{"following", false, false}, {"twice", false, true}, {"within the window, twice", true, true}} {
		for _, c := range retainedCases() {
			t.Run(v.name+"/"+c.name, func(t *testing.T) {
				if !src.Info.Version.AtLeast(c.major, 0) || !dst.Info.Version.AtLeast(c.major, 0) {
					t.Skip("needs newer servers")
				}
				db := newDB()
				r := newReplica(t, newRules(t, transform.Config{Skip: []string{db + ".*=" + c.skip}}), db)
				r.run(db, c.before)
				r.copy()
				if err := r.target.Indexes.BuildDeferred(t.Context()); err != nil {
					t.Fatal(err)
				}
				r.window, r.twice = v.window, v.twice
				r.run(db, c.after)
				r.follow()
				if err := r.target.Indexes.BuildDeferred(t.Context()); err != nil {
					t.Fatal(err)
				}
				if err := r.target.Expiries.Restore(t.Context()); err != nil {
					t.Fatal(err)
				}
				ns, want := db+".c", c.want
				if name, other, ok := strings.Cut(c.other, ":"); ok {
					ns, want = db+"."+name, []string{other}
				}
				diffs, err := Diff(t.Context(), src, dst, r.rules, DiffOptions{Keep: only(r.rules, db)})
				if err != nil {
					t.Fatal(err)
				}
				for _, d := range diffs {
					if d.Skipped == "" {
						t.Errorf("not expected: %s", d)
					}
				}
				if got := r.has(ns); !slices.Equal(got, want) {
					t.Errorf("the target has %q, want %q", got, want)
				}
			})
		}
	}
}
