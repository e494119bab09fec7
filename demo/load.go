package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab/sharded"
)

// kind is one collection to load.
type kind struct {
	db, coll string
	share    float64 // of all documents
	doc      func(i int) bson.D
	made     []string // the commands that make it, what is on it, and its indexes
}

// sessions is the collection whose documents expire.
const sessions = "sessions"

// kinds are the collections of the demo. What a number makes is always the
// same, except for times.
func kinds() []kind {
	return []kind{
		{"shop", "users", 0.30, user, []string{
			`{"createIndexes": "users", "indexes": [
				{"name": "email", "key": {"email": 1}, "unique": true},
				{"name": "country", "key": {"country": 1, "age": -1}},
				{"name": "seen", "key": {"seen": 1}, "expireAfterSeconds": 2592000}]}`,
			`{"create": "adults", "viewOn": "users", "pipeline": [{"$match": {"age": {"$gte": 18}}}]}`,
			`{"create": "adultsPerCountry", "viewOn": "adults", "pipeline": [
				{"$group": {"_id": "$country", "n": {"$sum": 1}}}]}`}},
		{"shop", "orders", 0.25, order, []string{
			`{"create": "orders", "validator": {"total": {"$gte": 0}}, "validationLevel": "moderate"}`,
			`{"createIndexes": "orders", "indexes": [
				{"name": "user", "key": {"user": 1, "at": -1}},
				{"name": "open", "key": {"state": 1}, "partialFilterExpression": {"state": "open"}},
				{"name": "sku", "key": {"items.sku": 1}}]}`}},
		{"shop", "mixed", 0.08, mixed, nil},
		{"shop", sessions, 0.02, session, []string{
			`{"createIndexes": "sessions", "indexes": [{"name": "expires", "key": {"expires": 1}, "expireAfterSeconds": 0}]}`}},
		{"shop", "places", 0.03, place, []string{
			`{"createIndexes": "places", "indexes": [
				{"name": "at", "key": {"at": "2dsphere"}}, {"name": "text", "key": {"text": "text"}}]}`}},
		{"shop", "names", 0.02, name, []string{
			`{"create": "names", "collation": {"locale": "de", "strength": 2}}`,
			`{"createIndexes": "names", "indexes": [{"name": "name", "key": {"name": 1}}]}`}},
		{"shop", "ledger", 0.05, entry, []string{
			`{"create": "ledger", "clusteredIndex": {"key": {"_id": 1}, "unique": true}}`}},
		{"shop", "drafts", 0.02, entry, nil},
		{"logs", "events", 0.08, event, []string{
			`{"create": "events", "capped": true, "size": 33554432, "max": 100000}`}},
		{"logs", "readings", 0.15, reading, []string{
			`{"create": "readings", "timeseries": {"timeField": "at", "metaField": "sensor"}}`}},
	}
}

// run runs a command, given as extended JSON with verbs of fmt in it.
func run(ctx context.Context, db *mongo.Database, command string, args ...any) error {
	var parsed bson.D
	if err := bson.UnmarshalExtJSON(fmt.Appendf(nil, command, args...), false, &parsed); err != nil {
		return fmt.Errorf("read %s: %w", command, err)
	}
	return db.RunCommand(ctx, parsed).Err()
}

// load fills the source.
func (d *demo) load(ctx context.Context) error {
	began, all := time.Now(), kinds()
	if sharded.Is(d.from) {
		if err := d.shardCollections(ctx); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, k := range all {
		n := int(k.share * float64(d.docs))
		d.loaded += int64(n)
		if k.coll == sessions {
			d.sessions = int64(n)
		}
		g.Go(func() error {
			if _, ok := keys()[k.db+"."+k.coll]; ok && sharded.Is(d.from) {
				k.made = k.whenSharded()
			}
			if err := k.load(gctx, d.sourceDB.Database(k.db), n); err != nil {
				return fmt.Errorf("load %s.%s: %w", k.db, k.coll, err)
			}
			return nil
		})
	}
	var files int64
	g.Go(func() (err error) {
		files, err = loadFiles(gctx, d.sourceDB.Database("files"))
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.loaded += files
	d.out.Printf("Loaded %s documents into %d collections of several kinds, and 2 views (%s)",
		grouped(d.loaded), len(all)+2, since(began))
	return nil
}

// whenSharded are the commands for a collection that is there already, by a key that
// no unique index of another field goes with.
func (k kind) whenSharded() (all []string) {
	for _, command := range k.made {
		command = strings.ReplaceAll(command, `, "unique": true}`, "}")
		if strings.Contains(command, `"create": "orders"`) {
			command = strings.Replace(command, `"create"`, `"collMod"`, 1)
		}
		all = append(all, command)
	}
	return all
}

func (k kind) load(ctx context.Context, db *mongo.Database, n int) error {
	for _, command := range k.made {
		if err := run(ctx, db, "%s", command); err != nil {
			return err
		}
	}
	const batch = 2000
	for from := 0; from < n; from += batch {
		var docs []bson.D
		for i := from; i < min(from+batch, n); i++ {
			docs = append(docs, k.doc(i))
		}
		if _, err := db.Collection(k.coll).InsertMany(ctx, docs, options.InsertMany().SetOrdered(false)); err != nil {
			return err
		}
	}
	return nil
}

// loadFiles stores files in GridFS and says how many documents that made.
func loadFiles(ctx context.Context, db *mongo.Database) (int64, error) {
	const files, size, chunk = 12, 1 << 20, 255 << 10
	bucket := db.GridFSBucket(options.GridFSBucket().SetChunkSizeBytes(chunk))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		var content strings.Builder
		for content.Len() < size {
			fmt.Fprintf(&content, "%d;%x\n", i, random.Uint64())
		}
		_, err := bucket.UploadFromStream(ctx, fmt.Sprintf("report-%d.csv", i), strings.NewReader(content.String()))
		if err != nil {
			return 0, fmt.Errorf("load files: %w", err)
		}
	}
	chunks, err := db.Collection("fs.chunks").CountDocuments(ctx, bson.D{})
	return files + chunks, err
}

// doc makes a document of names and values in turn.
func doc(fields ...any) bson.D {
	var d bson.D
	for pair := range slices.Chunk(fields, 2) {
		d = append(d, bson.E{Key: fmt.Sprint(pair[0]), Value: pair[1]})
	}
	return d
}

func user(i int) bson.D {
	return doc(
		"_id", i, "email", fmt.Sprintf("user%d@example.com", i),
		"country", []string{"de", "fr", "it", "pl", "se"}[i%5], "age", 10+i%80,
		"seen", time.Now().Add(-time.Duration(i)*time.Second), "logins", int64(i%100),
		"tags", bson.A{"a", i % 7, bson.M{"x": i % 3}},
		"address", doc("street", fmt.Sprintf("Street %d", i%1000), "geo", bson.A{1.5, 2.5}),
		"about", strings.Repeat("lorem ipsum ", 20),
	)
}

func order(i int) bson.D { return orderWith(fmt.Sprintf("order-%08d", i), i) }

func orderWith(id string, i int) bson.D {
	items := bson.A{}
	for n := range 1 + i%4 {
		items = append(items, doc("sku", fmt.Sprintf("sku-%d", (i*7+n)%500), "n", n+1, "price", 9.99))
	}
	return doc(
		"_id", id, "user", i%50_000, "at", time.Now(),
		"state", []string{"open", "paid", "sent"}[i%3], "items", items,
		"total", float64(i%1000)+0.5, "note", strings.Repeat("x", 200+i%400),
	)
}

// mixed has ids of all types that can be one, which tools that copy by ranges
// of _id like to miss.
func mixed(i int) bson.D {
	id, once := map[int]any{0: nil, 9: math.NaN(), 18: true, 27: bson.MinKey{}, 36: bson.MaxKey{}}[i]
	if !once {
		id = []any{
			int32(i), int64(i) << 32, float64(i) + 0.25, fmt.Sprintf("id-%d", i), bson.DateTime(i),
			bson.NewObjectIDFromTimestamp(time.Unix(int64(i), 0)), bson.NewDecimal128(0x303e000000000000, uint64(i)*10+1),
			doc("a", i, "b", bson.A{i, "x"}), bson.Binary{Subtype: 4, Data: fmt.Appendf(nil, "%016d", i)},
		}[i%9]
	}
	return doc("_id", id, "n", i, "a.b", 1, "", math.Copysign(0, -1), "text", strings.Repeat("m", 100))
}

// session expires within seconds, for one of two, or tomorrow.
func session(i int) bson.D {
	expires := time.Now().Add(24 * time.Hour)
	if i%2 == 0 {
		expires = time.Now().Add(time.Duration(4+i%6) * time.Second)
	}
	return doc("_id", i, "expires", expires, "token", fmt.Sprintf("%032x", i))
}

func place(i int) bson.D {
	point := doc("type", "Point", "coordinates", bson.A{float64(i%360) - 180, float64(i%170) - 85})
	return doc("_id", i, "text", fmt.Sprintf("the place number %d by the river", i), "at", point)
}

func name(i int) bson.D {
	return doc("_id", fmt.Sprintf("Größe %d", i), "name", []string{"Müller", "MÜLLER", "mueller"}[i%3])
}

func entry(i int) bson.D {
	return doc("_id", i, "amount", i%1000, "text", strings.Repeat("e", 80))
}

func event(i int) bson.D {
	return doc("_id", bson.NewObjectID(), "n", i, "line", strings.Repeat("log ", 20))
}

func reading(i int) bson.D {
	return doc("at", time.Now().Add(-time.Duration(i)*time.Second), "sensor", i%50, "value", float64(i)/3)
}

// awaitExpiry waits until the source has expired the sessions that it was to
// expire during the demo, all within seconds of loading: their deletes have to
// come over like any other.
func (d *demo) awaitExpiry(ctx context.Context) error {
	coll := d.sourceDB.Database("shop").Collection(sessions)
	return poll(ctx, func() (bool, error) {
		soon, err := coll.CountDocuments(ctx, bson.M{"expires": bson.M{"$lt": time.Now().Add(time.Hour)}})
		if err != nil || soon > 0 {
			return false, err
		}
		left, err := coll.CountDocuments(ctx, bson.D{})
		d.expired = d.sessions - left
		return true, err
	})
}
