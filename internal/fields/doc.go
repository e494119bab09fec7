// Package fields maps the fields of documents by rules, on raw BSON: which are kept
// or left out, under which name and where they stand, what becomes of their values,
// and which are added.
//
// It is pure: it talks to nobody, keeps no state and decodes nothing into maps. A Map
// does not change once it is read; any number of goroutines may use it at once.
//
// # The rules
//
// A document of sections, each of them optional:
//
//	keep     a list of paths; all other fields are left out
//	drop     a list of paths that are left out; not beside keep
//	rename   {"tel": "phone"}: top level to top level; the field stays where it stands
//	move     {"contact.mail": "mail"}: any path to any path
//	set      {"tenant": "a"}: a constant
//	from     {"origin": "$namespace", "total2": "total"}: $namespace, $operation,
//	         $clusterTime, or the value of another field
//	convert  {"price": {"to": "decimal", "otherwise": "null"}}: as $convert does.
//	         otherwise is keep, null, drop or fail (without it)
//	mask     {"email": {"hmac": "env:NAME"}, "phone": {"last": 4}, "iban": "null",
//	         "born": "month"}
//	compute  {"sum": "doc.a * doc.b"} or {"expr": …, "otherwise": …}: an expression of
//	         CEL over doc, the source document. otherwise is null, drop or fail
//
// # What they mean
//
// Rules are declarative: all paths that are read name the source document, so their
// order among each other is no matter, and nothing is chained. A path may have one rule
// of its value (convert, mask) and one of its place (rename, move); otherwise a path
// that has a rule is in no other rule, nor is a path above or below it. Under keep a
// rule is of a path that is kept, whole or with what is above it. _id is always kept
// and never mapped.
//
// The name of an output belongs to its rule: a source field of that name is left out,
// also where the rule has no value to give. So what stands in a field of the result
// depends on the rule's own sources alone.
//
// # Where fields stand
//
// Fields that stay in place keep their order. Outputs that are not in place (set, from,
// compute, move) stand right after _id, in the order of the rules' text. One with a
// dotted path, such as "meta.tenant", stands in meta: where the source document has a
// field meta that stays in place, first in it; otherwise in a document meta that is
// made, at the place of the first rule that needs it. It is the same at each level. A
// null in the way becomes a document in its place. Any other value in the way,
// and an array, is a Misfit. Where no output has a value, nothing is made.
//
// # Arrays
//
// drop, keep, convert and mask go into the documents of arrays, and of arrays in
// arrays, as $unset and $project do: keep leaves out elements that are neither. At its
// end a path stands for the whole value: an array there is not taken apart. move and
// from refuse an array on the way (a Misfit), as there are many values or none.
//
// # Values
//
// A missing field stays missing, whatever its rule. Convert leaves null as it is. The
// HMAC is SHA-256 over the type's byte and the value's bytes, in hex, of values of any
// type. first and last keep so many characters of a text and write a star for each
// other; of one that is not longer no character is kept. Where such a mask, or year,
// month, day (in UTC), meets a value of another type, the result is null.
//
// Convert gives what $convert gives (TestServer asks servers), but for this: a double whose
// six digits, which servers write, are another number becomes the shortest text that reads
// back as it; a text with more digits than a decimal has does not fit, where servers round;
// neither does a hexadecimal number with a sign, which servers read; and of dates as text
// ISO 8601 alone is read. NaN is one of many in other bytes.
//
// # Expressions
//
// doc is the source document. int and long are int, and a result of that type is a long.
// What CEL has not (ObjectIDs, decimals, regexes and others) passes as it is and can be
// compared with its kind; double(doc.price) reads a decimal, string(doc.ref) an ObjectID.
// A map in braces is refused, for it has no order. An expression ends after a number of
// steps, and what it reads is known: an update of other fields leaves it alone.
//
// # Duplicate names
//
// Of a name that a document has twice, rules of fields in place mean each. What is moved
// is read from the first, and all are taken away.
package fields
