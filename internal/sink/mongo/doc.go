// Package mongosink writes a stream of events to a MongoDB target, in parallel and folded.
//
// It routes events by namespace and _id to partitions, which keep the order of each document. A
// partition folds events (package fold) into batches without order and sends them (package write).
// Operations that the target does not take at once wait for a barrier (package resolve). Schema changes
// are barriers.
//
// The stream is cut into segments, one per batch of package stream. A position is applied when its
// segment and all before it are acknowledged.
//
// No command is built here, no update parsed, and no conflict decided.
package mongosink
