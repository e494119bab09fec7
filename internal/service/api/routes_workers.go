package api

import (
	"net/http"

	"github.com/millrace/millrace/internal/service"
)

// PathDrain is where a worker is drained.
const PathDrain = PathWorkers + "/{name}/drain"

// workerRoutes are those of workers.
func (a *API) workerRoutes() []route {
	return []route{
		{http.MethodGet, PathWorkers, service.Viewer, a.workers, 0},
		{http.MethodPost, PathDrain, service.Admin, a.drain(true), 0},
		{http.MethodDelete, PathDrain, service.Admin, a.drain(false), 0},
	}
}

// drain has a worker give back what it has, or takes that back, and replies with the
// worker.
func (a *API) drain(drain bool) action {
	return func(c *call) (any, error) {
		if _, err := c.query(); err != nil {
			return nil, err
		}
		return a.o.Desk.Drain(c.Context(), c.caller, c.PathValue("name"), drain)
	}
}
