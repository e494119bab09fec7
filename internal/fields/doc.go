// Package fields maps the fields of documents by rules, on raw BSON. Rules keep or leave out fields,
// change their names, places and values, and add fields.
//
// It talks to nobody, keeps no state and decodes nothing into maps. A Map is immutable and safe for
// concurrent use.
//
// The page docs/reference/rules.md lists the rules: keep, drop, rename, move, set, from, convert, mask
// and compute.
//
// # What they mean
//
// Rules are declarative: all paths name the source document, so their order does not matter and
// nothing is chained. A path may have one rule for its value (convert, mask) and one for its place
// (rename, move), and then no rule is above or below it. Under keep, rules apply to kept paths and
// those below them. The field _id is always kept and never mapped.
//
// The name of an output belongs to its rule. A source field of that name is left out, even where
// the rule yields no value: a field of the result depends on its rule's sources alone.
//
// # Where fields stand
//
// Fields in place keep their order. Outputs that are not in place (set, from, compute, move) stand
// right after _id, in the order of the rules' text. An output with a dotted path, such as
// "meta.tenant", comes first in the source's field meta if that stays in place. Else it comes in a new
// document at the place of the first rule that needs it. A null in the way becomes
// a document. Any other value, and an array, is a Misfit. Without values nothing is made.
//
// # Arrays
//
// The rules drop, keep, convert and mask apply to the documents of arrays, and of arrays in
// arrays, as $unset and $project do. keep leaves out other elements. At its end a path stands for
// the complete value, also an array. An array on the path of move and from is a Misfit, as there
// are many values or none.
//
// # Values
//
// A missing field stays missing. Convert keeps null. The HMAC is SHA-256 over the type's byte and
// the value's bytes, in hex. The masks first and last keep that many characters of a text and write
// a star for each other; of a text that is not longer they keep none. A value of another type under
// first, last, year, month or day (in UTC) becomes null.
//
// Convert gives what $convert gives (TestServer asks servers), with these exceptions. A double that
// differs from the six digits that servers write becomes the shortest text that reads back as it. A
// text with more digits than a decimal has does not fit, where servers round; nor does a signed
// hexadecimal number, which servers read. Dates as text have to be ISO 8601. NaN has one form.
//
// # Expressions
//
// The variable doc is the source document. Both int and long are int, and a result of that type
// is a long. Types that CEL lacks (ObjectIDs, decimals, regexes and others) pass unchanged and
// can be compared with their kind. The call double(doc.price) reads a decimal, string(doc.ref)
// an ObjectID. A map in braces is refused, as it has no order. The steps of an expression are
// bounded. An update of fields that it does not read leaves its result alone.
//
// # Duplicate names
//
// If a document has a name twice, rules of fields in place apply to each. A moved value is read
// from the first, and all are removed.
package fields
