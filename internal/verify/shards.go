package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/source/shards"
)

// sideName names a side for people.
func sideName(i int) string { return [...]string{"source", "target"}[i] }

// direct has the shards of a side be read directly.
func (e *Engine) direct(i int, of *origin.Sharded) { e.shards[i].Store(of) }

// openShards finds the shards behind a router. Where they cannot be reached the side is
// read through its routers. One whose address was given has to be reached.
func (e *Engine) openShards(ctx context.Context, i int, spec *Spec) (*origin.Sharded, error) {
	c := e.clusters[i]
	uri, given := [...]string{spec.Source, spec.Target}[i], [...]map[string]string{spec.SourceShards, spec.TargetShards}[i]
	if c.Info.Kind != mongo.KindSharded {
		if len(given) > 0 {
			return nil, mongo.WithHint(fmt.Errorf("the %s has no shards: it is a %s", sideName(i), c.Info.Kind),
				"leave out --"+sideName(i)+"-shard")
		}
		return nil, nil
	}
	found, err := shards.Open(ctx, c, shards.Options{URI: uri, Shards: given, Left: spec.ShardsLeft && i == source,
		Mongo: mongo.Options{AppName: appName}, Data: true})
	switch {
	case err == nil:
		of := origin.NewSharded(found)
		e.o.Log.Info("shards are read directly", "side", sideName(i), "shards", len(found.Shards))
		e.direct(i, of)
		return of, nil
	case len(given) > 0 || ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", sideName(i), err)
	}
	e.routed(i, err)
	return nil, nil
}

// routed says that a side is read through its routers.
func (e *Engine) routed(i int, why error) {
	e.o.Log.Warn("the "+sideName(i)+" is read through its routers, which takes longer", "why", why,
		"hint", cmp.Or(mongo.HintOf(why),
			"each shard has to be reachable from here, with the user of the routers or by --"+sideName(i)+"-shard name=URI"))
	e.note(fmt.Sprintf("the %s was read through its routers: %s", sideName(i), mongo.Concise(why.Error())))
}

// errUnread says that shards cannot be read directly.
type errUnread struct{ error }

func (e errUnread) Unwrap() error { return e.error }

// unread has a side of which a shard does not give what its routers give be read through
// those, from the next try on.
func (e *Engine) unread(i int, err error) error {
	if _, joined := errors.AsType[errUnread](err); !joined && !mongo.IsCode(err, mongo.CodeUnauthorized) {
		return err
	}
	if e.shards[i].Swap(nil) != nil {
		e.routed(i, err)
	}
	return mongo.Retry("shards cannot be read directly", err, "")
}

// notes are what a report says in words. Safe for concurrent use.
type notes struct {
	mu  sync.Mutex
	all []string
}

func (e *Engine) note(text string) {
	e.notes.mu.Lock()
	defer e.notes.mu.Unlock()
	e.notes.all = append(e.notes.all, text)
}

// advanceShards is advance for a side whose shards are read directly.
func (e *Engine) advanceShards(ctx context.Context, i int, of *origin.Sharded) error {
	at := map[string]bson.Timestamp{}
	var mu sync.Mutex
	err := of.Cluster().Each(ctx, func(ctx context.Context, n int) error {
		now, err := e.committed(ctx, of.Cluster().Shards[n].Cluster)
		mu.Lock()
		defer mu.Unlock()
		at[of.Cluster().Shards[n].Name] = now
		return err
	})
	if err == nil {
		e.shardsAt[i].Store(&at)
	}
	return err
}

// sameShards reports sides that have a shard in common.
func sameShards(a, b *origin.Sharded) bool {
	if a == nil || b == nil {
		return false
	}
	for _, x := range a.Cluster().Shards {
		for _, y := range b.Cluster().Shards {
			if x.Same(y.Cluster) {
				return true
			}
		}
	}
	return false
}
