// Package mongo connects to a deployment and knows what every other package needs to know of
// it: its identity, version and replication positions. It also classifies errors for a job
// (retry, conflict, window, fatal).
package mongo
