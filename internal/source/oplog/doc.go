// Package oplog reads a replica set's oplog and turns it into the events of package stream: as a Source,
// as a Look at a range of positions, and through a Spooler that keeps entries on local disk. It keeps
// transactions until they commit.
//
// Only this package knows the form of an oplog entry and of a resume token. It does not decide what
// happens to events, or when to look or to spool.
package oplog
