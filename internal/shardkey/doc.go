// Package shardkey compares the values of shard keys as servers do, hashes them as
// hashed keys are, and takes them out of documents.
package shardkey
