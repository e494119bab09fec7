// Package copy is the full-copy engine: it reads collections slice by slice
// and inserts their documents, byte for byte, into collections that exist.
//
// Readers turn slices into chunks (one cursor reply each), a budget bounds the
// bytes of all chunks in flight, writers insert a chunk with one message.
// A slice's position moves past a chunk when it and all before it are
// acknowledged, so what a Store holds is never ahead of the target.
//
// Engine is crash-only: an error ends Run, and Run called again goes on from
// what the Store holds. Its methods are safe for concurrent use, but only one
// Run may be under way.
package copy
