package schema

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/workshop/lab"
)

// TestRebuildInterrupted: what makes an index of the overlap refuse documents, or refuse
// none, breaks off half way and is applied again.
func TestRebuildInterrupted(t *testing.T) {
	t.Parallel()
	const on, off = `"prepareUnique":true`, `"prepareUnique":false`
	for _, c := range []struct {
		name, index string
		mods        []string // of which the last one breaks off
		breaks      string   // the command of the target that fails
	}{
		{"refuses documents", "a", []string{on}, "dropIndexes"},
		{"refuses documents and expires them", "t", []string{on}, "dropIndexes"},
		{"is plain again", "a", []string{on, off}, "createIndexes"},
		{"is plain again and expires documents", "t", []string{on, off}, "createIndexes"},
	} {
		t.Run(c.name, func(t *testing.T) {
			db := newDB()
			r := newReplica(t, newRules(t, transform.Config{}), db)
			if !src.Info.Version.AtLeast(6, 0) || !dst.Info.Version.AtLeast(6, 0) {
				t.Skip("needs a source and a target of 6.0")
			}
			if dst.Info.Kind == mongo.KindSharded {
				t.Skip("routers of the lab have no fail points")
			}
			r.run(db, []string{seed,
				`{"createIndexes":"c","indexes":[{"key":{"a":1},"name":"a"},{"key":{"t":1},"name":"t","partialFilterExpression":{"t":{"$exists":true}},"expireAfterSeconds":3600}]}`})
			r.copy()
			o := ApplyOptions{Rules: r.rules, Names: r.names, Overlap: true}
			apply := func(mod string, o ApplyOptions) error {
				_, err := r.target.Changes.Apply(t.Context(), stream.Change{Kind: stream.ChangeCollMod, NS: db + ".c",
					Options: js(t, mod)}, o)
				return err
			}
			for i, setting := range c.mods {
				mod := `{"index":{"name":"` + c.index + `",` + setting + `}}`
				do(t, src, db, `{"collMod":"c",`+mod[1:])
				last := i == len(c.mods)-1
				if last {
					do(t, dst, db,
						`admin {"configureFailPoint":"failCommand","mode":{"times":1},"data":{"failCommands":["`+c.breaks+`"],"errorCode":10107,"namespace":"@.c"}}`)
				}
				if err := apply(mod, o); err == nil == last {
					t.Fatalf("%s: %v", mod, err)
				}
				if !last {
					continue
				}
				o.Maybe = true
				for range 2 {
					if err := apply(mod, o); err != nil {
						t.Fatalf("%s again: %v", mod, err)
					}
				}
			}
			r.finish()
		})
	}
}

// TestHintOfFailures: a refused option is for an operator to change, an election is not.
func TestHintOfFailures(t *testing.T) {
	lab.NeedServers(t)
	t.Parallel()
	if dst.Info.Kind == mongo.KindSharded {
		t.Skip("routers of the lab have no fail points")
	}
	db := newDB()
	do(t, dst, db, `{"create":"c"}`)
	for code, hint := range map[string]bool{"72": true, "11602": false, "10107": false} {
		do(t, dst, db,
			`admin {"configureFailPoint":"failCommand","mode":{"times":1},"data":{"failCommands":["collMod"],"errorCode":`+code+`,"namespace":"@.c"}}`)
		err := NewTarget(dst, TargetOptions{}).collMod(t.Context(), db+".c", js(t, `{"validationLevel":"off"}`))
		if err == nil || mongo.HintOf(err) != "" != hint {
			t.Errorf("%v: %q", err, mongo.HintOf(err))
		}
	}
}
