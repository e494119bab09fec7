// Package oplog reads the oplog of a replica set and turns it into the events of
// package stream. All that knows the form of an oplog entry is here. Transactions
// are held back until they commit.
package oplog
