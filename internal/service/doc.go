// Package service has the types of a service of many jobs: definitions, desired states, leases, reports,
// workers, the audit trail. hub stores them, worker runs jobs, api answers. Checkpoint and fence of a job are
// on its target: if all of this is lost, no document is.
package service
