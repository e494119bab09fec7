// Package write turns operations into commands over one connection and reports for
// each operation what became of it.
//
// It decides no policy and parks nothing: a document that the target does not
// take is a result, and only what says nothing about a document is an error. It
// knows no partition, no segment and no dead letter.
package write
