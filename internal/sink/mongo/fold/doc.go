// Package fold makes one operation of all events of a document, so that a batch
// holds each document once and has no order.
//
// It is pure: it knows events, updates and bytes, and does no I/O. It knows no
// server, no command, no policy and no position but those of its events.
package fold
