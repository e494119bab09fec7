package transform

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/versions"
)

// History reports whether the target holds the versions of the documents of a source
// namespace in place of the documents.
func (s *Set) History(ns string) bool {
	if s == nil || len(s.histories) == 0 || s.staged(ns) {
		return false
	}
	db, coll := mongo.SplitNS(ns)
	return !strings.HasPrefix(coll, mongo.BucketsPrefix) && anyMatches(s.histories, db, coll)
}

// Histories reports whether there is a rule that has the target hold versions.
func (s *Set) Histories() bool { return s != nil && len(s.histories) > 0 }

// NoHistory says why the target cannot hold the versions of the documents of a source
// namespace because of the other rules; "" where it can.
func (s *Set) NoHistory(ns string) string {
	m := s.Fields(ns)
	switch skips := s.Skips(ns); {
	case s.Sifts(ns):
		return "a filter keeps some of its documents, and the state of one that comes into the filter is not known for each of its changes"
	case s.SoftDelete(ns) != "":
		return "deleted documents are marked (--soft-delete), and a history tells of them by itself"
	case skips.Has(stream.OpInsert | stream.OpUpdate | stream.OpReplace):
		return fmt.Sprintf("%s is skipped, and later versions are made of what was skipped", skips&(stream.OpInsert|stream.OpUpdate|stream.OpReplace))
	case skips.Has(stream.OpCreate | stream.OpDrop | stream.OpRename):
		return fmt.Sprintf("%s is skipped, and a history tells of it", skips&(stream.OpCreate|stream.OpDrop|stream.OpRename))
	case skips.Has(stream.OpTTL):
		return "ttl is skipped, which is decided on documents of the target, and a history has none"
	case m != nil && !m.Translates():
		return "its fields are mapped by more than keep, drop, rename and set of fields at the top level: that takes whole documents of the source now and then, and the state of one is not known for each of its changes"
	}
	return ""
}

func compileHistories(texts []string) ([]pattern, error) {
	return compileAll("history", texts)
}

// copied makes versions of documents that are copied, as to maps them; nil leaves them as
// they are.
func copied(start bson.Timestamp, to func(dst, doc []byte) ([]byte, error)) func(dst, doc []byte) ([]byte, error) {
	return func(dst, doc []byte) (_ []byte, err error) {
		if to != nil {
			if doc, err = to(nil, doc); err != nil {
				return dst, err
			}
		}
		return versions.AppendCopy(slices.Grow(dst, len(doc)+versions.Size), doc, start, start), nil
	}
}
