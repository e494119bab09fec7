// Package resolve decides what becomes of operations that the target does not take at once. It
// parks them until a barrier and tries them again in order. Then it acts by policy: with dead
// letters, overwriting, or the end of the job.
//
// It writes by package write alone, but for writes that belong into one transaction with dead
// letters. It knows no partition, no segment and no stream: its caller drains first.
package resolve
