// Package write turns operations into commands over one connection and reports each operation's outcome.
//
// It decides no policy and parks nothing. A refused document is a result; only what is not about a
// document is an error.
package write
