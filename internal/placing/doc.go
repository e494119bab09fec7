// Package placing shards the collections of a target that is a sharded cluster, through its routers. It chooses a shard
// key, splits the empty collection into ranges and moves each to a shard. It keeps the balancer off until the job is
// finalized. It notes each step on the target first, so that it can be repeated or undone.
//
// Nothing else of a job depends on where documents are: ranges in another place only cost speed.
package placing
