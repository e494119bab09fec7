// Package origin is the source of a job as the job reads it, whatever its shape: a
// replica set or the shards of a cluster. It gives the catalog as it stood at a position,
// the changes from there, single documents beside them, and of a cluster which shard
// owns what.
package origin
