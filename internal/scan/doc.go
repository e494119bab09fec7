// Package scan knows how a collection is read, for the copy and for the
// comparison alike: the strategy that a server and a kind of collection take,
// where to cut a collection into slices, how one slice is walked, and how the
// walk goes on exactly where it was when a cursor has died or a document at a
// bound was deleted. Slice is also what is stored of a slice's progress.
//
// Here belongs what depends on servers and collections alone. What is done with
// the documents, in which order slices are read and by how many, and what is
// kept of them belongs to the packages above.
package scan
