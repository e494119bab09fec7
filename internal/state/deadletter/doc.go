// Package deadletter keeps, in the target's database millrace, the documents
// that a job could not write to the target and those that it took off it to
// make room, whole, and says what may happen to them: the policy on conflicts.
//
// A document that the target refuses is in dispute. Its letter holds the state
// that it has on the source at the letter's position; each later change of the
// document is applied to the letter, and the outcome tried on the target, until
// it fits there or the source deletes it. So nothing is ever made of half a
// document, and a letter is never out of date.
package deadletter
