package precheck

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
)

// history looks whether histories can be kept with the rest of the job's settings.
func (p *planner) history(context.Context) error {
	if !p.Rules.Histories() {
		return nil
	}
	fail := func(hint, format string, args ...any) { p.add(Fail, "history", hint, format, args...) }
	const pair = "leave --history out, or use a replica set on either side"
	src, dst := p.Source.Info, p.Target.Info
	switch {
	case src.Kind != mongo.KindReplicaSet:
		fail(pair, "the source is a %s: which change of a document comes first is told by a replica set alone", src.Kind)
	case dst.Kind != mongo.KindReplicaSet:
		fail(pair, "the target is a %s: histories on one were not tried", dst.Kind)
	case !dst.Version.AtLeast(4, 4):
		fail("upgrade it to 4.4 or newer",
			"the target is MongoDB %s, which cannot look for the versions of many documents at once ($unionWith)", dst.Version)
	}
	if p.Mode == state.ModeIncremental {
		fail("use --mode all", "in incremental mode nothing tells what the documents were at the beginning")
	}
	if p.OnExisting.Or(p.job.OnExisting) == state.ExistingMerge {
		fail("use --on-existing fail or drop",
			"with --on-existing merge the target may have documents that are no versions of this job")
	}
	if p.Skips {
		fail("use --on-conflict stop",
			"with --on-conflict skip or overwrite a version that the target refuses would be missing, and later ones are "+
				"made of it")
	}
	return nil
}
