package transform

import (
	"slices"

	"github.com/millrace/millrace/internal/stream"
)

// SkipsAny reports that on some namespaces one of the operations is skipped.
func (s *Set) SkipsAny(ops stream.Ops) bool {
	return s != nil && slices.ContainsFunc(s.skips, func(r rule[stream.Ops]) bool { return r.is.Has(ops) })
}

// leaves are the operations whose skipping leaves documents on the target that the
// source has no longer: what it inserts may be there.
const leaves = stream.OpDelete | stream.OpTTL | stream.OpDrop | stream.OpRename

// parseSkip reads "operation,operation".
func parseSkip(text string) (stream.Ops, string, error) {
	ops, err := stream.ParseOps(text)
	return ops, ops.String(), err
}
