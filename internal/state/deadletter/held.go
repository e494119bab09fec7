package deadletter

import "go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

// CaseOf is what is remembered of a document in dispute, and whether it waits to be
// tried; ok is false where it is not in dispute.
func (s *Store) CaseOf(ns string, id bsoncore.Value) (c Case, waits, ok bool) {
	if s.none() {
		return c, false, false
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	known := s.disputes[ns][KeyOf(id)]
	if known == nil {
		return c, false, false
	}
	return *known, s.pending[known], true
}

// Nameable says that a letter without a document can keep its _id.
func Nameable(id bsoncore.Value) bool { return len(storable(id).Value) > 0 || len(id.Data) == 0 }
