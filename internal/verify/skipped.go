package verify

import (
	"fmt"

	"github.com/dustin/go-humanize"

	changes "github.com/millrace/millrace/internal/stream"
)

// Skipped counts documents that differ because operations are left out.
type Skipped struct {
	Operations string `json:"operations"`
	Left       int64  `json:"left"`    // only the target has them
	Missing    int64  `json:"missing"` // only the source has them
	Content    int64  `json:"content"` // both have them, with other content
}

// String says it for people.
func (s *Skipped) String() string {
	var text string
	for _, part := range []struct {
		n    int64
		what string
	}{{s.Left, "left on the target"}, {s.Missing, "not on the target"}, {s.Content, "of other content"}} {
		if part.n > 0 {
			text += fmt.Sprintf("%s: %s, ", part.what, humanize.Comma(part.n))
		}
	}
	return text + s.Operations + " skipped"
}

// plus counts one more; nil is none so far.
func (s *Skipped) plus(ops changes.Ops, kind Kind) *Skipped {
	if s == nil {
		s = &Skipped{Operations: ops.String()}
	}
	switch kind {
	case Extra:
		s.Left++
	case Missing:
		s.Missing++
	default:
		s.Content++
	}
	return s
}

// expects reports that an operation that is left out may be why documents differ. expired
// tells of documents of the target alone whether they have.
func (p *Pair) expects(kind Kind, expired func() bool) bool {
	const gone, made = changes.OpDelete | changes.OpDrop, changes.OpInsert | changes.OpCreate
	const changed = changes.OpUpdate | changes.OpReplace
	if p.Skips == 0 || kind == Order {
		return false
	}
	// What goes by the name on the target may be what the source had before.
	if p.Skips.Has(changes.OpRename) || p.Skips.Has(gone) && p.Skips.Has(made) {
		return true
	}
	if p.Filter != nil && p.Skips.Has(changed) { // in the filter or out of it
		return true
	}
	switch kind {
	case Extra:
		return p.Skips.Has(gone) || p.Skips.Has(changes.OpTTL) && expired()
	case Missing:
		return p.Skips.Has(made)
	}
	return p.Skips.Has(changed)
}
