// Package hub keeps what the service knows in NATS JetStream: definitions, leases,
// reports, workers and the audit trail. It is all that knows NATS: a server in this
// process, or a cluster elsewhere.
//
// Nothing here is needed to keep data right. Who may write to a target is decided
// there (state.Store); a lease says who is to try.
package hub
