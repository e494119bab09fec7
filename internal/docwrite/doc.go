// Package docwrite is the one way in which documents are written exactly: it frames write
// commands, sends them, reads what the server answers, and knows what each write error means.
// The copy and the sink for MongoDB share it. It may not decide when something is sent or
// what becomes of a document that is refused, and knows no job and no dead letter.
package docwrite
