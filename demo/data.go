package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab/sharded"
)

//go:embed demo.json
var script []byte

// kind is one collection to load.
type kind struct {
	NS       string
	Share    float64           // of all documents
	Key      json.RawMessage   // by which it is sharded; without one it stays on its database's primary shard
	Commands []json.RawMessage // that make it, its indexes and views
	Document json.RawMessage   // without one they are mixed
}

// scripted is what the demo loads and writes. A name that begins with # stands for what a number makes.
type scripted struct {
	Collections            []kind
	Updates, SchemaChanges []json.RawMessage
}

// document is the one of a number in a series.
func (k kind) document(series string, i int) (d bson.D, err error) {
	if len(k.Document) == 0 {
		return mixed(i), nil
	}
	return d, bson.UnmarshalExtJSON([]byte(fill(k.Document, series, i)), false, &d)
}

// fill puts what a number makes in the places of the names.
func fill(template json.RawMessage, series string, i int) string {
	date := func(t time.Time) string { return fmt.Sprintf(`{"$date": {"$numberLong": "%d"}}`, t.UnixMilli()) }
	now, n, few := time.Now(), strconv.Itoa(i), strconv.Itoa(i%80)
	soon := now.Add(24 * time.Hour)
	if i%2 == 0 { // half of them go while the demo runs
		soon = now.Add(time.Duration(4+i%6) * time.Second)
	}
	return strings.NewReplacer(`: "#i"`, ": "+n, "#id", fmt.Sprintf("%08d", i), "#i", n, `"$numberLong": "#few"`,
		`"$numberLong": "`+few+`"`,
		`: "#few"`, ": "+few, `["#few", "#few"]`, "["+few+", "+few+"]", "#few", few, "#series", series, "#long",
		strings.Repeat("lorem ipsum ", 10+i%20),
		`"#past"`, date(now.Add(-time.Duration(i)*time.Second)), `"#soon"`, date(soon)).Replace(string(template))
}

// mixed has ids of all types that can be one, which tools that copy by ranges of _id like to miss.
func mixed(i int) bson.D {
	id, once := map[int]any{0: nil, 9: math.NaN(), 18: true, 27: bson.MinKey{}, 36: bson.MaxKey{}}[i]
	if !once {
		id = []any{
			int32(i), int64(i) << 32, float64(i) + 0.25, fmt.Sprintf("id-%d", i), bson.DateTime(i),
			bson.NewObjectIDFromTimestamp(time.Unix(int64(i), 0)), bson.NewDecimal128(0x303e000000000000, uint64(i)*10+1),
			bson.D{{Key: "a", Value: i}, {Key: "b", Value: bson.A{i, "x"}}},
			bson.Binary{Subtype: 4, Data: fmt.Appendf(nil, "%016d", i)},
		}[i%9]
	}
	return bson.D{{Key: "_id", Value: id}, {Key: "n", Value: i}, {Key: "a.b", Value: 1},
		{Key: "", Value: math.Copysign(0, -1)},
		{Key: "text", Value: strings.Repeat("m", 100)}}
}

// insert inserts the documents of some numbers.
func (k kind) insert(ctx context.Context, client *mongo.Client, series string, from, to int) error {
	db, coll, _ := strings.Cut(k.NS, ".")
	const batch = 2000
	for ; from < to; from += batch {
		var docs []bson.D
		for i := from; i < min(from+batch, to); i++ {
			doc, err := k.document(series, i)
			if err != nil {
				return fmt.Errorf("make a document of %s: %w", k.NS, err)
			}
			docs = append(docs, doc)
		}
		if _, err := client.Database(db).Collection(coll).
			InsertMany(ctx, docs, options.InsertMany().SetOrdered(false)); err != nil {
			return fmt.Errorf("insert into %s: %w", k.NS, err)
		}
	}
	return nil
}

// load fills the source.
func (d *demo) load(ctx context.Context) (err error) {
	began := time.Now()
	if err := json.Unmarshal(script, &d.scripted); err != nil {
		return err
	}
	for _, k := range d.Collections {
		d.kinds[k.NS] = k
	}
	if sharded.Is(d.source.topology) {
		if err := d.shard(ctx); err != nil {
			return err
		}
	}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(4)
	for _, k := range d.kinds {
		n := int(k.Share * float64(d.docs))
		d.loaded += int64(n)
		g.Go(func() error {
			db, _, _ := strings.Cut(k.NS, ".")
			for _, command := range k.Commands {
				if err := run(gctx, d.source.client.Database(db), "%s", command); err != nil {
					return fmt.Errorf("make %s: %w", k.NS, err)
				}
			}
			return k.insert(gctx, d.source.client, "order", 0, n)
		})
	}
	var files int64
	g.Go(func() (err error) {
		files, err = loadFiles(gctx, d.source.client.Database("files"))
		return err
	})
	if err := g.Wait(); err != nil {
		return err
	}
	d.loaded += files
	d.out.Printf("Loaded %s documents into %d collections of several kinds, and 2 views (%s)", grouped(d.loaded),
		len(d.kinds)+2, since(began))
	return nil
}

// shard shards what has a key, before it is loaded.
func (d *demo) shard(ctx context.Context) error {
	admin := d.source.client.Database("admin")
	if err := run(ctx, admin, `{"enableSharding": "shop"}`); err != nil {
		return err
	}
	for _, k := range d.kinds {
		if len(k.Key) == 0 {
			continue
		}
		if err := run(ctx, admin, `{"shardCollection": %q, "key": %s}`, k.NS, k.Key); err != nil {
			return fmt.Errorf("shard %s: %w", k.NS, err)
		}
		for i, command := range k.Commands { // the collection is there, and has no unique index beside the key
			text := strings.ReplaceAll(string(command), `, "unique": true}`, "}")
			k.Commands[i] = json.RawMessage(strings.Replace(text, `"create": "orders"`, `"collMod": "orders"`, 1))
		}
	}
	for i := range 16 { // orders that are loaded, and those that writers make
		at := fmt.Sprintf([]string{"order-%08d", "new-%08d"}[i%2], i/2*d.docs/32)
		if err := run(ctx, admin, `{"split": "shop.orders", "middle": {"_id": %q}}`, at); err != nil {
			return fmt.Errorf("split orders at %s: %w", at, err)
		}
	}
	return nil
}

// loadFiles stores files in GridFS and says how many documents that made.
func loadFiles(ctx context.Context, db *mongo.Database) (int64, error) {
	const files, size = 12, 1 << 20
	random := rand.New(rand.NewPCG(1, 2))
	for i := range files {
		content := make([]byte, 0, size)
		for len(content) < size {
			content = fmt.Appendf(content, "%d;%x\n", i, random.Uint64())
		}
		if _, err := db.GridFSBucket().UploadFromStream(ctx, fmt.Sprintf("report-%d.csv", i),
			strings.NewReader(string(content))); err != nil {
			return 0, fmt.Errorf("load files: %w", err)
		}
	}
	chunks, err := db.Collection("fs.chunks").CountDocuments(ctx, bson.D{})
	return files + chunks, err
}
