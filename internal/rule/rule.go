// Package rule decides what a job moves and under which name: filters and
// renames of namespaces, as pure functions.
package rule

// Set is an immutable set of rules. The zero value keeps everything under its
// own name (but never the servers' internal databases). Safe for concurrent use.
type Set struct {
}
