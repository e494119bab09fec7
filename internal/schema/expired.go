package schema

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/transform"
)

// ExpiryOf is how documents of a collection expire by its options and indexes, where
// rules keep on the target what expires; nil where they do not.
func ExpiryOf(c Collection, rules *transform.Set) (out expiry.Settings, err error) {
	if !rules.Route(c.NS).KeepsExpired || c.Type == TypeView {
		return nil, nil
	}
	if v, err := c.Options.LookupErr("expireAfterSeconds"); err == nil {
		out = addExpiry(out, v, nil)
	}
	for _, ix := range c.Indexes {
		if v, err := ix.Spec.LookupErr("expireAfterSeconds"); err == nil {
			out = addExpiry(out, v, ix.Spec)
		}
	}
	return out, cannotKeep(c.NS, out.Check(c.Collated()))
}

// addExpiry adds how documents expire by an index, or with none by the _id. By some
// indexes nothing expires.
func addExpiry(to expiry.Settings, after bson.RawValue, spec bson.Raw) expiry.Settings {
	n, ok := seconds(after)
	if !ok {
		return to // "off"
	}
	if spec == nil {
		return append(to, expiry.Setting{Field: "_id", Seconds: n})
	}
	key := keyFields(spec)
	if len(key) != 1 || indexKind(spec) != "" {
		return to
	}
	one := expiry.Setting{Field: key[0].Key(), Seconds: n, Collated: (Collection{Options: spec}).Collated()}
	if only := sub(spec, "partialFilterExpression"); len(only) > len(emptyDoc()) {
		one.Only = only
	}
	return append(to, one)
}

// Expiry is how documents of a target's namespace expire on the source, as far as
// schema changes were applied. foreign takes what the target had by itself for the source's.
func (d *deferrals) Expiry(ctx context.Context, ns string, collated, foreign bool) (out expiry.Settings, err error) {
	all, err := readDeferred(ctx, d.c, d.of(inNS(ns), bson.E{Key: "expire", Value: bson.D{{Key: "$exists", Value: true}}}))
	if err != nil {
		return nil, err
	}
	for _, one := range all { // those of indexes that the target goes without, too
		if !one.Foreign || foreign {
			out = addExpiry(out, *one.Expire, one.Spec)
		}
	}
	return out, cannotKeep(ns, out.Check(collated))
}

// cannotKeep says what can be done where it is not known what has expired.
func cannotKeep(ns string, why error) error {
	if why == nil {
		return nil
	}
	return mongo.WithHint(fmt.Errorf("of documents of %s it cannot be told which have expired: %w", ns, why),
		"skip delete in place of ttl, which leaves all deletions out, have the pattern of --skip leave the collection "+
			"out, or change the index on the source and start again with --restart")
}

// checkKept says why expired documents of a collection cannot be kept.
func checkKept(c Collection, rules *transform.Set) error {
	if _, err := ExpiryOf(c, rules); err != nil {
		return err
	}
	r := rules.Route(c.NS)
	m := r.Fields
	if m == nil || !r.KeepsExpired {
		return nil
	}
	for _, ix := range c.Indexes {
		if !has(ix.Spec, "expireAfterSeconds") {
			continue
		}
		if _, why := m.Index(ix.Spec); why != "" {
			return cannotKeep(c.NS,
				fmt.Errorf("index %s expires documents, and the target cannot have it: %s; leave the field as it is in "+
					"--fields, or rename it", ix.Name, why))
		}
	}
	if has(c.Options, "expireAfterSeconds") && m.TouchesPath("_id") {
		return cannotKeep(c.NS, errors.New("a rule for fields is about _id"))
	}
	return nil
}
