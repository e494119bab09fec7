package transform

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
)

// skip leaves out operations on some collections, and on their documents.
type skip struct {
	pattern
	ops stream.Ops
}

// String is canonical.
func (k *skip) String() string { return k.pattern.String() + "=" + k.ops.String() }

// Skips are the operations on a source namespace, and on its documents, that the target
// is to be spared. Those on the buckets of a time series are its own.
func (s *Set) Skips(ns string) stream.Ops {
	if i := s.skipOf(ns); i >= 0 {
		return s.skips[i].ops
	}
	return 0
}

// skipOf is the index of the rule of a namespace, below 0 for none.
func (s *Set) skipOf(ns string) int {
	if s == nil || len(s.skips) == 0 || s.staged(ns) {
		return -1
	}
	db, coll := mongo.SplitNS(ns)
	coll = strings.TrimPrefix(coll, mongo.BucketsPrefix)
	return slices.IndexFunc(s.skips, func(k skip) bool { return k.matches(db, coll) })
}

// Stale reports that documents of a source namespace may be missing on the target, or
// have other fields there, so that an update may not fit.
func (s *Set) Stale(ns string) bool {
	return s.Skips(ns).Has(stream.OpInsert | stream.OpUpdate | stream.OpReplace)
}

// KeepsExpired reports that documents of a source namespace stay on the target when they
// expire.
func (s *Set) KeepsExpired(ns string) bool { return s.Skips(ns).Has(stream.OpTTL) }

// SkipsAny reports that on some namespaces one of the operations is skipped.
func (s *Set) SkipsAny(ops stream.Ops) bool {
	return s != nil && slices.ContainsFunc(s.skips, func(k skip) bool { return k.ops.Has(ops) })
}

// leaves are the operations whose skipping leaves documents on the target that the
// source has no longer: what it inserts may be there.
const leaves = stream.OpDelete | stream.OpTTL | stream.OpDrop | stream.OpRename

func compileSkips(texts []string) (out []skip, err error) {
	for _, text := range texts {
		k, err := compileSkip(text)
		if err != nil {
			return nil, fmt.Errorf("skip %q: %w; write 'db.coll=delete,drop'", text, err)
		}
		out = append(out, k)
	}
	return out, nil
}

// compileSkip reads "pattern=operation,operation".
func compileSkip(text string) (k skip, err error) {
	name, ops, found := cutRule(text)
	if !found {
		return k, errors.New("the = between the pattern and the operations is missing")
	}
	if k.pattern, err = compile(name); err != nil {
		return k, fmt.Errorf("the pattern: %w", err)
	}
	k.ops, err = stream.ParseOps(ops)
	return k, err
}
