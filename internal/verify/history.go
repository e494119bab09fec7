package verify

import (
	"context"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/versions"
)

// ofVersions converts a bound between documents into one between their versions.
func ofVersions(bound bson.Raw) bson.Raw {
	if len(bound) == 0 {
		return nil
	}
	raw, _ := bson.Marshal(bson.D{{Key: "_id", Value: versions.Least(bsonraw.IDOf(bound))}}) // of what is BSON
	return raw
}

const versionsAtOnce = 200

// newest fetches the documents with the given ids from a collection of versions.
func (p *probe) newest(ctx context.Context, r *scan.Reader, keys []string) error {
	db, coll := mongo.SplitNS(p.NS)
	for len(keys) > 0 {
		n := min(len(keys), versionsAtOnce)
		asked := make([]versions.Asked, n)
		where := map[string][]string{} // several ids may be the same to a server
		for i, key := range keys[:n] {
			id := bsonraw.KeyID(key)
			asked[i] = versions.Asked{Key: id, Before: versions.Ever()}
			where[delta.KeyOf(id)] = append(where[delta.KeyOf(id)], key)
		}
		cmd := r.WithConcern(bson.D{{Key: "aggregate", Value: coll}, {Key: "pipeline", Value: versions.Before(coll, asked)},
			{Key: "cursor", Value: bson.D{}}})
		err := r.Each(ctx, db, cmd, 0, func(doc []byte) error {
			v, err := versions.Parse(doc)
			if err != nil || v.Doc == nil {
				return err
			}
			for _, key := range where[delta.KeyOf(v.Key)] {
				p.keep(key, v.Doc)
			}
			return nil
		})
		if err != nil {
			return err
		}
		keys = keys[n:]
	}
	return nil
}
