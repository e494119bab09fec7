package verify

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/zeebo/xxh3"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
	"github.com/millrace/millrace/internal/users"
)

// catalogs compares collections, options, indexes and views. While writes go on, it compares
// them again until a difference is final, as with documents.
func (e *Engine) catalogs(ctx context.Context, rules *transform.Set) ([]schema.Difference, error) {
	var all candidate
	for {
		began := time.Now()
		var diffs []schema.Difference
		err := again(ctx, e.o.Log, "compare the catalogs", func() (err error) {
			diffs, err = e.diff(ctx, rules)
			return err
		})
		if err != nil || !e.o.Online {
			return diffs, err
		}
		var text strings.Builder
		for _, d := range diffs {
			if !expected(d) {
				text.WriteString(d.String() + "\n")
			}
		}
		if text.Len() == 0 {
			return diffs, nil
		}
		if _, final := e.recheck.observe(&all, xxh3.HashString128(text.String()), digest{}, time.Now()); final {
			return diffs, nil
		}
		if err := pace.Pause(ctx, max(e.o.Recheck.Every, time.Since(began))); err != nil {
			return nil, err
		}
	}
}

// expected reports a difference that is as it has to be.
func expected(d schema.Difference) bool { return d.Skipped != "" || d.Deferred }

// diff compares the catalogs once.
func (e *Engine) diff(ctx context.Context, rules *transform.Set) (diffs []schema.Difference, err error) {
	err = e.seen(ctx, func() error {
		var o schema.DiffOptions
		if o.Deferred, err = schema.AllDeferred(ctx, e.clusters[target]); err != nil {
			return err
		}
		if of := e.shards[source].Load(); of != nil {
			if o.Building, err = of.Building(ctx, rules); err != nil {
				return e.unread(source, err)
			}
		}
		diffs, err = schema.Diff(ctx, e.clusters[source], e.clusters[target], rules, o)
		if err != nil || !e.o.Users {
			return err
		}
		others, err := users.Diff(ctx, e.clusters[source], e.clusters[target], rules)
		diffs = append(diffs, others...)
		return err
	})
	if only := e.o.Only; only != nil {
		diffs = slices.DeleteFunc(diffs, func(d schema.Difference) bool {
			return !only.Match(d.NS) && !slices.ContainsFunc(rules.Sources(d.NS), only.Match)
		})
	}
	return diffs, err
}
