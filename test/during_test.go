package test

import (
	"context"
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/job"
)

// ballast is a database with the collections that are copied first, because it
// is the largest, and last: of these copies the tests decide the end.
const ballast = "ballast"

// duringCopy runs the changes of the early ones when the catalog is pinned and
// nothing is copied yet, and those of the late ones when everything is but the
// ballast and the empty ones.
func duringCopy(t *testing.T, spec job.Spec, cases []*trial, change func([]*trial) []*trial) (*running, []*trial,
	error) {
	ctx := t.Context()
	b := &site{ctx: ctx, client: shared.sourceDB, base: ballast}
	err := attempt(func() {
		b.insert("first", bigDoc(1, maxDocument, "x"))
		b.insert("first", bigDoc(2, maxDocument, "x")) // for which one reply has no room
		b.insert("last", d("_id", nil))                // no document is smaller
	})
	if err != nil {
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
	// One fail point each: a server that is given another namespace for the same one lets
	// all finds pass until those that waited for the first have gone on.
	const more, find = "waitAfterPinningCursorBeforeGetMoreBatch", "waitInFindBeforeMakingBatch"
	hold(ctx, t, more, b.ns("first"))
	hold(ctx, t, find, b.ns("last"))
	defer func() { // whatever happens
		hold(context.WithoutCancel(ctx), t, more, "")
		hold(context.WithoutCancel(ctx), t, find, "")
	}()
	spec.Readers = 1 // is held up by the one cursor
	live, err := startJob(t, spec)
	if err != nil {
		return nil, cases, err
	}
	if err := live.reach(job.PhaseCopying); err != nil {
		return live, cases, err
	}
	early = change(early)
	stillCopying(t, live, "early")
	hold(ctx, t, more, "")
	err = live.until("copy of all but the ballast", func(s job.Status) bool {
		left := 0
		for _, c := range s.Copy.Collections {
			if !c.Done && c.BytesTotal > 0 && !strings.HasPrefix(c.Source, ballast+".") {
				left++
			}
		}
		return s.Phase == job.PhaseCopying && len(s.Copy.Collections) > 0 && left == 0
	})
	cases = append(early, late...)
	if err != nil {
		return live, cases, err
	}
	late = change(late)
	cases = append(early, late...)
	stillCopying(t, live, "late")
	hold(ctx, t, find, "")
	if err := live.reach(job.PhaseFollowing); err != nil {
		return live, cases, err
	}
	return live, cases, live.finalize(ctx)
}

// stillCopying makes sure that the test does what it says.
func stillCopying(t *testing.T, live *running, what string) {
	t.Helper()
	if p := live.Status().Phase; p != job.PhaseCopying {
		t.Errorf("the copy was over (phase %s) before the %s changes were", p, what)
	}
}

// hold lets what reads a namespace of the source wait at a fail point, nothing if it is
// empty. Finds held up keep a lock that stops commands which need the whole server.
func hold(ctx context.Context, t *testing.T, failPoint, ns string) {
	cmd := d("configureFailPoint", failPoint, "mode", "off")
	if ns != "" {
		cmd = d("configureFailPoint", failPoint, "mode", "alwaysOn", "data", d("nss", ns))
	}
	if err := shared.sourceDB.Database("admin").RunCommand(ctx, cmd).Err(); err != nil {
		t.Errorf("hold %s: %v", ns, err)
	}
}
