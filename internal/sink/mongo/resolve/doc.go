// Package resolve decides about operations that the target does not take at once. It parks them until a
// barrier and retries them in order. Then policy decides: dead letters, overwriting, or the end of the
// job.
//
// It writes through package write, except in transactions with dead letters. Its caller drains first.
package resolve
