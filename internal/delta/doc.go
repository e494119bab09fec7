// Package delta is the algebra of oplog updates on raw BSON: parse an update,
// apply it to a document, compose two updates into one, translate one into a
// classic update statement, and reduce an _id to a key.
//
// Nothing here talks to a server, decodes into maps or keeps state. Every
// output is appended to a buffer of the caller, and a Delta only points into
// the bytes it was parsed from.
//
// # Where the facts come from
//
// The behaviour of the server was learned by experiment on mongod 6.0.5 (and
// 4.4.2 for $v:1): applyOps with updates made by hand, and the oplog of real
// updates. Comments name what was observed; the tests against a real server
// repeat the experiments.
//
// # The two languages
//
// A $v:2 update is a diff. An object diff has the sections d (delete), u
// (update in place), i (insert at the end) and any number of s<field> (sub
// diff), in this order; an array diff is {a:true, l:<length>, u<idx>, s<idx>}
// with ascending indexes. A $v:1 update is {$set, $unset} with dotted paths.
//
// # Duplicate field names
//
// When a document has the same field name twice, MongoDB's own members
// disagree: $set and $unset change the first field on the primary, which logs
// a diff, and the secondary that applies this diff changes every one of them
// (observed on 6.0.5). This package does as the primary did, the first field
// only, because that is what clients read and what Statement produces too.
//
// One fold knows of no such names: of two fields one is deleted, a pipeline then moves
// the other to the end, and both updates together leave one where they stood. Not to
// fold a field that is deleted and comes back would cost all documents for these.
package delta
