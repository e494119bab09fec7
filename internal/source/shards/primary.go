package shards

import (
	"context"
	"fmt"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
)

// PrimaryAt returns a database's primary shard at a time, "" for none. sure is false if that is no
// longer known: then shard is the present one. PrimaryAt reads a snapshot of the config servers (from
// 5.0 on, for some minutes), else their oplog.
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

// lazyPrimaries opens the history of primary shards on demand. It is safe for concurrent use.
type lazyPrimaries struct {
	mu        sync.Mutex
	primaries *ownership.Primaries
	config    *mongo.Cluster // if the cluster has not opened it
}

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
