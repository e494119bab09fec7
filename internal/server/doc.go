// Package server is the control of a running job over HTTP with JSON, its
// client, and the records by which the command line finds running jobs.
//
// It listens on loopback unless told otherwise. Whoever is to look at a job or
// to change it needs the process's token, so that neither another user's
// process nor a web page in the operator's browser can.
package server
