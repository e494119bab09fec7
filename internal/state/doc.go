// Package state keeps what a job must remember across a kill. That is the job, its position and
// its owner, the catalog it started from, the progress of each slice, and the updates it
// skipped.
//
// It defines the stored data, the promises of any store (Store; statetest tests them), and the
// store in the target's own database "millrace" (Mongo). What the data mean to an engine does
// not belong here, nor does a source or a sink: a slice and a position are opaque.
package state
