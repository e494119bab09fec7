// Package placing shards the collections of a target that is a sharded cluster: it
// decides by which key, makes them sharded, cuts their keys into ranges, gives each to
// a shard while there are no documents yet, and keeps the balancer off them until the
// job is finalized. What it is about to do it notes on the target first, so that it can
// be done again, and taken back.
//
// All is done through routers. Nothing else of a job depends on where documents are:
// ranges that could not be placed, or that somebody moves, cost speed alone.
package placing
