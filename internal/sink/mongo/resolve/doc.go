// Package resolve decides what becomes of operations that the target does not
// take at once: it parks them until a barrier, tries them again in order, and
// then acts by policy with dead letters, overwriting, or the end of the job.
//
// It writes by package write alone, but for what belongs into one transaction
// with letters. It knows no partition, no segment and no stream: who calls it
// drains first.
package resolve
