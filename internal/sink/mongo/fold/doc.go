// Package fold combines all events of a document into one operation, so that a batch holds each document
// once and needs no order.
//
// It is pure and does no I/O. It knows events, updates and bytes, but no server, command or policy.
package fold
