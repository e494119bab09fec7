// Package query evaluates MongoDB filters on raw BSON exactly as the find command of a server does,
// without a collation. It also finds the paths on which a filter depends, and whether an update of
// the oplog may change its result. Parse refuses what it could not evaluate as servers do.
//
// The package talks to nobody, decodes nothing into maps and keeps no state.
//
// # Where the facts come from
//
// The behaviour was found by experiment on 4.2, 4.4, 5.0 and 6.0. The tables of the tests hold what
// was seen. TestServer asks servers the same, and runs random filters on random documents. Less
// obvious facts:
//
//   - A path continues in all documents of an array, and at the element that a number
//     names, but not in arrays of arrays. At its end an array stands for its elements
//     and for itself. An element that a number names at the end stands for itself
//     alone. An array in which nothing is found is not a missing value: {"a.b": null}
//     does not find {a: []} or {a: [1]}.
//   - null is equal to missing and undefined values.
//   - A number that leads to an element without fields finds nothing below it, not a
//     missing value: {"a.0.b": null} does not find {a: [5]}.
//   - A missing value is below MaxKey and above MinKey.
//   - NaN equals NaN and has no order among other numbers. All other numbers are
//     compared exactly, whatever their types.
//   - $mod and the $bits operators round decimals in different ways (bits.go).
//   - A regex finds nothing in text that is not valid UTF-8.
//   - Servers give up on a text after some 200 000 backtracks, such as .*.*d on 700
//     characters, and do not find it. Match does.
//
// # What is refused
//
// $expr, $where, $text, $jsonSchema, geospatial and unknown operators; comparisons with undefined;
// of regexes what Go's engine lacks or does otherwise (regexparse.go).
package query
