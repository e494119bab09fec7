// Package sharded starts real sharded clusters on the loopback interface: a set
// of config servers and sets of shard servers, all of them real mongods. There is
// no mongos among them: what a mongos asks the servers for is asked here, by the
// servers' own commands, which have been tried on each version. It holds what it
// takes to make such a cluster and to change its shape (databases, collections,
// chunks, shards, the balancer), and to say who owns which document. It routes
// nothing, but for [Cluster.Insert], which does for tests of its own.
package sharded
