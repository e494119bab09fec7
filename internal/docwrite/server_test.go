package docwrite

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/wire"
	"github.com/millrace/millrace/test/dial"
	"github.com/millrace/millrace/test/kit"
	"github.com/millrace/millrace/workshop/lab"
)

// TestServer holds what is asked of real servers.
func TestServer(t *testing.T) {
	if testing.Short() {
		t.Skip("needs a mongod")
	}
	for _, version := range []string{"4.2", "4.4", "5.0", "6.0"} {
		t.Run(version, func(t *testing.T) {
			// A transaction that exchanges a document of 16 MB fills a fifth of a cache of
			// 0.25 GB, beyond which servers refuse it.
			l := lab.ForTest(t, lab.Options{CacheGB: 1, Version: version, LeanJournal: true})
			c := dial.Cluster(t, l.URI(), mongo.Options{})
			t.Run("exact", func(t *testing.T) { testExact(t, c) })
			t.Run("meanings", func(t *testing.T) { testMeanings(t, c) })
			t.Run("holders", func(t *testing.T) { testHolders(t, c) })
		})
	}
}

// must runs a command.
func must(t *testing.T, c *mongo.Cluster, cmd bson.D) bson.Raw {
	t.Helper()
	raw, err := c.Command(t.Context(), "t", cmd)
	if err != nil {
		t.Fatalf("%v: %v", cmd[0], err)
	}
	return raw
}

// testExact: a document comes back byte for byte, inserted where there is none,
// and after a deletion in one transaction.
func testExact(t *testing.T, c *mongo.Cluster) {
	must(t, c, bson.D{{Key: "create", Value: "exact"},
		{Key: "validator", Value: bson.D{{Key: "nobody", Value: "has this"}}}})
	deep := bson.D{{Key: "x", Value: 1}}
	for range 150 {
		deep = bson.D{{Key: "d", Value: deep}}
	}
	zero := bson.E{Key: "t", Value: bson.Timestamp{}}
	docs := map[string]bson.D{
		"plain":           {},
		"every type":      everyType(),
		"zero timestamp":  append(everyType(), zero),
		"two of one name": {zero, zero, {Key: "t", Value: 1}},
		"deep":            {{Key: "deep", Value: deep}, zero},
		"large":           {{Key: "large", Value: strings.Repeat("x", 16<<20-200)}, zero},
		"dots":            {{Key: "a.b", Value: 1}, {Key: "", Value: bson.Timestamp{}}},
		"words":           {{Key: "text", Value: "$$ROOT"}, {Key: "o", Value: bson.D{{Key: "a", Value: "$text"}}}, zero},
		"nested zero":     {{Key: "n", Value: bson.D{zero}}},
	}
	if c.Info.Version.AtLeast(5, 0) { // older ones refuse such names
		docs["dollar"] = bson.D{{Key: "$a", Value: 1}, {Key: "b", Value: "$b"},
			{Key: "$c", Value: bson.D{{Key: "$d", Value: 1}}}}
		docs["dollar and zero"] = bson.D{{Key: "$a", Value: 1}, {Key: "$t", Value: bson.Timestamp{}}}
	}
	for name, fields := range docs {
		doc := kit.Raw(append(bson.D{{Key: "_id", Value: bson.D{{Key: "of", Value: name}}}}, fields...))
		for _, there := range []bool{false, true} {
			err := exchange(t, c, "exact", doc)
			if err != nil {
				t.Errorf("%s, there before %t: %v", name, there, err)
				continue
			}
			got, err := c.Client.Database("t").Collection("exact").FindOne(t.Context(),
				bson.D{{Key: "_id", Value: bsonraw.RawValue(bsonraw.IDOf(doc))}}).Raw()
			if err != nil || !bytes.Equal(got, doc) {
				t.Errorf("%s, there before %t: got %.300s (%v)", name, there, got, err)
			}
		}
	}
}

// exchange deletes and inserts in one transaction, again while the server has too
// much to do: its cache has no room for large documents at times.
func exchange(t *testing.T, c *mongo.Cluster, coll string, doc []byte) error {
	t.Helper()
	txn, err := c.NewTransactions()
	if err != nil {
		t.Fatal(err)
	}
	defer txn.End(t.Context())
	db := c.Client.Database("t")
	p := retry.Backoff{Waiting: func(failure error, _ time.Duration) { t.Log(failure) }}
	return p.Try(t.Context(), time.Minute, func() error {
		return txn.Run(t.Context(), func(ctx context.Context) error {
			if err := Run(ctx, db, Delete(coll, bsonraw.IDOf(doc))); err != nil {
				return err
			}
			return Run(ctx, db, Key{}.Insert(coll, doc))
		})
	})
}

// send runs a write command whose one write fails.
func send(t *testing.T, c *mongo.Cluster, cmd bson.D) wire.WriteError {
	t.Helper()
	conn, err := c.Pool.Checkout(t.Context(), wire.Primary())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Release()
	body, err := conn.Run(t.Context(), "t", cmd)
	if err != nil {
		t.Fatalf("%v: %v", cmd[0], err)
	}
	res := wire.ParseWriteResult(body)
	if len(res.Errors) != 1 {
		t.Fatalf("%v: %d errors", cmd[0], len(res.Errors))
	}
	return res.Errors[0]
}

func update(coll string, q, u any) bson.D {
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.D{{Key: "q", Value: q},
		{Key: "u", Value: u}}}}}
}

func statement(coll string, doc []byte) bson.D {
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{bson.Raw(doc)}}}
}

func testMeanings(t *testing.T, c *mongo.Cluster) {
	must(t, c, bson.D{{Key: "create", Value: "m"},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}})
	must(t, c, bson.D{{Key: "createIndexes", Value: "m"}, {Key: "indexes", Value: bson.A{
		bson.D{{Key: "key", Value: bson.D{{Key: "k", Value: 1}}}, {Key: "name", Value: "k"}, {Key: "unique", Value: true},
			{Key: "sparse", Value: true}},
		bson.D{{Key: "key", Value: bson.D{{Key: "p", Value: 1}, {Key: "q", Value: 1}}}, {Key: "name", Value: "pq"}},
		bson.D{{Key: "key", Value: bson.D{{Key: "g", Value: "2dsphere"}}}, {Key: "name", Value: "g"}}}}})
	must(t, c, bson.D{{Key: "insert", Value: "m"},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: "a"}, {Key: "k", Value: 1}, {Key: "s", Value: "text"}}}}})
	parallel := kit.Raw(bson.D{{Key: "_id", Value: "c"}, {Key: "p", Value: bson.A{1, 2}}, {Key: "q", Value: bson.A{1, 2}}})
	zero := bson.E{Key: "t", Value: bson.Timestamp{}}
	a := bson.D{{Key: "_id", Value: "a"}}
	for name, tc := range map[string]struct {
		cmd  bson.D
		want Meaning
	}{
		"insert, _id":       {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "A"}})), DuplicateID},
		"exact insert, _id": {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "A"}, zero})), DuplicateID},
		"insert, key": {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "b"}, {Key: "k", Value: 1}})),
			DuplicateKey},
		"exact insert, key": {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "b"}, {Key: "k", Value: 1}, zero})),
			DuplicateKey},
		"replacement, bytes": {statement("m", Key{}.AppendReplacement(nil,
			kit.Raw(bson.D{{Key: "_id", Value: "A"}, {Key: "k", Value: 1}}))), OtherID},
		"parallel arrays": {Key{}.Insert("m", parallel), Refused},
		"exact, parallel": {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "c"}, {Key: "p", Value: bson.A{1, 2}},
			{Key: "q", Value: bson.A{1, 2}}, zero})), Refused},
		"no geometry": {Key{}.Insert("m", kit.Raw(bson.D{{Key: "_id", Value: "c"}, {Key: "g", Value: "here"}})),
			Refused},
		"path":     {update("m", a, bson.D{{Key: "$set", Value: bson.D{{Key: "s.x", Value: 1}}}}), Misfit},
		"no array": {update("m", a, bson.D{{Key: "$push", Value: bson.D{{Key: "s", Value: 1}}}}), Misfit},
		"two operators": {update("m", a, bson.D{{Key: "$set", Value: bson.D{{Key: "x", Value: 1}}},
			{Key: "$unset", Value: bson.D{{Key: "x", Value: 1}}}}), Misfit},
	} {
		e := send(t, c, tc.cmd)
		if m := Of(e); m != tc.want {
			t.Errorf("%s: %s means %d, want %d", name, e, m, tc.want)
		}
		if Unclear(e) {
			t.Errorf("%s: it is not said which key: %s", name, e)
		}
	}
	// In a transaction the command as a whole fails; it means the same.
	for name, tc := range map[string]struct {
		doc  []byte
		want Meaning
	}{
		"key":             {kit.Raw(bson.D{{Key: "_id", Value: "b"}, {Key: "k", Value: 1}}), DuplicateKey},
		"exact, key":      {kit.Raw(bson.D{{Key: "_id", Value: "b"}, {Key: "k", Value: 1}, zero}), DuplicateKey},
		"parallel arrays": {parallel, Refused},
	} {
		var e wire.WriteError
		if err := exchange(t, c, "m", tc.doc); !errors.As(err, &e) || Of(e) != tc.want {
			t.Errorf("%s in a transaction: %v", name, err)
		} else if tc.want == DuplicateKey && (ParseDuplicate(e.Raw).Index() != "k" ||
			len(ParseDuplicate(e.Raw).Pattern) == 0) {
			t.Errorf("%s in a transaction: index %q", name, ParseDuplicate(e.Raw).Index())
		}
	}
}

// testHolders: the document that holds the key of a refused one is found, under a
// collation too.
// testHolders finds what holds a key, whatever the index is like.
func testHolders(t *testing.T, c *mongo.Cluster) {
	for name, test := range map[string]struct {
		index    bson.D // beside key, name and unique
		key      bson.D
		doc      bson.D // refused
		existing []bson.D
		want     int
	}{
		"plain": {nil, bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "k", Value: 5}},
			[]bson.D{{{Key: "k", Value: 5}}, {{Key: "k", Value: 6}}}, 1},
		"compound": {nil, bson.D{{Key: "a", Value: 1}, {Key: "b.c", Value: -1}}, bson.D{{Key: "a", Value: 1}},
			[]bson.D{{{Key: "a", Value: 1}}, {{Key: "a", Value: 1}, {Key: "b", Value: bson.D{{Key: "c", Value: 1}}}}}, 1},
		"array": {nil, bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "k", Value: 5}},
			[]bson.D{{{Key: "k", Value: bson.A{4, 5}}}}, 1},
		"collation": {bson.D{{Key: "collation", Value: bson.D{{Key: "locale", Value: "en"}, {Key: "strength", Value: 2}}}},
			bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "k", Value: "a"}}, []bson.D{{{Key: "k", Value: "A"}}}, 1},
		"sparse": {bson.D{{Key: "sparse", Value: true}}, bson.D{{Key: "a", Value: 1}, {Key: "b", Value: 1}},
			bson.D{{Key: "a", Value: 1}}, []bson.D{{{Key: "a", Value: 1}}, {{Key: "x", Value: 1}}}, 1},
		"partial": {bson.D{{Key: "partialFilterExpression", Value: bson.D{{Key: "p", Value: true}}}},
			bson.D{{Key: "k", Value: 1}}, bson.D{{Key: "k", Value: 5}, {Key: "p", Value: true}},
			[]bson.D{{{Key: "k", Value: 5}, {Key: "p", Value: true}}, {{Key: "k", Value: 5}}}, 1},
		"null": {nil, bson.D{{Key: "k", Value: 1}}, bson.D{}, []bson.D{{{Key: "x", Value: 1}}}, 1},
	} {
		coll := c.Client.Database("holders").Collection(name)
		spec := append(bson.D{{Key: "key", Value: test.key}, {Key: "name", Value: "ix"}, {Key: "unique", Value: true}},
			test.index...)
		if _, err := c.Command(t.Context(), "holders",
			bson.D{{Key: "createIndexes", Value: name}, {Key: "indexes", Value: bson.A{spec}}}); err != nil {
			t.Fatal(err)
		}
		for _, d := range test.existing {
			if _, err := coll.InsertOne(t.Context(), d); err != nil {
				t.Fatalf("%s: %v", name, err)
			}
		}
		doc := kit.Raw(append(bson.D{{Key: "_id", Value: "refused"}}, test.doc...))
		_, err := coll.InsertOne(t.Context(), doc)
		var refused driver.WriteException
		if !errors.As(err, &refused) || len(refused.WriteErrors) != 1 {
			t.Errorf("%s: not refused: %v", name, err)
			continue
		}
		d := ParseDuplicate(refused.WriteErrors[0].Raw)
		id := bsonraw.IDOf(doc)
		found, err := d.Holders(t.Context(), c, Holding{NS: "holders." + name, Doc: doc, Except: &id, Most: 10})
		if err != nil || d.Index() != "ix" || len(found) != test.want {
			t.Errorf("%s: index %q, %d documents hold the key, want %d, %v", name, d.Index(), len(found), test.want, err)
		}
	}
}
