// Package router is a router for tests: it stands in front of a real sharded
// cluster (config server and shards) and speaks the wire protocol to clients as
// a mongos does. There is no mongos to be had without a download site; config
// server and shards are real, so shard versions, migrations, transactions over
// shards and the coordinators of schema changes are real too.
//
// It was written from the public documentation, the driver specifications and
// what real servers answer. It is part of the lab and for tests only.
//
// What is versioned is what servers check: commands that go to one shard, and reads
// of several, carry the shard's or the database's version, and are tried again with
// a newer table when a shard refuses them. Writes to several shards outside of a
// transaction go to all shards and are refused by none, as those of a mongos are.
//
// How it differs from a mongos:
//
//   - It acts at the cluster with its own credentials. Clients prove who they are
//     (the config servers check that, by SCRAM), but what they may do is not
//     checked. connectionStatus is answered for the client's user.
//   - A command of a client that hangs up is ended when it has its answer.
//   - No compression, no TLS towards clients, no exhaust cursors, no OP_QUERY but
//     for the handshake.
//   - No change streams, no tailable cursors, no sharded time series, no explain
//     over several shards, no map-reduce, no $out and $merge over several shards,
//     no management of users.
//   - An aggregation that has to be merged is merged by a server from the
//     shards' results as literal documents: 12 MB of them at most. $group
//     is computed on the shards only for the accumulators $sum, $min, $max,
//     $count, $push and $addToSet; for others all documents are merged.
//   - A batch of writes of which a shard refuses the command as a whole fails as
//     a whole, with that shard's error, not with one error a statement.
//   - Replies to writes have no opTime and no electionId.
//   - An update, or findAndModify, that gives a document to another shard by
//     changing its key does so in a transaction of a session of the router's own.
//     The client's statement is not remembered there: one that is sent again does
//     not find the document.
//   - Databases are made such that their collections can be sharded; a mongos
//     before 6.0 wants enableSharding first.
//   - A shard that joined less than 250 ms ago may be left out of a write to
//     several shards.
//   - A transaction that is open on other shards waits for a migration for two
//     tries, one that is not for longer than with a mongos.
//   - count on a view of a sharded collection reads the documents.
//   - The routing table of a collection is read anew as a whole; with many
//     chunks that is slower than a mongos.
package router
