package transform

import "go.mongodb.org/mongo-driver/v2/bson"

// Try is what becomes of one document of a source namespace: nil where the rules do not
// keep it. What fields have of the event is that of a copy.
func (s *Set) Try(ns string, doc bson.Raw) (bson.Raw, error) {
	if keep := s.Filter(ns); !s.Match(ns) || keep != nil && !keep.Match(doc) {
		return nil, nil
	}
	if to := s.Mapper(ns, bson.Timestamp{}, nil); to != nil {
		return to(nil, doc)
	}
	return doc, nil
}
