package state

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/stream"
)

// WayBack is where a job that leads back begins: how the target of a finalized job stood at its
// TargetPosition. It holds no secret.
type WayBack struct {
	Position stream.Position
	// Names are the collections as of then. Their NS is that of the job's target, their Target
	// that of its source, so that they are the names of the job that leads back.
	Names []schema.Name
}

// waysBack is the collection of ways back; wayBackDoc is one of its documents, a part of the names.
const waysBack = "waysback"

type wayBackDoc struct {
	ID    string        `bson:"_id"`
	Job   string        `bson:"job"`
	N     int           `bson:"n"`
	Of    int           `bson:"of"` // how many documents there are
	At    mongo.OpTime  `bson:"at"`
	Mark  string        `bson:"mark"`
	Names []schema.Name `bson:"names"`
}

// namesPerDoc keeps a part far below the size of a document.
const namesPerDoc = 10_000

// PrefixJob begins a StartAt that names a finalized job: the new one begins where that one ended.
const PrefixJob = "job:"

// StartAtJob is the job that a StartAt names.
func StartAtJob(startAt string) (job string, ok bool) { return strings.CutPrefix(startAt, PrefixJob) }

// SaveWayBack stores the way back of the attempt's job, with the write concern.
func (s *Mongo) SaveWayBack(ctx context.Context, w WayBack) error {
	err := s.delete(ctx, waysBack, bson.D{mongo.OfJob(s.o.Job)})
	parts := slices.Collect(slices.Chunk(w.Names, namesPerDoc))
	if len(parts) == 0 {
		parts = [][]schema.Name{nil}
	}
	for i, part := range parts {
		if err != nil {
			break
		}
		doc := wayBackDoc{ID: fmt.Sprintf("%s/%d", s.o.Job, i), Job: s.o.Job, N: i, Of: len(parts), At: w.Position.At,
			Mark: w.Position.Mark, Names: part}
		err = s.proof(func() (int64, error) { return s.c.UpdateState(ctx, waysBack, s.o.Write, replace(doc.ID, doc)) })
	}
	return mongo.Wrap(err, "save the way back of job %s", s.o.Job)
}

// Finished is a finalized job with its way back. Reason says why there is none, "" where there is.
type Finished struct {
	Job
	WayBack
	Reason string
}

// ErrNoJob means that a cluster has not stored a job.
var ErrNoJob = errors.New("no such job")

// LoadFinished reads a finalized job from the cluster that was its target, and its way back. What it
// reads no failover takes back.
func LoadFinished(ctx context.Context, c *mongo.Cluster, name string) (f Finished, err error) {
	db := c.Client.Database(mongo.StateDB, options.Database().SetReadPreference(readpref.Primary()).
		SetReadConcern(readconcern.Majority()))
	job := bson.D{{Key: "_id", Value: name}}
	raws, err := mongo.ReadAll[bson.Raw](ctx, "load job %s", name)(db.Collection("jobs").Find(ctx, job))
	switch {
	case err != nil:
		return f, err
	case len(raws) == 0:
		return f, mongo.WithHint(fmt.Errorf("%w: %s has none named %s", ErrNoJob, c.Address(), name),
			"a job is stored on its target, and millrace jobs list --target shows those there; millrace reverse takes "+
				"source and target as the job had them")
	}
	if f.Job, err = readJob(raws[0]); err != nil {
		return f, err
	}
	docs, err := mongo.ReadAll[wayBackDoc](ctx, "load the way back of job %s", name)(
		db.Collection(waysBack).Find(ctx, bson.D{mongo.OfJob(name)}))
	if err != nil {
		return f, err
	}
	f.read(docs)
	return f, nil
}

func (f *Finished) read(docs []wayBackDoc) {
	slices.SortFunc(docs, func(a, b wayBackDoc) int { return a.N - b.N })
	switch {
	case f.Phase != PhaseFinalized:
		f.Reason = fmt.Sprintf("it is in phase %s, and ends when it is finalized", f.Phase)
	case f.TargetPosition.IsZero():
		f.Reason = "finalize has stored no position of its target"
		if f.NoWayBack != "" {
			f.Reason += ": " + f.NoWayBack
		}
	case len(docs) == 0 || docs[0].At != f.TargetPosition: // finalize could not store it
		f.Position = stream.Position{At: f.TargetPosition}
		return
	case len(docs) != docs[0].Of:
		f.Reason = "parts of its way back are missing"
	default:
		f.Position = stream.Position{At: docs[0].At, Mark: docs[0].Mark}
	}
	for _, d := range docs {
		f.Names = append(f.Names, d.Names...)
	}
}

// HasNames reports that the collections at the cut-over are known.
func (f *Finished) HasNames() bool { return f.Position.Mark != "" }

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
