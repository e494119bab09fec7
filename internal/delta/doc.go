// Package delta is the algebra of oplog updates on raw BSON. It parses an update, applies it to
// a document, composes two updates into one, translates one into a classic update statement,
// and reduces an _id to a key.
//
// Nothing here talks to a server, decodes into maps or keeps state. Every output is appended to
// a buffer of the caller, and a Delta only points into the bytes it was parsed from.
//
// # Where the facts come from
//
// The server's behaviour was found by experiment on mongod 6.0.5 (and 4.4.2 for $v:1). The
// experiments used applyOps with updates made by hand, and the oplog of real updates. Comments
// say what was observed. The tests against a real server repeat the experiments.
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
// $set and $unset change the first field and log a diff. A secondary that applies this diff
// changes every one of them (observed on 6.0.5). This package changes the first field only, as
// the primary does. That is what clients read and what Statement produces.
//
// One fold ignores such names. One of two fields is deleted, a pipeline then moves the other to
// the end, and the folded update leaves one where they stood. The alternative is not to fold a
// field that is deleted and comes back, which would cost all documents for these few.
package delta
