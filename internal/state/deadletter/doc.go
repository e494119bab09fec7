// Package deadletter keeps, in the target's database millrace, the complete documents that a
// job could not write to the target, and those that it removed there to make room. It also says
// what may happen to them: the policy on conflicts.
//
// A document that the target refuses is in dispute. Its dead letter holds its state on the
// source at the letter's position. Each later change of the document is applied to the letter,
// and the outcome is tried on the target, until it fits there or the source deletes it. So a
// partial document is never used, and a dead letter is never out of date.
package deadletter
