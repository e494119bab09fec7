// Package query evaluates MongoDB filters on raw BSON exactly as the find command of
// a server does, without a collation. It says too on which paths a filter depends,
// and whether an update of the oplog may change its result.
//
// It is pure: it talks to nobody, decodes nothing into maps and keeps no state. What
// it could not evaluate as servers do, Parse refuses.
//
// # Where the facts come from
//
// The behaviour of servers was learned by experiment on 4.2, 4.4, 5.0 and 6.0. The
// tables of the tests hold what was seen, and TestServer asks servers the same, and
// wild filters on wild documents besides. What is less than plain:
//
//   - A path goes on in all documents of an array, and at the element that a number
//     names, but not into arrays in arrays. At its end an array stands for its elements
//     and for itself; but the element that a number at the end names stands for itself
//     alone. An array in which nothing is found is not a missing value: {"a.b": null}
//     does not find {a: []} or {a: [1]}.
//   - null is equal to missing and undefined values.
//   - A number that leads to an element without fields finds nothing below it, not a
//     missing value: {"a.0.b": null} does not find {a: [5]}.
//   - A missing value is below MaxKey and above MinKey.
//   - NaN equals NaN and is in no order with other numbers. All other numbers are
//     compared exactly, whatever their types.
//   - $mod and the $bits operators round decimals in different ways (bits.go).
//   - Nothing is found by a regex in text that is no UTF-8.
//   - Servers give up on a text on which a regex goes back more than some 200 000 times,
//     such as .*.*d on 700 characters, and do not find it. Match does.
//
// # What is refused
//
// $expr, $where, $text, $jsonSchema, places, and all that is no operator; comparisons
// with undefined; of regexes what Go's engine has not or has otherwise (regexparse.go).
package query
