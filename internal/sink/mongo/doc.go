// Package mongosink writes a stream of events to the target, in parallel and folded.
//
// Events are routed by namespace and _id to partitions, so that all events of
// one document meet in one place in order. A partition folds the events of a
// document into one operation; a batch then holds each document once, so it
// has no order and goes out as one unordered delete, update and insert a
// namespace. Schema changes are barriers.
//
// The stream is cut into segments (one tail.Batch each). A position is applied
// when its segment and all before it are acknowledged: see Engine.Applied.
package mongosink
