// Package worker takes leases, brings jobs to their desired states, and reports. A worker that hangs or is cut
// off loses its leases. The target's fence (state.Store) makes what it still sends harmless.
package worker
