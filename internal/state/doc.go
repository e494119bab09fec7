// Package state keeps what a job must remember across a kill: the job and its
// position, the catalog it started from, the progress of each slice, the
// updates it skipped; and whose the job is.
//
// Here are what is kept, what any store promises (Store; statetest tries it),
// and the store in the target's own database "millrace" (Mongo). What the data
// mean to an engine does not belong here, nor does a source or a sink: a slice
// and a position are opaque.
package state
