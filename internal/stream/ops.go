package stream

import (
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// Ops is a set of operations on documents and collections of a source.
type Ops uint16

// The operations, as operators name them.
const (
	OpInsert  Ops = 1 << iota
	OpUpdate      // of fields
	OpReplace     // of a whole document
	OpDelete
	OpCreate // of a collection or view
	OpDrop   // of a collection or view, also with its database
	OpRename
	OpCreateIndexes
	OpDropIndexes
	OpCollMod // of a collection, view or index
	OpTTL     // deletion of a document that has expired: a part of OpDelete
)

// OpDocuments are the operations on documents.
const OpDocuments = OpInsert | OpUpdate | OpReplace | OpDelete | OpTTL

func opNames() []string {
	return []string{"insert", "update", "replace", "delete", "create", "drop", "rename", "createIndexes", "dropIndexes",
		"collMod", "ttl"}
}

// OpNames lists what ParseOps takes.
func OpNames() []string { return append(opNames(), "dropDatabase") }

// ParseOps parses names separated by commas; "none" is none.
func ParseOps(text string) (o Ops, err error) {
	if strings.TrimSpace(text) == "none" {
		return 0, nil
	}
	databases := false
	for name := range strings.SplitSeq(text, ",") {
		name = strings.TrimSpace(name)
		i := slices.IndexFunc(opNames(), func(known string) bool { return strings.EqualFold(known, name) })
		switch {
		case i >= 0:
			o |= 1 << i
		case strings.EqualFold(name, "dropDatabase"):
			databases = true
		default:
			return 0, fmt.Errorf("%q is no operation; there are %s, and none", name, strings.Join(OpNames(), ", "))
		}
	}
	// Servers log the drops of the collections like any other drop (seen on 4.2 to 6.0).
	if databases && !o.Has(OpDrop) {
		return 0, fmt.Errorf("cannot skip dropDatabase alone: a source logs it as drops of its collections, " +
			"which look like any other drop; write drop, which skips both")
	}
	if blind := o & beforeTTL; o.Has(OpTTL) && blind != 0 {
		return 0, fmt.Errorf("cannot skip ttl with %s: expiry depends on the target's documents and indexes, which "+
			"then differ from the source's; write ttl without it, or delete, which skips all deletions", blind)
	}
	return o, nil
}

// beforeTTL are operations that decide what expires on the target.
const beforeTTL = OpInsert | OpUpdate | OpReplace | OpCreateIndexes | OpDropIndexes | OpCollMod

// Has reports whether any of some operations is in the set.
func (o Ops) Has(any Ops) bool { return o&any != 0 }

// String returns the form that ParseOps takes, in a fixed order.
func (o Ops) String() string {
	var out []string
	for i, name := range opNames() {
		if o.Has(1 << i) {
			out = append(out, name)
		}
	}
	if len(out) == 0 {
		return "none"
	}
	return strings.Join(out, ",")
}

// Op returns what an event does to a document: nothing for a schema change, two operations for a user's
// applyOps command, which does not say whether the document is new.
func (ev *Event) Op() Ops {
	switch ev.Kind {
	case Insert:
		return OpInsert
	case Update:
		return OpUpdate
	case Replace:
		return OpReplace
	case Delete:
		return OpDelete
	case Put:
		if ev.Rekeyed {
			return OpUpdate
		}
		return OpInsert | OpReplace
	case Upsert:
		return OpInsert | OpUpdate
	}
	return 0
}

// Op returns what a change does, 0 if nothing to the target. there reports that the view exists.
func (ch *Change) Op(there bool) Ops {
	switch ch.Kind {
	case ChangeCreate:
		return OpCreate
	case ChangeView:
		if there {
			return OpCollMod
		}
		return OpCreate
	case ChangeDrop, ChangeDropView, ChangeDropAllViews, ChangeDropDatabase:
		return OpDrop
	case ChangeRename:
		switch ch.Command {
		case mongo.CommandCapped:
			return OpCollMod
		case mongo.CommandOut, mongo.CommandReshard: // the collection stays, with other documents, or the same
			return 0
		}
		return OpRename
	case ChangeCreateIndexes:
		return OpCreateIndexes
	case ChangeDropIndexes:
		return OpDropIndexes
	case ChangeCollMod:
		return OpCollMod
	}
	return 0
}
