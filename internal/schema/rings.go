package schema

import (
	"context"
	"math"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// A source's oplog records what leaves a capped collection, as deletions. From 6.0 on users delete,
// too, and servers count such deletions before they have a place in the oplog. So a target that
// removes documents by itself may remove one that the source still has. Until finalize, its capped
// collections have room for everything, and lose what the oplog says.

// roomy is the size of such a collection in bytes. It allocates nothing. Servers take up to 1 PB.
const roomy = 1 << 48

// noMost is the default of cappedMax.
const noMost = math.MaxInt32

// The limits of a capped collection as collMod takes them.
const (
	cappedSize = "cappedSize"
	cappedMax  = "cappedMax"
)

// Roomy reports the options of a capped collection with room for everything.
func Roomy(options bson.Raw) bool {
	n, _ := options.Lookup("size").AsInt64OK()
	return n == roomy
}

// TellsRollOff reports that the source's changes include what leaves capped collections, and that
// the target can get their limits at the end. A standalone has no changes.
func TellsRollOff(source, target *mongo.Cluster) bool {
	fcv, err := mongo.ParseVersion(target.Info.FCV) // a router has none
	return source.Info.Kind != mongo.KindStandalone && source.Info.Version.AtLeast(6, 0) &&
		target.Info.Version.AtLeast(6, 0) && (err != nil || fcv.AtLeast(6, 0))
}

// KeepRoom gives capped collections room for everything until finalize, and defers their limits. It
// must be called before anything is changed.
func (l *link) KeepRoom(on bool) { l.room = on }

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

func withRoom(options bson.Raw) (bson.Raw, error) {
	options, err := without(options, "max")
	if err != nil {
		return nil, err
	}
	return with(options, "size", int64(roomy))
}

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
	return mongo.Wrap(err, "defer the limits of capped collection %s on the target", c.NS)
}

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
