// Package router is a router for tests: it stands in front of a real sharded
// cluster (config server and shards) and speaks the wire protocol to clients as
// a mongos does. There is no mongos to be had without a download site; config
// server and shards are real, so shard versions, migrations, transactions over
// shards and the coordinators of schema changes are real too.
//
// It was written from the public documentation, the driver specifications and
// what real servers answer. It is part of the lab and for tests only.
//
// How it differs from a mongos:
//
//   - It acts at the cluster with its own credentials. What a client may do is
//     not checked.
//   - A command of a client that hangs up is ended when it has its answer.
//   - No compression, no TLS towards clients, no exhaust cursors, no OP_QUERY but
//     for the handshake.
//   - No change streams, no tailable cursors, no text scores over several
//     shards, no explain over several shards, no map-reduce.
//   - An aggregation that has to be merged is merged by a server from the
//     shards' results as literal documents: 12 MB of them at most. $group
//     is computed on the shards only for the accumulators $sum, $min, $max,
//     $push and $addToSet.
//   - A batch of writes of which a shard refuses the command as a whole fails as
//     a whole, with that shard's error, not with one error a statement.
//   - Replies to writes have no opTime and no electionId.
//   - A changed shard key's value moves a document by a delete and an insert in
//     a transaction; the statement is not remembered for a retry after that.
//   - The routing table of a collection is read anew as a whole; with many
//     chunks that is slower than a mongos.
package router
