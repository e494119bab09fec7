// Package shards reads a sharded cluster at its shards: it finds them, and makes one
// source of their oplogs. What the shards tell of chunks that move between them is
// left out: a document that moves does not change.
package shards
