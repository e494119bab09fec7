package shards

import (
	"context"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
)

// PrimaryAt is the shard on which a database's collections that are not sharded were at
// a time, "" for none. sure is false where that is not known any more: then it is the one
// of now. Config servers read as of a time from 5.0 on, for some minutes; else their oplog
// is read.
func (c *Cluster) PrimaryAt(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool, err error) {
	if !c.Before(5, 0) {
		shard, err := c.primaryAsOf(ctx, db, at)
		if err == nil || !mongo.Forgotten(err) && mongo.Classify(err) != mongo.ClassFatal {
			return shard, true, mongo.Wrap(err, "find the shard of database %s", db)
		}
	}
	all, err := c.primaries.open(ctx, c)
	if err != nil {
		return "", false, fmt.Errorf("find which shard had database %s at %s: %w", db, at, err)
	}
	return all.At(ctx, db, at.TS)
}

func (c *Cluster) primaryAsOf(ctx context.Context, db string, at mongo.OpTime) (string, error) {
	ctx, end, err := c.withClusterTime(ctx, c.Router, at)
	if err != nil {
		return "", err
	}
	defer end()
	snapshot := bson.D{{Key: "level", Value: "snapshot"}, {Key: "atClusterTime", Value: at.TS}}
	return ownership.Primary(ctx, c.Router, db, snapshot)
}

// lazyPrimaries opens the primaries of a cluster when they are asked for. It is safe for
// concurrent use.
type lazyPrimaries struct {
	mu        sync.Mutex
	primaries *ownership.Primaries
	config    *mongo.Cluster // where the cluster has not opened them
}

// open gives the primaries, by the cluster's config servers.
func (p *lazyPrimaries) open(ctx context.Context, c *Cluster) (_ *ownership.Primaries, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.primaries != nil {
		return p.primaries, nil
	}
	config := c.config
	if config == nil {
		if config, err = c.connectConfig(ctx, "recent moves are recorded only in the config servers' oplog: they have to be "+
			"reachable from here, with the user of the router or by --source-shard config=…"); err != nil {
			return nil, err
		}
		p.config = config
	}
	p.primaries = ownership.NewPrimaries(c.readConfig(config), c.Router)
	return p.primaries, nil
}

func (p *lazyPrimaries) close() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.config != nil {
		p.config.Close()
		p.config, p.primaries = nil, nil
	}
}
