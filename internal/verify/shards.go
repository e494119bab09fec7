package verify

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/origin"
	"github.com/millrace/millrace/internal/source/shards"
)

func sideName(i int) string { return [...]string{"source", "target"}[i] }

// openShards opens the shards behind a router. If they cannot be reached, the side is read through
// its routers, unless addresses were given.
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
		e.shards[i].Store(of)
		return of, nil
	case len(given) > 0 || ctx.Err() != nil:
		return nil, fmt.Errorf("%s: %w", sideName(i), err)
	}
	e.routed(i, err)
	return nil, nil
}

func (e *Engine) routed(i int, why error) {
	e.o.Log.Warn("the "+sideName(i)+" is read through its routers, which takes longer", "why", why,
		"hint", cmp.Or(mongo.HintOf(why),
			"each shard has to be reachable from here, with the user of the routers or by --"+sideName(i)+"-shard name=URI"))
	e.note(fmt.Sprintf("the %s was read through its routers: %s", sideName(i), mongo.Concise(why.Error())))
}

// errUnread reports that shards cannot be read directly.
type errUnread struct{ error }

func (e errUnread) Unwrap() error { return e.error }

// unread makes the next tries read a side through its routers if a shard refuses what they allow.
func (e *Engine) unread(i int, err error) error {
	if _, joined := errors.AsType[errUnread](err); !joined && !mongo.IsCode(err, mongo.CodeUnauthorized) {
		return err
	}
	if e.shards[i].Swap(nil) != nil {
		e.routed(i, err)
	}
	return mongo.Retry("shards cannot be read directly", err, "")
}

func (e *Engine) note(text string) {
	e.findings.mu.Lock()
	defer e.findings.mu.Unlock()
	e.findings.notes = append(e.findings.notes, text)
}

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
