package deadletter

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/mongo"
)

// AnyUnmapped reports that there are documents which the rules cannot map.
func (s *Store) AnyUnmapped() bool { return s != nil && s.unmapped.n.Load() > 0 }

// IsUnmapped reports a document that the rules could not map when they were last asked.
func (s *Store) IsUnmapped(ns string, id bsoncore.Value) bool { return s.unmappedCase(ns, id) != nil }

func (s *Store) unmappedCase(ns string, id bsoncore.Value) *Case {
	if !s.AnyUnmapped() {
		return nil
	}
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.unmapped.get(ns, id)
}

// LeaveOut writes the letter of a document that the rules cannot map, in place of the
// one that there is of it. Its state and cause are set here. isNew says that there was
// none.
func (s *Store) LeaveOut(ctx context.Context, l Letter) (isNew bool, err error) {
	l.State, l.Cause = Unmapped, CauseRule
	known := s.unmappedCase(l.NS, l.DocID)
	if known != nil {
		l.ID = known.ID
		return false, s.put(ctx, l)
	}
	l.ID = letterID(s.job, l) + "/" + string(Unmapped)
	err = s.unmapped.room(&l, "cannot be mapped; the next is of",
		"so many are no exceptions: say in --fields what becomes of such values, and start again with --restart")
	if err == nil {
		err = s.put(ctx, l)
	}
	if err != nil {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.unmapped.get(l.NS, l.DocID) == nil {
		s.stats.Unmapped++
	}
	s.unmapped.put(caseOf(&l))
	return true, nil
}

// SettleUnmapped settles the dead letter of a document that the rules could not map, if there is one.
func (s *Store) SettleUnmapped(ctx context.Context, ns string, id bsoncore.Value, reason string) error {
	c := s.unmappedCase(ns, id)
	if c == nil {
		return nil
	}
	if err := s.keep.Settle(ctx, c.ID, reason); err != nil {
		return mongo.Wrap(err, "settle dead letter %s", c.ID)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.unmapped.remove(c)
	s.stats.Unmapped--
	s.stats.Settled++
	return nil
}
