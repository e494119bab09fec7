// Package alert has operators told of jobs that need them. Rules judge how jobs stand;
// what they find fires once and is resolved once, by comparing revisions in the store,
// whichever processes of the service look. Receivers are told by webhook and by mail,
// from a queue in the store, so that nobody waits for them.
package alert
