package api

import (
	"net/http"
	"slices"

	"github.com/millrace/millrace/internal/service"
	"github.com/millrace/millrace/internal/service/operate"
)

// PathDrain is where a worker is drained.
const PathDrain = PathWorkers + "/{name}/drain"

type workers struct{ desk *operate.Desk }

func (w workers) routes() []route {
	return []route{
		{http.MethodGet, PathWorkers, service.Viewer, w.list, 0},
		{http.MethodPost, PathDrain, service.Admin, asking(w.drain), 0},
		{http.MethodDelete, PathDrain, service.Admin, asking(w.drain), 0},
	}
}

// list has of each worker the jobs that the caller sees.
func (w workers) list(c *call) (any, error) {
	list := w.desk.Workers()
	for i := range list {
		list[i].Jobs = slices.DeleteFunc(append([]string{}, list[i].Jobs...),
			func(name string) bool { return !c.caller.Sees(name) })
	}
	return Workers{list}, nil
}

// drain has a worker give back what it has, or takes that back, and replies with the
// worker.
func (w workers) drain(c *call) (any, error) {
	return w.desk.Drain(c.Context(), c.caller, c.PathValue("name"), c.Method == http.MethodPost)
}
