// Package spans makes OpenTelemetry traces of requests, runs of jobs and verifications, from steps (job.Event). A
// nil *Spans makes none. No span has a secret, a text of an error or a value of a document.
package spans
