package router

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/shardkey"
)

// loadTries bounds how often a table is read that is not whole because it was
// changed meanwhile.
const loadTries = 20

// catalog keeps the routing tables that were used.
type catalog struct {
	upstream *upstream
	features features

	mu      sync.Mutex
	entries map[string]*entry
}

// entry is the place of one collection's table. Its lock is held while the table
// is read, so that all who want it wait for one reading.
type entry struct {
	mu sync.Mutex
	t  *table
}

func newCatalog(u *upstream) *catalog { return &catalog{upstream: u, entries: map[string]*entry{}} }

// table is the routing table of a collection, from memory if it is there.
func (c *catalog) table(ctx context.Context, db, coll string) (*table, error) {
	e := c.entry(db + "." + coll)
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.t != nil {
		return e.t, nil
	}
	t, err := c.load(ctx, db, coll)
	if err == nil && t.db.exists {
		e.t = t
	}
	return t, err
}

func (c *catalog) entry(ns string) *entry {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[ns]
	if e == nil {
		e = &entry{}
		c.entries[ns] = e
	}
	return e
}

// outdated forgets a table that a shard has refused, unless a newer one is there.
func (c *catalog) outdated(t *table) {
	e := c.entry(t.ns())
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.t == t {
		e.t = nil
	}
}

// forget forgets all tables of a database, or of all for "".
func (c *catalog) forget(db string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for ns := range c.entries {
		if db == "" || strings.HasPrefix(ns, db+".") {
			delete(c.entries, ns)
		}
	}
}

// database reads a database's entry.
func (c *catalog) database(ctx context.Context, name string) (database, error) {
	if name == "config" || name == "admin" {
		return database{name: name, primary: configName, exists: true}, nil
	}
	docs, err := c.upstream.config.configData(ctx, query{coll: "databases", filter: bson.D{{Key: "_id", Value: name}}})
	if err != nil || len(docs) == 0 {
		return database{name: name}, err
	}
	version, _ := docs[0].Lookup("version").DocumentOK()
	return database{name: name, primary: text(docs[0].Lookup("primary")), version: version, exists: true}, nil
}

// load reads a table from the config servers.
func (c *catalog) load(ctx context.Context, db, coll string) (*table, error) {
	for range loadTries {
		d, err := c.database(ctx, db)
		if err != nil {
			return nil, err
		}
		t := &table{db: d, coll: coll}
		docs, err := c.upstream.config.configData(ctx, query{coll: "collections", filter: bson.D{{Key: "_id", Value: t.ns()}}})
		if err != nil {
			return nil, err
		}
		if len(docs) == 0 || truth(docs[0].Lookup("dropped")) {
			return t, nil
		}
		whole, err := c.loadChunks(ctx, t, docs[0])
		if err != nil || whole {
			return t, err
		}
	}
	return nil, fmt.Errorf("router: the chunks of %s.%s are not whole", db, coll)
}

// loadChunks reads a sharded collection's chunks; false when they were changed
// meanwhile so that they are not whole.
//
// A change of a chunk gives it the collection's highest lastmod. So in the order of
// lastmod a cursor that runs while chunks change meets each one's last state at
// last, and never a newer state of one chunk without an older change of another:
// with that, a shard's version would promise more than is known.
func (c *catalog) loadChunks(ctx context.Context, t *table, entry bson.Raw) (bool, error) {
	t.sharded = true
	t.epoch, _ = entry.Lookup("lastmodEpoch").ObjectIDOK()
	t.timestamp, _ = timeOf(entry, "timestamp")
	t.uuid = entry.Lookup("uuid")
	t.key = shardkey.Parse(entry.Lookup("key").Document())
	t.collation, _ = entry.Lookup("defaultCollation").DocumentOK()
	filter := bson.D{{Key: "ns", Value: t.ns()}}
	if c.features.atLeast(5, 0) {
		filter = bson.D{{Key: "uuid", Value: t.uuid}}
	}
	docs, err := c.upstream.config.configData(ctx, query{coll: "chunks", filter: filter, sort: bson.D{{Key: "lastmod", Value: 1}}})
	if err != nil {
		return false, err
	}
	return t.place(docs), nil
}
