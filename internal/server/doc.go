// Package server is the control of a running job over HTTP with JSON, its
// client, and the records by which the command line finds running jobs.
//
// It listens on loopback unless told otherwise. Whoever is to change a job
// needs the process's token, and off loopback also whoever is to look at it,
// so that neither another user's process nor a web page in the operator's
// browser can act on the job.
package server
