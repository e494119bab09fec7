// Package ownership knows which shard owns a document or a chunk: at a position, by the config servers' oplog (History,
// Primaries), and now, by their chunk map. A document on any other shard is an orphan. Callers decide which events
// count, which documents a cursor returns and where a range is placed.
package ownership
