// Package alert notifies operators of jobs that need attention. Rules evaluate the state of jobs.
// An alert fires once and is resolved once, by comparing revisions in the store, whichever process
// evaluates it. Receivers get webhooks and mails from a queue in the store.
package alert
