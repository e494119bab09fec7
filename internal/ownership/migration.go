package ownership

import (
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

// Migration is the move of a chunk to another shard. Only its End changes.
type Migration struct {
	ID, NS    string
	From, To  string
	Start     bson.Timestamp // no document has come before
	End       bson.Timestamp // the chunk has come by then, or never will; zero: under way
	low, high []bson.RawValue
}

// NewMigration returns a move of the chunk between two bounds.
func NewMigration(low, high bson.Raw) *Migration {
	return &Migration{low: shardkey.Bound(low), high: shardkey.Bound(high)}
}

func (m *Migration) Contains(key []bson.RawValue) bool {
	return shardkey.CompareKeys(m.low, key) <= 0 && (shardkey.CompareKeys(key, m.high) < 0 || isMaxKey(m.high))
}

// Underway reports a migration that was under way at a time, after its start.
func (m *Migration) Underway(at bson.Timestamp) bool {
	return m.Start.Before(at) && (m.End.IsZero() || at.Before(m.End))
}

func (m *Migration) ended(by bson.Timestamp) bool { return !m.End.IsZero() && m.End.Before(by) }

func (h *History) applyMigration(e *Entry) error {
	id := e.O.Lookup("_id").String()
	switch e.Op {
	case "d":
		for _, m := range h.migrations {
			if m.ID == id && m.End.IsZero() {
				m.End = e.At
			}
		}
	case "i":
		low, ok1 := e.O.Lookup("min").DocumentOK()
		high, ok2 := e.O.Lookup("max").DocumentOK()
		ns, ok3 := e.O.Lookup("ns").StringValueOK()
		from, ok4 := e.O.Lookup("fromShard").StringValueOK()
		to, ok5 := e.O.Lookup("toShard").StringValueOK()
		if !ok1 || !ok2 || !ok3 || !ok4 || !ok5 {
			return fmt.Errorf("a migration without collection, bounds or shards: %s", e.O)
		}
		h.migrated[ns+" "+from], h.migrated[ns+" "+to] = true, true
		m := NewMigration(low, high)
		m.ID, m.NS, m.From, m.To, m.Start = id, ns, from, to, e.At
		h.migrations = append(h.migrations, m)
	}
	return nil
}

// migrationOf is the migration under way of a chunk to its shard.
func (h *History) migrationOf(ch *chunkDoc) *Migration {
	for _, m := range slices.Backward(h.migrations) {
		_, c := h.named(m.NS)
		if c != nil && c.Owners == h.owners[ch.of] && m.To == ch.shard && m.End.IsZero() &&
			shardkey.CompareKeys(m.low, ch.low) == 0 {
			return m
		}
	}
	return nil
}
