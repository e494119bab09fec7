package follow

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/transform"
)

// retain completes what a change does to retained collections: those whose copy has ended
// get no more changes.
func (f *follower) retain(ev *stream.Event, names *schema.NameChange) {
	put := names.Put[:0]
	for _, one := range names.Put {
		if one.Was != "" && one.Until.IsZero() {
			one.Since, one.Until = ev.At, f.CopyEnd(ev.Change.NS)
		}
		if one.Was != "" && one.Until.Before(ev.At) {
			if one.Retention = (schema.Retention{}); one.Target == "" {
				continue
			}
		}
		put = append(put, one)
	}
	names.Put = put
}

// Retained finds the collection that gets what happens under a source namespace at a position.
func (f *follower) Retained(ns string, at mongo.OpTime) (transform.Retained, bool) {
	one, _ := f.Source.Names.Source(ns)
	if one.Was == "" || !one.Since.Before(at) || one.Until.Before(at) {
		return transform.Retained{}, false
	}
	_, reused := f.Source.Names.Source(one.Was)
	return transform.Retained{NS: one.Was, Since: one.Since, Mixed: one.Mixed,
		Reused: reused && one.Was != ns || len(f.Source.Names.Retained(one.Was)) > 1}, true
}

// Absent reports a source namespace that the target has nothing of.
func (f *follower) Absent(ns string) bool { return f.Source.Names.Absent(ns) }

// Retains reports that a collection is retained under a name that the source has given to
// another one.
func (f *follower) Retains(ns string, at mongo.OpTime) bool {
	for _, one := range f.Source.Names.Retained(ns) {
		if !one.Until.Before(at) {
			return true
		}
	}
	return false
}

// endRetained forgets the retained collections: nothing of their copies is ahead any more.
func (f *follower) endRetained(ctx context.Context) error {
	f.stage.ForgetRetained()
	names := f.Source.Names.EndRetained()
	f.Source.Names.Change(names)
	return f.noteNames(ctx, names)
}
