package ownership

import "go.mongodb.org/mongo-driver/v2/bson"

// View is a History that does not change while it is read. It must not be kept.
type View struct{ h *History }

// Read calls fn with the history, which does not change meanwhile: fn must not wait for it to be read on.
func (h *History) Read(fn func(View) error) error {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return fn(View{h})
}

// Collection returns the one with a UUID that was sharded at a time, nil for none.
func (v View) Collection(uuid [16]byte, at bson.Timestamp) *Collection {
	if c := v.h.byUUID[uuid]; c != nil && !c.goneBy(at) {
		return c
	}
	return nil
}

// Migrated reports that a collection's chunks came to a shard, or left it.
func (v View) Migrated(ns, shard string) bool { return v.h.migrated[ns+" "+shard] }

// Migrations returns those to a shard, in the order in which they began.
func (v View) Migrations(to string) (all []*Migration) {
	for _, m := range v.h.migrations {
		if m.To == to {
			all = append(all, m)
		}
	}
	return all
}

// Incoming returns the migration that moves a key to a shard at a time, nil for none.
func (v View) Incoming(ns string, key []bson.RawValue, to string, at bson.Timestamp) *Migration {
	for i := len(v.h.migrations) - 1; i >= 0; i-- {
		if m := v.h.migrations[i]; m.To == to && m.NS == ns && m.Underway(at) && m.Contains(key) {
			return m
		}
	}
	return nil
}

// Arrived returns when the recipient of a migration became the owner of its chunk, and the collection; nil if it
// did not.
func (v View) Arrived(m *Migration) (at bson.Timestamp, uuid [16]byte, c *Collection) {
	uuid, c = v.h.named(m.NS)
	if c == nil {
		return at, uuid, nil
	}
	at, ok := c.Owners.gainedAt(m.low, m.To, m.Start)
	if !ok || m.ended(at) {
		return at, uuid, nil
	}
	return at, uuid, c
}
