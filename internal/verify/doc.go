// Package verify proves that two clusters hold the same documents, byte for
// byte, also while writes go on.
//
// By ranges, each pair of collections is cut into ranges of _id with raw index bounds, so
// that ids of every BSON type fall into exactly one range. Within a range both
// sides stream in _id order and are joined without knowing BSON's order:
// whatever has no partner yet waits, keyed by the bytes of its _id. Nothing is
// called a difference before it was looked up by _id on the other side; so the
// order in which documents arrive costs time at most, never truth.
//
// By digests, which is how all but small collections are compared, both sides
// are read in storage order and sums of hashes are compared first; only documents
// of groups that differ are then compared byte for byte. Where too much differs,
// perhaps because much is written meanwhile, ranges take over.
//
// Of a sharded cluster each shard is read directly where it can be reached, all of them
// with one ownership (owned); else its routers are read. Single documents are always
// looked up through the routers.
//
// While writes go on, a mismatch is looked at again until the two sides agree,
// or stand still without agreeing, or a time limit passes.
package verify
