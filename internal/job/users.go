package job

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/users"
)

// accounts keeps the target's users and roles equal to the source's. A nil one copies none.
type accounts struct {
	sides users.Sides
	rules *transform.Set
	store state.Store
	log   *slog.Logger

	mu     sync.Mutex // one pass at a time
	own    users.Own
	warned map[string]bool // of what the target has otherwise
}

// usersEvery is the interval of comparisons: users and roles have no changes to follow.
const usersEvery = time.Minute

// usersTime bounds a pass: a server that is stopped answers nothing.
const usersTime = time.Minute

func (a *accounts) resume(was []state.User) {
	for _, u := range was {
		a.own[u.ID] = append(a.own[u.ID], u.Sum)
	}
}

// keep copies at intervals until ctx ends. It retries after temporary failures.
func (a *accounts) keep(ctx context.Context, paused func() bool) error {
	pass := func() error {
		if paused() {
			return nil
		}
		_, err := a.copy(ctx)
		if mongo.Classify(err) == mongo.ClassRetry {
			a.log.Warn("cannot copy users and roles now; trying again", "error", err)
			return nil
		}
		return err
	}
	if err := pass(); err != nil {
		return err
	}
	return retry.Every(ctx, usersEvery, pass)
}

// copy makes the target's users and roles those of the source, and returns what still differs.
func (a *accounts) copy(ctx context.Context) ([]schema.Difference, error) {
	if a == nil {
		return nil, nil
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, usersTime)
	defer cancel()
	source, target, done, err := a.sides.Homes(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	if target != a.sides.Target.Cluster { // a connection of its own, which only the job's owner may write by
		target.Pool.SetGuard(a.store.Owned)
	}
	want, have, err := users.Both(ctx, source, target, a.rules)
	if err != nil {
		return nil, err
	}
	c := users.Plan(want, have, a.own)
	if c.Any() {
		// Noted first: what is written and not noted would be somebody else's after a restart.
		a.own.Begin(c)
		if err := a.note(ctx); err != nil {
			return nil, err
		}
		if err := users.Apply(ctx, target, c); err != nil {
			return nil, err
		}
		a.own.End(c)
		if err := a.note(ctx); err != nil {
			return nil, err
		}
		put, drop := c.Counts()
		a.log.Info("copied users and roles", "written", put, "removed", drop)
	}
	for _, d := range c.Foreign {
		if !a.warned[d.NS] {
			a.warned[d.NS] = true
			a.log.Warn("the target keeps a user or role that differs from the source's", "difference", d.String())
		}
	}
	return c.Foreign, nil
}

// adopt counts the target's users and roles as written by the job.
func (a *accounts) adopt(ctx context.Context) error {
	if a == nil {
		return nil
	}
	have, err := users.Read(ctx, a.sides.Target.Cluster, a.rules)
	if err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.own.Adopt(have)
	return a.note(ctx)
}

func (a *accounts) note(ctx context.Context) error {
	list := []state.User{}
	for id, sums := range a.own {
		for _, sum := range sums {
			list = append(list, state.User{ID: id, Sum: sum})
		}
	}
	return a.store.Mark(ctx, bson.D{{Key: "users", Value: list}})
}
