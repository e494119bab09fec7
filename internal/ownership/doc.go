// Package ownership knows which shard owns a document or a chunk: at a position, as the config
// servers' oplog records it (History, Primaries), and now, as their chunk map does. A document
// on any other shard is an orphan.
//
// What follows from it belongs to those who read or write: which events count, which documents
// a cursor returns, where a range is placed.
package ownership
