package test

import (
	"context"
	"strings"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/replicate"
)

// ballast is a small database of whose copy the tests decide the end.
const ballast = "ballast"

// duringCopy runs the changes of the early ones when the catalog is pinned and
// nothing is copied yet, and those of the late ones when everything but the
// ballast is.
func duringCopy(t *testing.T, spec replicate.Spec, cases []*trial, change func([]*trial) []*trial) (*running, []*trial, error) {
	ctx := t.Context()
	b := &site{ctx: ctx, client: shared.sourceDB, base: ballast}
	if err := attempt(func() { b.insert("b", d("_id", 1)) }); err != nil {
		return nil, cases, err
	}
	var early, late []*trial
	for _, c := range cases {
		if c.way == wayEarly {
			early = append(early, c)
		} else {
			late = append(late, c)
		}
	}
	job, err := startJob(t, spec)
	if err != nil {
		return nil, cases, err
	}
	// From here on each exit lets the finds go.
	defer holdFinds(context.WithoutCancel(ctx), t, "off", "")
	if err := job.reach("creating"); err != nil {
		return job, cases, err
	}
	holdFinds(ctx, t, "alwaysOn", "")
	early = change(early)
	holdFinds(ctx, t, "alwaysOn", b.ns("b"))
	err = job.until("copy of all but the ballast", func(s replicate.Status) bool {
		left := 0
		for _, c := range s.Copy.Collections {
			if !c.Done && !strings.HasPrefix(c.Source, ballast+".") {
				left++
			}
		}
		return s.Phase == replicate.PhaseCopying && len(s.Copy.Collections) > 0 && left == 0
	})
	if err != nil {
		return job, append(early, late...), err
	}
	late = change(late)
	if p := job.Status().Phase; p != replicate.PhaseCopying {
		t.Errorf("the copy was over (phase %s) before the late changes were", p)
	}
	holdFinds(ctx, t, "off", "")
	cases = append(early, late...)
	if err := job.reach(replicate.PhaseFollowing); err != nil {
		return job, cases, err
	}
	return job, cases, job.finalize(ctx)
}

// holdFinds lets the source's finds of a namespace (all finds if it is empty)
// wait before their first document while the mode is "alwaysOn".
func holdFinds(ctx context.Context, t *testing.T, mode, ns string) {
	cmd := d("configureFailPoint", "waitInFindBeforeMakingBatch", "mode", mode)
	if ns != "" {
		cmd = append(cmd, bson.E{Key: "data", Value: d("nss", ns)})
	}
	if err := shared.sourceDB.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
		t.Errorf("hold finds: %v", err)
	}
}
