// Package verify proves that two clusters hold the same documents, byte for
// byte, also while writes go on.
//
// By ranges, each pair of collections is cut into ranges of _id with raw index bounds, so that
// _ids of every BSON type are in exactly one range. Both sides of a range stream in _id order and
// are joined without knowledge of BSON's order: a document without a partner waits, by the bytes
// of its _id. A difference is reported only after a lookup by _id on the other side. So the order
// of documents can cost time, never exactness.
//
// By digests, as all but small collections are compared, both sides are read in storage order,
// and sums of hashes are compared. Only documents of groups that differ are compared byte for
// byte. Where too much differs, ranges are used instead.
//
// The shards of a sharded cluster are read directly where they can be reached, with one ownership
// (owned), else through the routers. Single documents are always read through the routers.
//
// While writes go on, a mismatch is looked at again until the two sides agree,
// or stand still without agreeing, or a time limit passes.
package verify
