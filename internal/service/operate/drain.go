package operate

import (
	"context"
	"slices"

	"github.com/millrace/millrace/internal/service"
)

// Drain has a worker take nothing more and give back what it has, or takes that back. It
// concerns all jobs, so that the caller has to see all.
func (d *Desk) Drain(ctx context.Context, c *service.Caller, name string, drain bool) (*service.Worker, error) {
	what := "drain"
	if !drain {
		what = "undrain"
	}
	err := allowed(c, service.Admin, "")
	if err == nil && len(c.Jobs) > 0 {
		err = refuse(Forbidden, "ask for a token of all jobs", "this concerns jobs that the token does not show")
	}
	if err != nil {
		return nil, d.notedRefusal(ctx, c, service.Change{What: what, Worker: name}, err)
	}
	list := d.Workers()
	i := slices.IndexFunc(list, func(w service.Worker) bool { return w.Name == name })
	if i < 0 {
		return nil, refuse(NotFound, "see the list of workers", "there is no worker %q", name)
	}
	w := &list[i]
	if drain {
		err = d.Hub.Workers.Drain(ctx, name, &service.Drain{StartedAt: w.StartedAt, By: c.Name, At: d.Now().UTC()})
	} else {
		err = d.Hub.Workers.Undrain(ctx, name)
	}
	if err != nil {
		return nil, err
	}
	w.Draining = drain
	return w, d.note(ctx, c, service.Change{What: what, Worker: name})
}
