package shards

import (
	"context"

	"github.com/millrace/millrace/internal/mongo"
)

// Known is how many collections are remembered.
func (f *ChangeFilter) Known() int { return len(f.colls) }

// TrustAll has the cluster's source pass on what shards tell of documents that they do
// not own.
func (c *Cluster) TrustAll() { c.trustAll = true }

// Primary has it ask who is a database's own shard.
func (f *ChangeFilter) Primary(of func(ctx context.Context, db string, at mongo.OpTime) (shard string, sure bool,
	err error)) {
	f.primary = of
}
