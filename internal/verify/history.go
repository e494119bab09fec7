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

// fillNewest reads the slice of a collection of versions that holds those of the documents
// in a slice, into the stream of the documents that they make.
func (st *stream) fillNewest(ctx context.Context, s *side, sl scan.Slice, want scan.Want) error {
	sl.Lower, sl.Upper = ofVersions(sl.Lower), ofVersions(sl.Upper)
	newest := versions.NewNewest(versions.Ever())
	add := func(p *page, version bson.Raw) {
		if doc := versions.Unwrap(version); doc != nil {
			p.docs = append(p.docs, doc)
		}
	}
	err := s.walk(ctx, sl, want, func(part *scan.Part) error {
		p := st.page(part.Size)
		err := part.Each(func(doc []byte) error {
			last, err := newest.Add(doc)
			if last != nil {
				add(p, last)
			}
			return err
		})
		if err != nil {
			return err
		}
		return st.send(ctx, p, want)
	})
	if err != nil {
		return err
	}
	last := newest.End()
	p := st.page(len(last))
	add(p, last)
	return st.send(ctx, p, want)
}

// ofVersions is the bound between documents as one between their versions.
func ofVersions(bound bson.Raw) bson.Raw {
	if len(bound) == 0 {
		return nil
	}
	raw, _ := bson.Marshal(bson.D{{Key: "_id", Value: versions.Least(bsonraw.IDOf(bound))}}) // of what is BSON
	return raw
}

// versionsAtOnce is how many documents one command asks for.
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
