package schema

import (
	"context"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// leastHeld is from where on an expiry counts as one that stands in for another.
const leastHeld = 1_600_000_000

// HoldTTL holds back the expiry that collections of the target have already,
// whoever made them, until RestoreTTL: else documents would go there that the source
// still changes. What is held back already, and what is no collection, is
// left as it is.
func (t *Target) HoldTTL(ctx context.Context, targetNSs []string) error {
	byDB := map[string]map[string]bool{}
	for _, ns := range targetNSs {
		db, _ := mongo.SplitNS(ns)
		if byDB[db] == nil {
			byDB[db] = map[string]bool{}
		}
		byDB[db][ns] = true
	}
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(t.o.Parallel)
	for db, wanted := range byDB {
		colls, err := listDB(ctx, t.c, db, nil, func(ns string) bool { return wanted[ns] })
		if err != nil {
			return err
		}
		for _, c := range colls {
			group.Go(func() error { return t.holdTTL(ctx, c) })
		}
	}
	return group.Wait()
}

func (t *Target) holdTTL(ctx context.Context, c Collection) error {
	if c.Type == TypeView {
		return nil
	}
	if v, err := c.Options.LookupErr("expireAfterSeconds"); err == nil {
		err := t.holdOne(ctx, HeldSetting{NS: c.NS, Was: &v})
		if err == nil {
			err = t.collMod(ctx, c.NS, rawValue(bson.D{{Key: "expireAfterSeconds", Value: "off"}}).Document())
		}
		if err != nil {
			return fmt.Errorf("hold back the expiry of %s on the target: %w", c.NS, err)
		}
	}
	all, err := indexes(ctx, t.c, c.DataNS())
	if err != nil {
		return err
	}
	for _, ix := range all {
		v, err := ix.Spec.LookupErr("expireAfterSeconds")
		if err != nil {
			continue
		}
		if n, ok := seconds(v); !ok || n >= leastHeld || c.Capped() {
			continue
		}
		if err := t.holdIndexTTL(ctx, c.NS, ix, v); err != nil {
			return fmt.Errorf("hold back the expiry of %s (index %q) on the target: %w", c.NS, ix.Name, err)
		}
	}
	return nil
}

func (t *Target) holdIndexTTL(ctx context.Context, ns string, ix stream.Index, v bson.RawValue) error {
	if err := t.holdOne(ctx, HeldSetting{NS: ns, Index: ix.Name, Was: &v, Spec: ix.Spec}); err != nil {
		return err
	}
	n, _ := seconds(v)
	stand := heldExpiry(n)
	if convertsTTL(t.c.Info.Version) {
		stand = math.MaxInt32
	}
	return t.collMod(ctx, ns, rawValue(bson.D{{Key: "index", Value: bson.D{{Key: "name", Value: ix.Name}, {Key: "expireAfterSeconds", Value: stand}}}}).Document())
}

// holdOne records what the target had. An expiry that is held back for the
// source already is the one to be restored.
func (t *Target) holdOne(ctx context.Context, h HeldSetting) error {
	old, there, err := t.heldOne(ctx, h.NS, h.Index)
	if err != nil {
		return err
	}
	was := h.Was
	if there {
		h = old
	}
	if h.Was = was; h.Expire == nil {
		h.Expire = was
	}
	t.log.Info("the target has an expiry, which is held back until finalize", "ns", h.NS, "index", h.Index, "expireAfterSeconds", was)
	return t.hold(ctx, h)
}
