package precheck

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
)

// Rival is another job with the same target whose rules lead to names that those
// of this job lead to as well. Until it is finalized they are its own, whether a
// process runs it or not.
type Rival struct {
	state.Job
	Names string // which, as a pattern
}

// Rivals finds the rivals of a job, by the rules alone, for both may create
// collections at any time. certain is as of state.Jobs.LoadOthers.
func Rivals(ctx context.Context, store state.Store, rules *transform.Set, certain bool) ([]Rival, error) {
	others, err := store.LoadOthers(ctx, certain)
	return rivalsAmong(others, rules), err
}

func rivalsAmong(others []state.Job, rules *transform.Set) (out []Rival) {
	for _, other := range others {
		names, found := "*.*", true // of rules that this version does not know
		if theirs, err := transform.Parse(other.Rules); err == nil {
			names, found = transform.Overlap(rules, theirs)
		}
		if found {
			out = append(out, Rival{other, names})
		}
	}
	return out
}

// Refusal says why a job may not begin beside its rivals, nil if it may: where
// that is allowed and neither side drops what it meets.
func Refusal(rivals []Rival, onExisting state.OnExisting, allowed bool) error {
	for _, r := range rivals {
		switch drops := onExisting == state.ExistingDrop || r.OnExisting == state.ExistingDrop; {
		case allowed && drops:
			return mongo.WithHint(errors.New(rivalsText(rivals)+"; one that began with --on-existing drop drops what the "+
				"other has made"),
				"merge with --on-existing merge in all of these jobs, or finalize the other first")
		case !allowed:
			return mongo.WithHint(errors.New(rivalsText(rivals)),
				"finalize the other job first, or remove it with millrace jobs drop if it is given up; change the rules; or "+
					"merge both with --allow-overlap")
		}
	}
	return nil
}

func rivalsText(rivals []Rival) string {
	const most = 3
	var texts []string
	for _, r := range rivals[:min(most, len(rivals))] {
		by := "stopped"
		if r.Owner != (state.Owner{}) {
			by = "last run by " + r.Owner.String()
		}
		texts = append(texts, fmt.Sprintf("job %s (phase %s, %s) has %s of this target too", r.ID, r.Phase, by, r.Names))
	}
	if more := len(rivals) - most; more > 0 {
		texts = append(texts, fmt.Sprintf("and %d jobs more", more))
	}
	return strings.Join(texts, "; ")
}

// rivals judges the other jobs of the target. One that has begun to write goes on
// beside those that were allowed since.
func (p *planner) rivals(context.Context) error {
	others, err := p.seen.others()
	rivals := rivalsAmong(others, p.Rules)
	if err != nil || len(rivals) == 0 {
		return err
	}
	if err := Refusal(rivals, p.OnExisting.Or(p.job.OnExisting), p.AllowOverlap); err != nil && !p.copied() {
		p.add(Fail, "other jobs", mongo.HintOf(err), "%s", err)
		return nil
	}
	p.add(Warn, "other jobs", "", "%s", rivalsText(rivals))
	return nil
}
