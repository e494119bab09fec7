// Package scan knows how a collection is read, for the copy and for the comparison alike. It
// chooses the strategy for a server and a kind of collection, and where to cut a collection
// into slices. It walks a slice, and goes on exactly where it was when a cursor has died or a
// document at a bound was deleted. Slice is also the stored form of a slice's progress.
//
// What depends on servers and collections alone belongs here. The packages above decide what is
// done with the documents, in which order slices are read and by how many, and what is kept of
// them.
package scan
