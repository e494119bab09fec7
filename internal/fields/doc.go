// Package fields maps the fields of documents by rules, on raw BSON. Rules say which fields are
// kept or left out, their names and places, how their values change, and which fields are
// added.
//
// It is pure: it talks to nobody, keeps no state and decodes nothing into maps. A Map does not
// change once it is read, and any number of goroutines may use it at once.
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
// Rules are declarative. All paths that are read name the source document. So the order of
// rules does not matter, and nothing is chained. A path may have one rule for its value
// (convert, mask) and one for its place (rename, move). Otherwise a path that has a rule is in
// no other rule, nor is a path above or below it. Under keep, a rule applies to a path that is
// kept, by itself or with a path above it. The field _id is always kept and never mapped.
//
// The name of an output belongs to its rule. A source field of that name is left out, also
// where the rule yields no value. So a field of the result depends on the rule's own sources
// alone.
//
// # Where fields stand
//
// Fields that stay in place keep their order. Outputs that are not in place (set, from,
// compute, move) stand right after _id, in the order of the rules' text. An output with a
// dotted path, such as "meta.tenant", stands in meta. If the source document has a field meta
// that stays in place, the output comes first in it. Otherwise a document meta is made, at the
// place of the first rule that needs it. The same holds at each level. A null in the way
// becomes a document in its place. Any other value in the way, and an array, is a Misfit. Where
// no output has a value, nothing is made.
//
// # Arrays
//
// The rules drop, keep, convert and mask apply to the documents of arrays, and of arrays in
// arrays, as $unset and $project do. Elements that are neither are left out by keep. At its end
// a path stands for the complete value: an array there is not taken apart. The rules move and
// from refuse an array on the way (a Misfit), as there are many values or none.
//
// # Values
//
// A missing field stays missing, whatever its rule. Convert leaves null as it is. The HMAC is
// SHA-256 over the type's byte and the value's bytes, in hex, of values of any type. The masks
// first and last keep that many characters of a text and write a star for each other. If the
// text is not longer, no character is kept. Where such a mask, or year, month, day (in UTC),
// meets a value of another type, the result is null.
//
// Convert gives what $convert gives (TestServer asks servers), with these exceptions. A double
// whose six digits, which servers write, are another number becomes the shortest text that
// reads back as it. A text with more digits than a decimal has does not fit, where servers
// round. Neither does a hexadecimal number with a sign, which servers read. Of dates as text
// only ISO 8601 is read. NaN is one of many in other bytes.
//
// # Expressions
//
// The variable doc is the source document. Both int and long are int, and a result of that type
// is a long. Types that CEL lacks (ObjectIDs, decimals, regexes and others) pass unchanged and
// can be compared with their kind. The call double(doc.price) reads a decimal, string(doc.ref)
// an ObjectID. A map in braces is refused, for it has no order. An expression ends after a
// number of steps. The fields that it reads are known: an update of other fields leaves its
// result alone.
//
// # Duplicate names
//
// If a document has a name twice, rules of fields in place apply to each. A moved value is read
// from the first, and all are taken away.
package fields
