package verify

import (
	"bytes"
	"context"
	"errors"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/scan"
	"github.com/millrace/millrace/internal/versions"
)

// probe fetches documents of one side by _id. The server decides which _ids are equal, also with
// other bytes (int32 1 and double 1.0, strings of a collation): such a document comes with its own
// _id. It belongs to one goroutine.
type probe struct {
	*side
	found    map[string][]byte // what the last fetch found, by the id asked for
	buffered int
}

func newProbe(s *side) *probe { return &probe{side: s, found: map[string][]byte{}} }

// pairs fetches documents from both sides and passes them on with the indexes of their _ids; nil
// stands for none.
func (c *collection) pairs(ctx context.Context, keys []string, do func(i int, a, b []byte) error) error {
	src, dst := newProbe(&c.sides[source]), newProbe(&c.sides[target])
	defer src.free()
	defer dst.free()
	if err := dst.fetch(ctx, keys); err != nil {
		return err
	}
	if err := src.fetch(ctx, keys); err != nil {
		return err
	}
	for i, k := range keys {
		if err := do(i, src.found[k], dst.found[k]); err != nil {
			return err
		}
	}
	return nil
}

func (p *probe) free() {
	clear(p.found)
	p.e.c.account(-p.buffered)
	p.buffered = 0
}

func (p *probe) fetch(ctx context.Context, keys []string) error {
	p.free()
	if err := p.again(ctx); err != nil {
		return err
	}
	return p.read(ctx, scan.Member{}, func(r *scan.Reader) (err error) {
		if p.history {
			return p.newest(ctx, r, keys)
		}
		alone := keys
		if !p.Clustered() { // there, $in would walk the whole collection
			if alone, err = p.byList(ctx, r, keys); err != nil {
				return err
			}
		}
		for _, k := range alone {
			if err := p.single(ctx, r, k); err != nil {
				return err
			}
		}
		return nil
	})
}

// again describes a collection that was missing: it may exist by now.
func (p *probe) again(ctx context.Context) error {
	if p.exists {
		return nil
	}
	now, err := p.e.describe(ctx, p.i, p.NS)
	if errors.Is(err, errNoDocuments) {
		return nil // the comparison of the catalogs tells
	}
	if err != nil {
		return err
	}
	now.chosen, now.mapped, now.history = p.chosen, p.mapped, p.history
	p.side = &now
	return nil
}

// byList fetches with one $in and returns the keys to be fetched singly.
func (p *probe) byList(ctx context.Context, r *scan.Reader, keys []string) (alone []string, err error) {
	in := make(bson.A, 0, len(keys))
	wanted := make(map[string]bool, len(keys))
	for _, k := range keys {
		if v := idValue(k); v.Type == bson.TypeUndefined {
			alone = append(alone, k) // refused in a $in
		} else {
			in = append(in, v)
			wanted[k] = true
		}
	}
	if len(in) == 0 {
		return alone, nil
	}
	others := map[string]int{} // how many ids, wanted or found, share a canonical key
	err = p.query(ctx, r, bson.D{{Key: "$in", Value: in}}, func(id string, doc []byte) {
		if wanted[id] {
			p.keep(id, doc)
			return
		}
		others[canonicalID(id)]++
	})
	if mongo.IsCode(err, mongo.CodeBadValue) {
		return keys, nil // an id that looks like an operator
	}
	if err != nil || len(p.found) == len(wanted) {
		return alone, err
	}
	return append(alone, p.ambiguous(wanted, others)...), nil
}

// ambiguous returns the keys without a document of exactly that _id for which another document may
// stand in.
func (p *probe) ambiguous(wanted map[string]bool, others map[string]int) (alone []string) {
	for k := range wanted {
		others[canonicalID(k)]++
	}
	for k := range wanted {
		if p.found[k] == nil && (others[canonicalID(k)] > 1 || p.folds(k)) {
			alone = append(alone, k)
		}
	}
	return alone
}

// canonicalID is the same for _ids that are equal in an index without collation.
func canonicalID(key string) string {
	return delta.KeyOf(bsonraw.KeyID(key))
}

// folds reports whether the collation may take another _id for this one.
func (s *side) folds(key string) bool {
	if !s.Collated() {
		return false
	}
	switch bson.Type(key[0]) {
	case bson.TypeString, bson.TypeSymbol, bson.TypeEmbeddedDocument, bson.TypeArray:
		return true
	}
	return false
}

func (p *probe) single(ctx context.Context, r *scan.Reader, key string) error {
	v := idValue(key)
	cond := bson.D{{Key: "$eq", Value: v}}
	if v.Type == bson.TypeUndefined {
		cond = bson.D{{Key: "$type", Value: "undefined"}}
	}
	return p.query(ctx, r, cond, func(id string, doc []byte) {
		// null also finds undefined, which an index tells apart.
		alike := (bson.Type(id[0]) == bson.TypeUndefined) == (v.Type == bson.TypeUndefined)
		if id == key || alike && p.found[key] == nil {
			p.keep(key, doc)
		}
	})
}

// keep takes a document that was found. Shards may have several of one _id.
func (p *probe) keep(key string, doc []byte) {
	was := p.found[key]
	if keyOf(was, nil) == key && p.cluster().Info.Kind == mongo.KindSharded {
		p.found[key] = together(was, doc)
	} else {
		p.found[key] = bytes.Clone(doc)
	}
	more := len(p.found[key]) - len(was)
	p.buffered += more
	p.e.c.account(more)
}

func (p *probe) query(ctx context.Context, r *scan.Reader, cond bson.D, fn func(id string, doc []byte)) error {
	batch := p.want(p.e.limits.batch, false).Batch
	filter := bson.E{Key: "filter", Value: bson.D{{Key: "_id", Value: cond}}}
	cmd := r.Find(&p.Collection, filter, bson.E{Key: "batchSize", Value: batch})
	if p.order == scan.ByID {
		cmd = append(cmd, bson.E{Key: "hint", Value: bson.D{{Key: "_id", Value: 1}}})
	}
	db, _ := mongo.SplitNS(p.NS)
	var key []byte
	return r.Each(ctx, db, cmd, batch, func(doc []byte) error {
		var ok bool
		if key, ok = appendID(key[:0], doc); !ok {
			return errMalformed(p.NS)
		}
		if p.chosen != nil && !p.chosen(doc) {
			return nil
		}
		if p.mapped != nil {
			var err error
			if doc, err = p.mapped(nil, doc); err != nil {
				return err
			}
		}
		fn(string(key), doc)
		return nil
	})
}

// ofVersions converts a bound between documents into one between their versions.
func ofVersions(bound bson.Raw) bson.Raw {
	if len(bound) == 0 {
		return nil
	}
	raw, _ := bson.Marshal(bson.D{{Key: "_id", Value: versions.Least(bsonraw.IDOf(bound))}}) // of what is BSON
	return raw
}

const versionsAtOnce = 200

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
