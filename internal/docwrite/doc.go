// Package docwrite knows how a document is written exactly, and what a server's
// write error means. It holds the statements, commands and judgements that the
// copy and the sink for MongoDB share. It may not decide when something is sent
// or what becomes of a document that is refused, and knows no job and no letter.
package docwrite
