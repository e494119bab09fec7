// Package mongosink writes a stream of events to a MongoDB target, in parallel
// and folded.
//
// This package routes. Events go by namespace and _id to partitions, so that all events of one
// document meet in one place in order. A partition folds them (package fold), so that a batch
// has no order, and sends the batch (package write). Operations that the target does not take
// at once wait for a barrier (package resolve). Schema changes are barriers.
//
// The stream is cut into segments, one per batch of package stream. Engine.Applied reports a
// position as applied when its segment and all before it are acknowledged.
//
// No command is built here, no update is read, and no conflict is decided.
package mongosink
