package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

// kind is one collection to load.
type kind struct {
	db, coll string
	share    float64 // of all documents
	options  bson.D  // of create
	indexes  []mongo.IndexModel
	doc      func(i int) bson.D
}

// sessions is the collection whose documents expire.
const sessions = "sessions"

// kinds are the collections of the demo. What a number makes is always the
// same, except for times.
func kinds() []kind {
	return []kind{
		{db: "shop", coll: "users", share: 0.30, doc: user, indexes: []mongo.IndexModel{
			index(bson.D{{Key: "email", Value: 1}}, options.Index().SetUnique(true)),
			index(bson.D{{Key: "country", Value: 1}, {Key: "age", Value: -1}}, nil),
			index(bson.D{{Key: "seen", Value: 1}}, options.Index().SetExpireAfterSeconds(30*24*3600)),
		}},
		{db: "shop", coll: "orders", share: 0.25, doc: order, options: bson.D{
			{Key: "validator", Value: bson.D{{Key: "total", Value: bson.D{{Key: "$gte", Value: 0}}}}},
			{Key: "validationLevel", Value: "moderate"}}, indexes: []mongo.IndexModel{
			index(bson.D{{Key: "user", Value: 1}, {Key: "at", Value: -1}}, nil),
			index(bson.D{{Key: "state", Value: 1}}, options.Index().SetPartialFilterExpression(bson.D{{Key: "state", Value: "open"}})),
			index(bson.D{{Key: "items.sku", Value: 1}}, nil),
		}},
		{db: "shop", coll: "mixed", share: 0.08, doc: mixed},
		{db: "shop", coll: sessions, share: 0.02, doc: session, indexes: []mongo.IndexModel{
			index(bson.D{{Key: "expires", Value: 1}}, options.Index().SetExpireAfterSeconds(0)),
		}},
		{db: "shop", coll: "places", share: 0.03, doc: place, indexes: []mongo.IndexModel{
			index(bson.D{{Key: "at", Value: "2dsphere"}}, nil), index(bson.D{{Key: "text", Value: "text"}}, nil),
		}},
		{db: "shop", coll: "names", share: 0.02, doc: name, options: bson.D{
			{Key: "collation", Value: bson.D{{Key: "locale", Value: "de"}, {Key: "strength", Value: 2}}}},
			indexes: []mongo.IndexModel{index(bson.D{{Key: "name", Value: 1}}, nil)}},
		{db: "shop", coll: "ledger", share: 0.05, doc: entry, options: bson.D{
			{Key: "clusteredIndex", Value: bson.D{{Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "unique", Value: true}}}}},
		{db: "shop", coll: "drafts", share: 0.02, doc: entry},
		{db: "logs", coll: "events", share: 0.08, doc: event, options: bson.D{
			{Key: "capped", Value: true}, {Key: "size", Value: 32 << 20}, {Key: "max", Value: 100_000}}},
		{db: "logs", coll: "readings", share: 0.15, doc: reading, options: bson.D{
			{Key: "timeseries", Value: bson.D{{Key: "timeField", Value: "at"}, {Key: "metaField", Value: "sensor"}}}}},
	}
}

func index(keys bson.D, o *options.IndexOptionsBuilder) mongo.IndexModel {
	return mongo.IndexModel{Keys: keys, Options: o}
}

// load fills the source.
func (d *demo) load(ctx context.Context) error {
	began := time.Now()
	all := kinds()
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, k := range all {
		n := int(k.share * float64(d.docs))
		d.loaded += int64(n)
		if k.coll == sessions {
			d.sessions = int64(n)
		}
		g.Go(func() error {
			if err := k.load(gctx, d.sourceDB, n); err != nil {
				return fmt.Errorf("load %s.%s: %w", k.db, k.coll, err)
			}
			return nil
		})
	}
	var chunks int64
	g.Go(func() (err error) {
		chunks, err = loadFiles(gctx, d.sourceDB)
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.loaded += chunks
	if err := loadViews(ctx, d.sourceDB); err != nil {
		return err
	}
	d.loadTook = time.Since(began)
	d.out.say("Loaded %s documents into %d collections of several kinds, and 2 views (%s)", grouped(d.loaded), len(all)+2, seconds(d.loadTook))
	return nil
}

func (k kind) load(ctx context.Context, client *mongo.Client, n int) error {
	db := client.Database(k.db)
	if err := db.RunCommand(ctx, append(bson.D{{Key: "create", Value: k.coll}}, k.options...)).Err(); err != nil {
		return err
	}
	coll := db.Collection(k.coll)
	if len(k.indexes) > 0 {
		if _, err := coll.Indexes().CreateMany(ctx, k.indexes); err != nil {
			return err
		}
	}
	const batch = 2000
	for from := 0; from < n; from += batch {
		docs := make([]any, 0, batch)
		for i := from; i < min(from+batch, n); i++ {
			docs = append(docs, k.doc(i))
		}
		if _, err := coll.InsertMany(ctx, docs, options.InsertMany().SetOrdered(false)); err != nil {
			return err
		}
	}
	return nil
}

// loadFiles stores files in GridFS and says how many documents that made.
func loadFiles(ctx context.Context, client *mongo.Client) (int64, error) {
	const files, size, chunk = 12, 1 << 20, 255 << 10
	bucket := client.Database("files").GridFSBucket(options.GridFSBucket().SetChunkSizeBytes(chunk))
	random := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		var content strings.Builder
		for content.Len() < size {
			fmt.Fprintf(&content, "%d;%x\n", i, random.Uint64())
		}
		if _, err := bucket.UploadFromStream(ctx, fmt.Sprintf("report-%d.csv", i), strings.NewReader(content.String())); err != nil {
			return 0, fmt.Errorf("load files: %w", err)
		}
	}
	chunks, err := client.Database("files").Collection("fs.chunks").CountDocuments(ctx, bson.D{})
	return files + chunks, err
}

// loadViews makes a view, and one on it.
func loadViews(ctx context.Context, client *mongo.Client) error {
	db := client.Database("shop")
	adults := mongo.Pipeline{{{Key: "$match", Value: bson.D{{Key: "age", Value: bson.D{{Key: "$gte", Value: 18}}}}}}}
	perCountry := mongo.Pipeline{{{Key: "$group", Value: bson.D{{Key: "_id", Value: "$country"}, {Key: "n", Value: bson.D{{Key: "$sum", Value: 1}}}}}}}
	if err := db.CreateView(ctx, "adults", "users", adults); err != nil {
		return err
	}
	return db.CreateView(ctx, "adultsPerCountry", "adults", perCountry)
}

func user(i int) bson.D {
	return bson.D{
		{Key: "_id", Value: i}, {Key: "email", Value: fmt.Sprintf("user%d@example.com", i)},
		{Key: "country", Value: []string{"de", "fr", "it", "pl", "se"}[i%5]}, {Key: "age", Value: 10 + i%80},
		{Key: "seen", Value: time.Now().Add(-time.Duration(i) * time.Second)}, {Key: "logins", Value: int64(i % 100)},
		{Key: "tags", Value: bson.A{"a", i % 7, bson.D{{Key: "x", Value: i % 3}}}},
		{Key: "address", Value: bson.D{{Key: "street", Value: fmt.Sprintf("Street %d", i%1000)}, {Key: "geo", Value: bson.A{1.5, 2.5}}}},
		{Key: "about", Value: strings.Repeat("lorem ipsum ", 20)},
	}
}

func order(i int) bson.D {
	items := bson.A{}
	for n := range 1 + i%4 {
		items = append(items, bson.D{{Key: "sku", Value: fmt.Sprintf("sku-%d", (i*7+n)%500)}, {Key: "n", Value: n + 1}, {Key: "price", Value: 9.99}})
	}
	return bson.D{
		{Key: "_id", Value: fmt.Sprintf("order-%08d", i)}, {Key: "user", Value: i % 50_000}, {Key: "at", Value: time.Now()},
		{Key: "state", Value: []string{"open", "paid", "sent"}[i%3]}, {Key: "items", Value: items}, {Key: "total", Value: float64(i%1000) + 0.5},
		{Key: "note", Value: strings.Repeat("x", 200+i%400)},
	}
}

// mixed has ids of all types that can be one, which tools that copy by ranges
// of _id like to miss.
func mixed(i int) bson.D {
	var id any
	switch i % 9 {
	case 0:
		id = int32(i)
	case 1:
		id = int64(i) << 32
	case 2:
		id = float64(i) + 0.25
	case 3:
		id = fmt.Sprintf("id-%d", i)
	case 4:
		id = bson.NewObjectIDFromTimestamp(time.Unix(int64(i), 0))
	case 5:
		id = bson.D{{Key: "a", Value: i}, {Key: "b", Value: bson.A{i, "x"}}}
	case 6:
		id = bson.Binary{Subtype: 4, Data: fmt.Appendf(nil, "%016d", i)}
	case 7:
		id = bson.DateTime(i)
	default:
		id = bson.NewDecimal128(0x303e000000000000, uint64(i)*10+1)
	}
	switch i {
	case 0:
		id = nil
	case 9:
		id = math.NaN()
	case 18:
		id = true
	case 27:
		id = bson.MinKey{}
	case 36:
		id = bson.MaxKey{}
	}
	return bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i}, {Key: "a.b", Value: 1}, {Key: "", Value: math.Copysign(0, -1)},
		{Key: "text", Value: strings.Repeat("m", 100)}}
}

// session expires within seconds, for one of two, or tomorrow.
func session(i int) bson.D {
	expires := time.Now().Add(24 * time.Hour)
	if i%2 == 0 {
		expires = time.Now().Add(time.Duration(4+i%6) * time.Second)
	}
	return bson.D{{Key: "_id", Value: i}, {Key: "expires", Value: expires}, {Key: "token", Value: fmt.Sprintf("%032x", i)}}
}

func place(i int) bson.D {
	return bson.D{{Key: "_id", Value: i}, {Key: "text", Value: fmt.Sprintf("the place number %d by the river", i)},
		{Key: "at", Value: bson.D{{Key: "type", Value: "Point"}, {Key: "coordinates", Value: bson.A{float64(i%360) - 180, float64(i%170) - 85}}}}}
}

func name(i int) bson.D {
	return bson.D{{Key: "_id", Value: fmt.Sprintf("Größe %d", i)}, {Key: "name", Value: []string{"Müller", "MÜLLER", "mueller"}[i%3]}}
}

func entry(i int) bson.D {
	return bson.D{{Key: "_id", Value: i}, {Key: "amount", Value: i % 1000}, {Key: "text", Value: strings.Repeat("e", 80)}}
}

func event(i int) bson.D {
	return bson.D{{Key: "_id", Value: bson.NewObjectID()}, {Key: "n", Value: i}, {Key: "line", Value: strings.Repeat("log ", 20)}}
}

func reading(i int) bson.D {
	return bson.D{{Key: "at", Value: time.Now().Add(-time.Duration(i) * time.Second)}, {Key: "sensor", Value: i % 50}, {Key: "value", Value: float64(i) / 3}}
}

// awaitExpiry waits until the source has expired the sessions that it was to
// expire during the demo, all within seconds of loading: their deletes have to
// come over like any other.
func (d *demo) awaitExpiry(ctx context.Context) error {
	coll := d.sourceDB.Database("shop").Collection(sessions)
	for {
		soon, err := coll.CountDocuments(ctx, bson.D{{Key: "expires", Value: bson.D{{Key: "$lt", Value: time.Now().Add(time.Hour)}}}})
		if err != nil {
			return err
		}
		if soon == 0 {
			left, err := coll.CountDocuments(ctx, bson.D{})
			d.expired = d.sessions - left
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(200 * time.Millisecond):
		}
	}
}
