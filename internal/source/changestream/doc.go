// Package changestream turns the change stream of a deployment into the events of package stream. It reads
// one stream of all databases, from a replica set or through a router. docs/internals/change-streams.md says
// what it rests on.
//
// Only this package knows the form of a change event and of its resume token. It does not decide what
// happens to events, and it reads documents only where an event does not say how one has changed.
package changestream
