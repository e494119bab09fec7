package console

import (
	"errors"
	"net/http"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// onExisting is the setting by which a job may drop collections of its target.
const onExisting = "on-existing"

// drops are collections of the target that a job would drop. Unknown says why they are not known, "" if they are.
type drops struct {
	Names   []string
	Total   int
	Unknown string
}

func dropsOf(d service.Definition, plan *service.DraftPlan) *drops {
	s, problems := config.CheckDefinition(d.Name, d.Settings)
	if len(problems) > 0 || s.OnExisting != job.ExistingDrop || plan != nil && plan.ExistingTotal == 0 {
		return nil
	}
	if plan == nil {
		return &drops{}
	}
	return &drops{Names: plan.Existing, Total: plan.ExistingTotal}
}

// start makes or edits a job. One that drops collections needs a confirmation: without it start returns them, with
// an error.
func (c *console) start(r *http.Request, v *visit, d service.Definition, edit bool) (*drops, error) {
	if dropsOf(d, nil) != nil && r.PostForm.Get("sure") != "drop" {
		plan, err := c.Desk.PrecheckDraft(r.Context(), v.who, d)
		if e, ok := errors.AsType[*operate.Error](err); ok && e.Code != operate.Conflict {
			return nil, err
		}
		if lost := dropsOf(d, plan); lost != nil {
			if err != nil {
				lost.Unknown = c.refusal(err).text
			}
			return lost, said{http.StatusConflict, "the job is not started: it drops collections of its target",
				"confirm this, or choose another value for " + onExisting}
		}
	}
	var err error
	if edit {
		_, err = c.Desk.Edit(r.Context(), v.who, d)
	} else {
		_, _, err = c.Desk.Create(r.Context(), v.who, d)
	}
	return nil, err
}
