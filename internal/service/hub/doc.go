// Package hub stores the state of the service in NATS JetStream, in this process or in a cluster. Only hub knows
// NATS. No data depends on it: the target decides who may write (state.Store), a lease only who tries.
package hub
