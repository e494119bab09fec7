package schema

import (
	"context"
	"fmt"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// A source's oplog records what rolls off a capped collection, as deletions. From 6.0 on users
// delete, too, and inserts no longer determine when something rolls off. A server counts what
// others delete before that deletion has its place in the oplog. So a target that removes
// documents by itself may remove one that the source still has. Until finalize its capped
// collections have room for everything, and lose what the oplog says.

// roomy is the size in bytes of a capped collection of the target until finalize.
// Nothing is allocated for it. Servers take up to 1 PB.
const roomy = 1 << 48

// noMost is what servers make of a cappedMax that is none.
const noMost = math.MaxInt32

// The limits of a capped collection as collMod takes them.
const (
	cappedSize = "cappedSize"
	cappedMax  = "cappedMax"
)

// Roomy reports that options are those of a capped collection that lets nothing go
// by itself until finalize.
func Roomy(options bson.Raw) bool {
	n, _ := options.Lookup("size").AsInt64OK()
	return n == roomy
}

// TellsRollOff reports that the changes of a source tell what rolls off capped
// collections, and that a target can be given their limits at last. A standalone
// server has no changes.
func TellsRollOff(source, target *mongo.Cluster) bool {
	fcv, err := mongo.ParseVersion(target.Info.FCV) // a router has none
	return source.Info.Kind != mongo.KindStandalone && source.Info.Version.AtLeast(6, 0) &&
		target.Info.Version.AtLeast(6, 0) && (err != nil || fcv.AtLeast(6, 0))
}

// KeepRoom says whether capped collections have room for everything until finalize.
// Their limits, of those that are made and of those that are there, are deferred.
// It is said before anything is changed.
func (l *link) KeepRoom(on bool) { l.room = on }

// limitsOf are the limits of a capped collection as collMod takes them; nil for
// other collections, and for one that has room for everything.
func limitsOf(options bson.Raw) *bson.RawValue {
	size, _ := options.Lookup("size").AsInt64OK()
	if !truthyField(options, "capped") || Roomy(options) {
		return nil
	}
	limits := bson.D{{Key: cappedSize, Value: size}}
	if most, _ := options.Lookup("max").AsInt64OK(); most > 0 && most < noMost {
		limits = append(limits, bson.E{Key: cappedMax, Value: most})
	}
	v := rawValue(limits)
	return &v
}

// withRoom takes the limits out of the options of a capped collection.
func withRoom(options bson.Raw) (bson.Raw, error) {
	options, err := without(options, "max")
	if err != nil {
		return nil, err
	}
	return with(options, "size", int64(roomy))
}

// makeRoom defers the limits of a capped collection that the target has.
func (e *expiries) makeRoom(ctx context.Context, c Collection) error {
	limits := limitsOf(c.Options)
	if !e.room || limits == nil {
		return nil
	}
	err := e.note(ctx, Deferred{DeferredID: e.deferred.id(c.NS, limitsIndex), Was: limits})
	if err == nil {
		room := bson.D{{Key: cappedSize, Value: int64(roomy)}}
		if has(limits.Document(), cappedMax) {
			room = append(room, bson.E{Key: cappedMax, Value: int64(0)}) // none
		}
		err = e.collMod(ctx, c.NS, rawDoc(room))
	}
	if err != nil {
		return fmt.Errorf("defer the limits of capped collection %s on the target: %w", c.NS, err)
	}
	return nil
}

// withLimits is a collection of the target with the limits that it gets at last.
func (c *creator) withLimits(ctx context.Context, have Collection) (Collection, error) {
	if !Roomy(have.Options) {
		return have, nil
	}
	d, _, err := c.deferred.one(ctx, have.NS, limitsIndex)
	if err != nil || d.Expire == nil {
		return have, err
	}
	limits := d.Expire.Document()
	for option, key := range map[string]string{"size": cappedSize, "max": cappedMax} {
		if v, err := limits.LookupErr(key); err == nil {
			if have.Options, err = with(have.Options, option, v); err != nil {
				return have, err
			}
		}
	}
	return have, nil
}

// changeLimits takes new limits of a capped collection out of a collMod where
// they are deferred.
func (c *changer) changeLimits(ctx context.Context, ns string, options bson.Raw) (rest bson.Raw, err error) {
	if !c.room || !has(options, cappedSize) && !has(options, cappedMax) {
		return options, nil
	}
	d, _, err := c.deferred.one(ctx, ns, limitsIndex)
	if err != nil {
		return nil, err
	}
	limits := emptyDoc()
	if d.Expire != nil {
		limits = d.Expire.Document()
	}
	for _, key := range []string{cappedSize, cappedMax} {
		v, err := options.LookupErr(key)
		if err != nil {
			continue
		}
		if n, _ := v.AsInt64OK(); key == cappedMax && (n <= 0 || n >= noMost) {
			limits, err = without(limits, key)
		} else {
			limits, err = with(limits, key, v)
		}
		if err != nil {
			return nil, err
		}
	}
	v := rawValue(limits)
	d.Expire = &v
	if err := c.deferred.save(ctx, d); err != nil {
		return nil, err
	}
	return without(options, cappedSize, cappedMax)
}
