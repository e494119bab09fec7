package api

import (
	"context"
	"net/http"

	"github.com/millrace/millrace/internal/service"
)

// PathDrain is where a worker is drained.
const PathDrain = PathWorkers + "/{name}/drain"

// workerRoutes are those of workers.
func (a *API) workerRoutes() []route {
	return []route{
		{http.MethodGet, PathWorkers, service.Viewer, a.workers},
		{http.MethodPost, PathDrain, service.Admin, a.drain(true)},
		{http.MethodDelete, PathDrain, service.Admin, a.drain(false)},
	}
}

// drain has a worker give back what it has, or takes that back, and replies with the
// worker.
func (a *API) drain(drain bool) func(*call) error {
	return func(c *call) error {
		if _, err := c.query(); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeout(c.Context(), storeTime)
		defer cancel()
		w, err := a.o.Desk.Drain(ctx, c.caller, c.PathValue("name"), drain)
		if err != nil {
			return err
		}
		return c.ok(http.StatusOK, w)
	}
}
