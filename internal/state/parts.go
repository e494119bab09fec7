package state

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

type sliceDoc struct {
	Job   string   `bson:"job"`
	State bson.Raw `bson:"state"`
}

// LoadSlices reads collection "slices". See Slices.
func (s *Mongo) LoadSlices(ctx context.Context) ([]bson.Raw, error) {
	docs, err := all[sliceDoc](ctx, s, "slices")
	out := make([]bson.Raw, len(docs))
	for i, d := range docs {
		out[i] = d.State
	}
	return out, err
}

// SaveSlices proves, then stores with the write concern. See Slices.
func (s *Mongo) SaveSlices(ctx context.Context, list []Slice) error {
	s.saveMu.Lock()
	defer s.saveMu.Unlock()
	failpoint.Hit("slices.before")
	defer failpoint.Hit("slices.after")
	// Always a write: it refuses a displaced owner.
	if err := s.set(ctx, nil, s.o.Write); err != nil {
		return err
	}
	failpoint.Hit("slices.written")
	updates := make([]bson.D, len(list))
	for i, sl := range list {
		updates[i] = replace(s.o.Job+"/"+sl.ID, sliceDoc{Job: s.o.Job, State: sl.State})
	}
	err := s.proof(func() (int64, error) { return s.c.UpdateState(ctx, "slices", s.o.Write, updates...) })
	return mongo.Wrap(err, "save slices of job %s", s.o.Job)
}

// DropSlices deletes a range of _ids. See Slices.
func (s *Mongo) DropSlices(ctx context.Context, prefix string) error {
	start := s.o.Job + "/" + prefix
	err := s.delete(ctx, "slices",
		bson.D{{Key: "_id", Value: bson.D{{Key: "$gte", Value: start}, {Key: "$lt", Value: start + "\U0010ffff"}}}})
	return mongo.Wrap(err, "forget slices of job %s", s.o.Job)
}

type collectionDoc struct {
	ID     string `bson:"_id"`
	Job    string `bson:"job"`
	Order  int    `bson:"order"`
	Target string `bson:"target"`
	// Bytes are the collection's: servers before 5.0 refuse names that start with a dollar sign, as
	// in validators and partial indexes.
	Bytes           []byte `bson:"bytes,omitempty"`
	schema.Presence `bson:",inline"`
}

func (s *Mongo) collectionDoc(order int, m Mapped) (bson.D, error) {
	bytes, err := bson.Marshal(m.Collection)
	if err != nil {
		return nil, fmt.Errorf("encode the catalog's entry of %s: %w", m.NS, err)
	}
	id := s.o.Job + "/" + m.NS
	return replace(id, collectionDoc{ID: id, Job: s.o.Job, Order: order, Target: m.Target, Bytes: bytes,
		Presence: m.Presence}), nil
}

// SaveCatalog replaces the job's documents. See Catalog.
func (s *Mongo) SaveCatalog(ctx context.Context, colls []Mapped) error {
	const perCommand = 100 // each may be large
	var err error
	if !s.noCatalog.Swap(false) {
		err = s.delete(ctx, "collections", bson.D{mongo.OfJob(s.o.Job)})
	}
	for from := 0; from < len(colls) && err == nil; from += perCommand {
		var puts []bson.D
		to := min(from+perCommand, len(colls))
		for i, m := range colls[from:to] {
			var put bson.D
			if put, err = s.collectionDoc(from+i, m); err != nil {
				return err
			}
			puts = append(puts, put)
		}
		if to < len(colls) {
			err = s.update(ctx, "collections", puts...)
		} else { // with it all of them are durable
			err = s.proof(func() (int64, error) { return s.c.UpdateState(ctx, "collections", s.o.Write, puts...) })
		}
	}
	return mongo.Wrap(err, "save catalog of job %s", s.o.Job)
}

// LoadCatalog reads collection "collections". See Catalog.
func (s *Mongo) LoadCatalog(ctx context.Context) ([]Mapped, error) {
	docs, err := all[collectionDoc](ctx, s, "collections")
	// Sorted here: the server bounds what it sorts in memory.
	slices.SortFunc(docs, func(a, b collectionDoc) int { return a.Order - b.Order })
	out := make([]Mapped, len(docs))
	for i, d := range docs {
		out[i] = Mapped{Target: d.Target, Presence: d.Presence}
		if bad := bson.Unmarshal(d.Bytes, &out[i].Collection); bad != nil {
			err = cmp.Or(err, fmt.Errorf("read the catalog's entry %s: %w", d.ID, bad))
		}
	}
	return out, err
}

// NoteNames stores with write concern 1. See Catalog.
func (s *Mongo) NoteNames(ctx context.Context, change schema.NameChange) error {
	var puts, removes []bson.D
	put := map[string]bool{}
	for _, one := range change.Put {
		put[one.NS] = true
		coll := schema.Collection{NS: one.NS, Type: one.Type, UUID: one.UUID, Options: bson.Raw{5, 0, 0, 0, 0}}
		doc, err := s.collectionDoc(0, Mapped{Collection: coll, Target: one.Target, Presence: one.Presence})
		if err != nil {
			return err
		}
		puts = append(puts, doc)
	}
	for _, ns := range change.Removed {
		if !put[ns] {
			removes = append(removes, bson.D{{Key: "_id", Value: s.o.Job + "/" + ns}})
		}
	}
	s.noCatalog.Store(false)
	err := s.update(ctx, "collections", puts...)
	if err == nil {
		err = s.delete(ctx, "collections", removes...)
	}
	return mongo.Wrap(err, "save the names of job %s", s.o.Job)
}

type skippedDoc struct {
	ID  string `bson:"_id"`
	Job string `bson:"job"`
	// Generation identifies one save: parts of two saves are two lists.
	Generation string         `bson:"generation"`
	N          int            `bson:"n"`
	Docs       []stream.Place `bson:"docs"`
}

const maxPartBytes = 4 << 20

// SaveSkipped stores with write concern 1; the next position proves it. The old list is removed
// last: after an interrupted save both are loaded, and superfluous places do no harm. See Skipped.
func (s *Mongo) SaveSkipped(ctx context.Context, docs []stream.Place) (err error) {
	generation := bson.NewObjectID().Hex()
	parts := s.skippedParts(generation, docs)
	for i := 0; i < len(parts) && err == nil; i++ { // each is large
		err = s.update(ctx, "skipped", replace(parts[i].ID, parts[i]))
	}
	if err == nil {
		err = s.delete(ctx, "skipped", bson.D{mongo.OfJob(s.o.Job),
			{Key: "generation", Value: bson.D{{Key: "$ne", Value: generation}}}})
	}
	return mongo.Wrap(err, "save skipped documents of job %s", s.o.Job)
}

func (s *Mongo) skippedParts(generation string, docs []stream.Place) (parts []skippedDoc) {
	left := 0
	for _, d := range docs {
		size := len(d.ID.Value) + len(d.NS) + 128
		if left -= size; left < 0 {
			parts = append(parts, skippedDoc{ID: fmt.Sprintf("%s/%s/%d", s.o.Job, generation, len(parts)), Job: s.o.Job,
				Generation: generation, N: len(parts)})
			left = maxPartBytes - size
		}
		last := &parts[len(parts)-1]
		last.Docs = append(last.Docs, d)
	}
	return parts
}

// LoadSkipped reads collection "skipped". See Skipped.
func (s *Mongo) LoadSkipped(ctx context.Context) (out []stream.Place, err error) {
	parts, err := all[skippedDoc](ctx, s, "skipped")
	for _, p := range parts {
		out = append(out, p.Docs...)
	}
	return out, err
}

func (s *Mongo) update(ctx context.Context, coll string, statements ...bson.D) error {
	term, err := s.c.UpdateState(ctx, coll, 1, statements...)
	if err == nil {
		err = s.SameTerm(term)
	}
	return err
}

func (s *Mongo) delete(ctx context.Context, coll string, filters ...bson.D) error {
	term, err := s.c.DeleteState(ctx, coll, 1, filters...)
	if err == nil {
		err = s.SameTerm(term)
	}
	return err
}
