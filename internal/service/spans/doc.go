// Package spans makes traces of what the service does, by OpenTelemetry: requests of the
// API, how a worker takes a job and brings it through its phases, verifications. Engines
// know nothing of it: they tell of steps (job.Event). A nil *Spans, where nothing is
// configured, makes none. No span has a secret, a text of an error or a value of a document.
package spans
