// Package shards reads a sharded cluster directly from its shards and merges their oplogs into one
// source. It omits the events of chunk moves, which change no document.
package shards
