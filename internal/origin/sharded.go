package origin

import (
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/source/shards"
	"github.com/millrace/millrace/internal/stream"
)

// Sharded is a sharded cluster.
type Sharded struct{ *shards.Cluster }

// Changes is what users do there, all shards together. The names are those at the
// position of a run.
func (c *Sharded) Changes(o oplog.Options, names func() []schema.Name) stream.Source {
	n := int64(len(c.Shards))
	o.ReadAheadBytes, o.TxnBufferBytes = max(o.ReadAheadBytes/n, 1), max(o.TxnBufferBytes/n, 1)
	return c.Stream(o, merge.Options{AheadBytes: o.ReadAheadBytes, BatchBytes: int64(o.BatchBytes)}, func() (there []shards.Collection) {
		for _, one := range names() {
			there = append(there, shards.Collection{NS: one.NS, UUID: one.UUID})
		}
		return there
	})
}

// ReadFrom is the first change that whoever stands at a position needs of any shard.
func (c *Sharded) ReadFrom(p stream.Position) (mongo.OpTime, error) { return shards.ReadFrom(p) }
