// Package oplog turns a replica set's oplog into the events of package stream. A Source follows it, a
// Look reads a range of positions, and a Spooler keeps entries on local disk. Shared lets sources read one
// oplog together. Transactions are kept until they commit.
//
// Only this package knows the form of an oplog entry and of a resume token. It does not decide what
// happens to events, or when to look or to spool.
package oplog
