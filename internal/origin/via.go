package origin

import (
	"context"
	"errors"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/shards"
)

// Via says how the documents of a sharded cluster are read.
type Via string

const (
	ViaAuto    Via = "auto"    // from the shards if they permit it, else through the routers
	ViaShards  Via = "shards"  // from the shards
	ViaRouters Via = "routers" // through the routers, which are all that is connected to
)

// OpenShards opens the shards behind a router if they are to be read. Else it returns nil, under
// ViaAuto with the reason. Addresses of shards say that they are to be read. "" is ViaAuto.
func OpenShards(ctx context.Context, router *mongo.Cluster, via Via, o shards.Options) (of *Sharded, why, err error) {
	given := len(o.Shards) > 0
	if via == ViaRouters {
		if given {
			err = mongo.WithHint(errors.New("shards have addresses, but are not to be read"),
				"leave out the addresses of shards, or read them: --via shards")
		}
		return nil, nil, err
	}
	c, err := shards.Open(ctx, router, o)
	if err == nil {
		if err = c.Direct(ctx); err == nil {
			return NewSharded(c), nil, nil
		}
		c.Close()
	}
	if via == ViaShards || given || ctx.Err() != nil {
		return nil, nil, err
	}
	return nil, err, nil
}
