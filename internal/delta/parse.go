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

import (
	"encoding/binary"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrMalformed: the bytes are no valid update, or no valid BSON.
	ErrMalformed = errors.New("malformed update")
	// ErrUnsupported: a valid update in an unknown form, such as the binary diffs (section b) of
	// newer servers.
	ErrUnsupported = errors.New("unsupported update format")
	// ErrTooLarge: the resulting document would exceed the server's limit.
	ErrTooLarge = errors.New("document too large")
)

var errBadUpdate = fmt.Errorf("%w: no valid BSON", ErrMalformed)

const (
	// maxDepth bounds recursion. The server nests documents up to 180 for users, 200 inside.
	maxDepth = 200
	// maxSize is the server's largest document: 16 MiB for users, 16 KiB more inside.
	maxSize = 16<<20 + 16<<10
	// maxAhead bounds what ApplyAhead makes.
	maxAhead = 8 * maxSize
)

// Kind is the form of an oplog update's `o`.
type Kind uint8

// The forms of an update.
const (
	// Invalid is none of the others.
	Invalid Kind = iota
	// Replacement is a whole document.
	Replacement
	// Modifiers is {$v:1, $set, $unset}, with or without $v.
	Modifiers
	// Diff is {$v:2, diff:{...}}.
	Diff
)

func (k Kind) String() string { return [...]string{"invalid", "replacement", "modifiers", "diff"}[k] }

// Delta is a parsed update, Modifiers or Diff: a view into the bytes that it was parsed from. The
// zero value is invalid.
type Delta struct {
	o    []byte // the whole `o`
	at   int32  // Diff: where in it the diff document starts
	kind Kind
}

func (d Delta) diff() []byte {
	b := d.o[d.at:]
	return b[:binary.LittleEndian.Uint32(b)]
}

func (d Delta) Kind() Kind { return d.kind }

// In returns the update as a view into copied, a copy of Raw.
func (d Delta) In(copied []byte) Delta {
	d.o = copied
	return d
}

// Raw returns the update as an oplog `o` document.
func (d Delta) Raw() bson.Raw { return d.o }

// KindOf returns the form of an oplog update without checking its content.
//
// A document with an _id is a replacement, whatever other fields it has, such as {_id:1, $v:2,
// diff:{}}. The fields of a diff may come in any order (observed on 6.0.5).
func KindOf(o bson.Raw) Kind {
	kind, first := Modifiers, true
	for f, ok := range bsonraw.Fields(o) {
		switch {
		case !ok:
			return Invalid
		case string(f.Name) == "_id", first && !dollar(f.Name) && string(f.Name) != "diff":
			return Replacement
		case string(f.Name) == "$v":
			switch v, _ := f.ID().AsFloat64OK(); v {
			case 1:
			case 2:
				kind = Diff
			default:
				return Invalid
			}
		}
		first = false
	}
	if first { // an empty document replaces everything
		return Replacement
	}
	return kind
}

// ParseAs reads an update for which KindOf returned Modifiers or Diff. It checks all of the
// update, so that no later step can meet a malformed one.
func ParseAs(k Kind, o bson.Raw) (Delta, error) {
	switch k {
	case Diff:
		return parseDiff(o)
	case Modifiers:
		return parseModifiers(o)
	}
	return Delta{}, fmt.Errorf("%w: neither $v:1 nor $v:2", ErrMalformed)
}

// View returns what ParseAs made of the same form and bytes, without checks.
func View(k Kind, o bson.Raw) Delta {
	if k == Modifiers {
		return Delta{kind: Modifiers, o: o}
	}
	d, _ := viewDiff(o)
	return d
}

func viewDiff(o []byte) (Delta, bool) {
	at := 4
	for f := range bsonraw.Fields(o) {
		at += len(f.Raw)
		if string(f.Name) == "diff" {
			return Delta{kind: Diff, o: o, at: int32(at - len(f.Value))}, f.Type == typeObject
		}
	}
	return Delta{}, false
}

func parseDiff(o []byte) (Delta, error) {
	d, ok := viewDiff(o)
	if !ok {
		return Delta{}, fmt.Errorf("%w: $v:2 without a diff object", ErrMalformed)
	}
	if err := checkObjectDiff(d.diff(), 0); err != nil {
		return Delta{}, err
	}
	return d, nil
}

// IsArrayDiff tells the diff of an array from that of an object: its first section is "a".
func IsArrayDiff(diff []byte) bool {
	return len(diff) > 6 && diff[4] == typeBool && diff[5] == 'a' && diff[6] == 0
}

func checkDiff(diff []byte, depth int) error {
	if depth > maxDepth {
		return fmt.Errorf("%w: nested deeper than %d", ErrMalformed, maxDepth)
	}
	if IsArrayDiff(diff) {
		return checkArrayDiff(diff, depth)
	}
	return checkObjectDiff(diff, depth)
}

// checkObjectDiff accepts what the server accepts (observed on 6.0.5, errors 4770503, 4728000).
func checkObjectDiff(diff []byte, depth int) error {
	var space [inlineEntries]entry
	list, err := diffEntries(space[:0], diff)
	if err != nil {
		return err
	}
	for i := range list {
		if list[i].op != rankSub {
			continue
		}
		if err := checkDiff(list[i].val, depth+1); err != nil {
			return err
		}
	}
	return checkUnique(list)
}

// The sections of an object diff in the order in which they must come.
const (
	rankDelete = 1 + iota
	rankUpdate
	rankInsert
	rankSub
)

func sectionRank(f field) (int, error) {
	if f.Type != typeObject {
		return 0, fmt.Errorf("%w: section %q is not an object", ErrMalformed, f.Name)
	}
	switch string(f.Name) {
	case "d":
		return rankDelete, nil
	case "u":
		return rankUpdate, nil
	case "i":
		return rankInsert, nil
	case "b":
		return 0, fmt.Errorf("%w: binary diff (section b)", ErrUnsupported)
	}
	if len(f.Name) > 0 && f.Name[0] == 's' {
		return rankSub, nil
	}
	return 0, fmt.Errorf("%w: unknown section %q", ErrMalformed, f.Name)
}

// checkArrayDiff accepts {a:true, l:int32, u<idx>, s<idx>...}. It refuses what harms a 6.0.5
// server: an index at or beyond l ends it, descending indexes run it out of memory.
func checkArrayDiff(diff []byte, depth int) error {
	arr, ok := openArrayDiff(diff)
	if !ok {
		return fmt.Errorf("%w: array diff", ErrMalformed)
	}
	last := -1
	for b := arr.changes; len(b) > 0; {
		c, rest, ok := nextChange(b)
		if !ok {
			return fmt.Errorf("%w: array diff", ErrMalformed)
		}
		if c.idx <= last {
			return fmt.Errorf("%w: array index %d after %d", ErrMalformed, c.idx, last)
		}
		if arr.cut && c.idx >= arr.length {
			return fmt.Errorf("%w: array index %d beyond length %d", ErrMalformed, c.idx, arr.length)
		}
		if c.sub {
			if err := checkDiff(c.f.Value, depth+1); err != nil {
				return err
			}
		}
		last, b = c.idx, rest
	}
	return nil
}

type arrayDiff struct {
	cut     bool // l is there
	length  int
	changes []byte
}

func openArrayDiff(diff []byte) (arrayDiff, bool) {
	b, ok := bsonraw.Body(diff)
	if !ok || len(b) == 0 {
		return arrayDiff{}, false
	}
	f, b, ok := bsonraw.Next(b)
	if !ok || string(f.Name) != "a" || f.Type != typeBool || f.Value[0] != 1 {
		return arrayDiff{}, false
	}
	if len(b) == 0 {
		return arrayDiff{}, true
	}
	f, rest, ok := bsonraw.Next(b)
	if !ok || string(f.Name) != "l" {
		return arrayDiff{changes: b}, ok
	}
	if f.Type != typeInt32 { // the server takes no other number here
		return arrayDiff{}, false
	}
	n, _ := f.Int()
	return arrayDiff{cut: true, length: int(n), changes: rest}, n >= 0 && n <= maxSize
}

type change struct {
	idx int
	sub bool
	f   field
}

func nextChange(b []byte) (change, []byte, bool) {
	f, rest, ok := bsonraw.Next(b)
	if !ok || len(f.Name) < 2 || f.Name[0] != 'u' && f.Name[0] != 's' {
		return change{}, nil, false
	}
	idx, ok := arrayIndex(f.Name[1:])
	if !ok {
		return change{}, nil, false
	}
	sub := f.Name[0] == 's'
	if sub && f.Type != typeObject {
		return change{}, nil, false
	}
	return change{idx: idx, sub: sub, f: f}, rest, true
}

func dollar(name []byte) bool { return len(name) > 0 && name[0] == '$' }
