// Package shards reads a sharded cluster at its shards: it finds them, and makes one
// source of their oplogs. The events of chunks that move between them are left out: a
// document that moves does not change.
package shards
