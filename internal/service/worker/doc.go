// Package worker runs the jobs of the service: it takes leases, brings each job to
// where its definition wants it, and reports. A worker that dies, hangs or is cut off
// loses its leases; that what it still sends does no harm is the target's fence
// (state.Store), not the lease.
package worker
