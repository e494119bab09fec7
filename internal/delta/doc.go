// Package delta is the algebra of oplog updates on raw BSON. It parses an update, applies it to
// a document, composes two updates into one, translates one into a classic update statement,
// and reduces an _id to a key.
//
// Nothing here talks to a server, decodes into maps or keeps state. Output is appended to a buffer
// of the caller, and a Delta points into the bytes it was parsed from.
//
// The server's behaviour was found by experiment on mongod 6.0.5 (4.4.2 for $v:1): applyOps with
// updates made by hand, and the oplog of real updates. The tests on servers repeat this.
//
// # The two languages
//
// A $v:2 update is a diff. An object diff has these sections, in this order: d (delete), u
// (update in place), i (insert at the end) and any number of s<field> (sub diff). An array diff
// is {a:true, l:<length>, u<idx>, s<idx>} with ascending indexes. A $v:1 update is {$set,
// $unset} with dotted paths.
//
// # Duplicate field names
//
// If a document has a field name twice, the members of a replica set diverge. On the primary,
// $set and $unset change the first field and log a diff; a secondary that applies the diff changes
// every one of them (observed on 6.0.5). This package changes the first field, as the primary does.
//
// One fold ignores such names: one of two fields is deleted, a pipeline moves the other to the end,
// and the folded update leaves one in place. To prevent it, no field that is deleted and comes back
// could be folded.
package delta
