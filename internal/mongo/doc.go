// Package mongo connects to a deployment and knows what every other package
// needs to know of it: its identity, version, replication positions, and what
// an error means for a job (retry, conflict, window, fatal).
package mongo
