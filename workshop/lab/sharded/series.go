package sharded

import (
	"context"
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/workshop/lab"
)

// Measure writes a measurement to the shard that owns the bucket of its meta value, as a
// mongos does: to the buckets' name, and marked as meant for the time series. The shard
// key is {meta: 1}.
func (c *Cluster) Measure(ctx context.Context, ns string, meta any, document bson.D) error {
	ctx, cancel := withTimeout(ctx, commandTimeout)
	defer cancel()
	db, name, _ := strings.Cut(ns, ".")
	buckets := "system.buckets." + name
	var last error
	err := lab.Poll(ctx, again, func() (bool, error) {
		last = c.measure(ctx, db, buckets, bson.D{{Key: "meta", Value: meta}}, document)
		return last == nil || !stale(last), nil
	})
	if err == nil {
		err = last
	}
	if err != nil {
		return fmt.Errorf("lab: write a measurement of %s: %w", ns, err)
	}
	return nil
}

func (c *Cluster) measure(ctx context.Context, db, buckets string, key, document bson.D) error {
	owner, at, err := c.ownerAt(ctx, db+"."+buckets, key)
	if err != nil {
		return err
	}
	s, err := c.shard(owner)
	if err != nil {
		return err
	}
	return s.client.Database(db).RunCommand(ctx, bson.D{
		{Key: "insert", Value: buckets}, {Key: "documents", Value: bson.A{document}}, {Key: "isTimeseriesNamespace", Value: true},
		{Key: "shardVersion", Value: at}, majority(),
	}).Err()
}
