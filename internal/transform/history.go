package transform

import (
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/versions"
)

// Histories reports whether there is a rule that has the target hold versions.
func (s *Set) Histories() bool { return s != nil && len(s.histories) > 0 }

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
