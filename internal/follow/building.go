package follow

import (
	"context"
	"time"

	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// sourceBuilds is what a job that is to be finalized knows of index builds under way on
// the source. The stream tells of an index when its build has ended.
type sourceBuilds struct {
	looked time.Time // last
	since  time.Time // when one was found first; zero: none was found
}

// looksApart is the time between two looks for index builds.
const looksApart = time.Second

// awaitBuilds reports that index builds of the source have to end before the job
// finalizes. Those that last longer than IndexWait have the finalize rejected.
func (f *follower) awaitBuilds(ctx context.Context) (wait bool, err error) {
	b := &f.builds
	if time.Since(b.looked) < looksApart {
		return !b.since.IsZero(), nil
	}
	colls, err := f.Ask.Source.Building(ctx, f.Rules)
	if err != nil {
		return true, err
	}
	found, err := schema.BuildingNames(colls, f.Rules)
	if err != nil {
		return true, err
	}
	b.looked = time.Now()
	if len(found) == 0 {
		f.endBuilds()
		return false, nil
	}
	names := schema.NameAll(found)
	if b.since.IsZero() {
		b.since = b.looked
		f.Log.Info("finalize waits for index builds of the source", "indexes", names)
		if f.phase == state.PhaseFollowing {
			if err := f.enter(ctx, state.PhaseFollowing); err != nil {
				return true, err
			}
		}
	}
	if lasted := b.looked.Sub(b.since); f.IndexWait > 0 && lasted >= f.IndexWait {
		f.endBuilds()
		return true, f.Rejected(found)
	}
	f.Progress.Wait("index builds of the source to end: " + names)
	return true, nil
}

// endBuilds ends the wait for index builds.
func (f *follower) endBuilds() {
	if !f.builds.since.IsZero() {
		f.Progress.Wait("")
	}
	f.builds = sourceBuilds{}
}
