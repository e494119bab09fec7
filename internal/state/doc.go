// Package state keeps what a job must remember across a kill, in the
// target cluster's own database "millrace": the job and its positions, the
// catalog it started from, and the progress of each slice.
//
// A save returns only when everything the job wrote before it is durable too
// (see Store.SameTerm), and only while this process still owns the job.
package state
