// Package oplog reads the oplog of a replica set and turns it into the events of package
// stream. It does so as a Source that goes on, as a Look at what lies between two positions,
// and through a Spooler that keeps entries on local disk. Transactions are kept until they
// commit.
//
// Only this package knows the form of an oplog entry. Neither the raw entry leaves it, nor what
// a position needs beside its time. What is done with events, and when to look or to spool, is
// not decided here.
package oplog
