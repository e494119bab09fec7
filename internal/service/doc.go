// Package service holds what a service of many jobs speaks of: definitions, wishes,
// leases, reports, workers, the audit trail. It holds types and what can be said of
// them without a look elsewhere. hub keeps them, worker runs jobs, api answers.
//
// The truth about data is not here: the checkpoint and the fence of a job are on its
// target, and all that is here may be lost without a document being lost.
package service
