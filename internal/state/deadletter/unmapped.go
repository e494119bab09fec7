package deadletter

import (
	"context"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
)

// AnyUnmapped reports that there are documents which the rules cannot map.
func (s *Store) AnyUnmapped() bool { return s != nil && s.nUnmapped.Load() > 0 }

// IsUnmapped reports a document that the rules could not map when they were last asked.
func (s *Store) IsUnmapped(ns string, id bsoncore.Value) bool {
	if !s.AnyUnmapped() {
		return false
	}
	_, ok := s.unmappedID(ns, KeyOf(id))
	return ok
}

func (s *Store) unmappedID(ns string, key Key) (id string, ok bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	id, ok = s.unmapped[ns][key]
	return id, ok
}

// LeaveOut writes the letter of a document that the rules cannot map, in place of the
// one that there is of it. Its state and cause are set here. isNew says that there was
// none.
func (s *Store) LeaveOut(ctx context.Context, l Letter) (isNew bool, err error) {
	key := KeyOf(l.DocID)
	known, ok := s.unmappedID(l.NS, key)
	if !ok && s.nUnmapped.Load() >= maxDisputes {
		return false, mongo.WithHint(fmt.Errorf("%d documents cannot be mapped; the next is of %s, _id %s: %s", maxDisputes, l.NS, bsonraw.IDText(l.DocID), l.Reason),
			"so many are no exceptions: say in --fields what becomes of such values, and start again with --restart")
	}
	l.State, l.Cause = Unmapped, CauseRule
	if l.ID = known; !ok {
		l.ID = letterID(s.job, l) + "/" + string(Unmapped)
	}
	if err := s.keep.Put(ctx, l); err != nil {
		return false, fmt.Errorf("write dead letter of %s, _id %s: %w", l.NS, bsonraw.IDText(l.DocID), err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.putUnmapped(l.NS, key, l.ID) {
		s.stats.Unmapped++
		s.nUnmapped.Add(1)
	}
	return !ok, nil
}

// putUnmapped files a letter's ID, and says that the document had none; mu is held.
func (s *Store) putUnmapped(ns string, key Key, id string) bool {
	if s.unmapped[ns] == nil {
		s.unmapped[ns] = map[Key]string{}
	}
	_, had := s.unmapped[ns][key]
	s.unmapped[ns][key] = id
	return !had
}

// Mended settles the letter of a document that the rules could not map, if there is one.
func (s *Store) Mended(ctx context.Context, ns string, id bsoncore.Value, reason string) error {
	if !s.AnyUnmapped() {
		return nil
	}
	key := KeyOf(id)
	letter, ok := s.unmappedID(ns, key)
	if !ok {
		return nil
	}
	if err := s.keep.Settle(ctx, letter, reason); err != nil {
		return fmt.Errorf("settle dead letter %s: %w", letter, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.unmapped[ns], key)
	s.stats.Unmapped--
	s.stats.Settled++
	s.nUnmapped.Add(-1)
	return nil
}
