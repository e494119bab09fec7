package deadletter

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/wire"
)

const (
	Collection      = "deadletters"
	partsCollection = "deadletters.parts"
)

// Where is the name of the collection.
const Where = mongo.StateDB + "." + Collection

// keptInMongo is a Keeper in the target itself. Dead letters are written with write concern 1. They
// become durable with the next checkpoint: the target's oplog is one order, and the terms of the
// writes are observed.
type keptInMongo struct {
	c       *mongo.Cluster
	job     string
	observe func(term int64) error
}

type stored struct {
	Letter   `bson:",inline"`
	Job      string        `bson:"job"`
	DocID    bson.RawValue `bson:"documentId,omitempty"`
	IDText   string        `bson:"documentIdText"`
	Document bson.Raw      `bson:"document,omitempty"`
	// A document that cannot be embedded is kept as bytes, in parts.
	Parts  int       `bson:"parts"`
	Of     string    `bson:"partsOf"`
	Bytes  int       `bson:"bytes"`
	Update time.Time `bson:"updated"`
	Key    Key       `bson:"key"`
}

// Prepare creates the collections, which transactions on 4.2 cannot.
func (k *keptInMongo) Prepare(ctx context.Context) error {
	for _, name := range []string{Collection, partsCollection} {
		_, err := k.c.Write(ctx, mongo.StateDB, bson.D{{Key: "create", Value: name}})
		if err != nil && mongo.Classify(err) != mongo.ClassExists {
			return fmt.Errorf("create collection %s for dead letters: %w", name, err)
		}
	}
	return nil
}

func (k *keptInMongo) Cases(ctx context.Context) ([]Case, error) {
	fields := bson.D{{Key: "ns", Value: 1}, {Key: "key", Value: 1}, {Key: "state", Value: 1}, {Key: "until", Value: 1}}
	return mongo.ReadAll[Case](ctx, "read dead letters")(k.collection(Collection).Find(ctx, bson.D{mongo.OfJob(k.job)},
		options.Find().SetProjection(fields)))
}

func (k *keptInMongo) collection(name string) *driver.Collection {
	return k.c.Client.Database(mongo.StateDB).Collection(name)
}

func (k *keptInMongo) Get(ctx context.Context, id string) (Letter, error) {
	var d stored
	if err := k.collection(Collection).FindOne(ctx, byID(id)).Decode(&d); err != nil {
		return Letter{}, fmt.Errorf("read dead letter %s: %w", id, err)
	}
	l := d.Letter
	l.Doc = d.Document
	for n := range d.Parts {
		var p struct{ Data []byte }
		if err := k.collection(partsCollection).FindOne(ctx, byID(partID(d.Of, n))).Decode(&p); err != nil {
			return Letter{}, fmt.Errorf("read part %d of dead letter %s: %w", n, id, err)
		}
		l.Doc = append(l.Doc, p.Data...)
	}
	if l.DocID = bsonraw.FromRaw(d.DocID); d.DocID.IsZero() {
		l.DocID = bsonraw.IDOf(l.Doc)
	}
	return l, nil
}

func byID(id string) bson.D { return bson.D{{Key: "_id", Value: id}} }

// partsOf selects all parts of a dead letter by a range of _ids; see commands.
func partsOf(letter string) bson.E {
	// "A" follows "@".
	return bson.E{Key: "_id", Value: bson.D{{Key: "$gte", Value: letter + "@"}, {Key: "$lt", Value: letter + "A"}}}
}

func partID(of string, n int) string { return fmt.Sprintf("%s#%d", of, n) }

func commands(job string, l *Letter) []bson.D {
	d := stored{Letter: *l, Job: job, DocID: storable(l.DocID), IDText: bsonraw.IDText(l.DocID), Bytes: len(l.Doc),
		Key: KeyOf(l.DocID), Update: time.Now().UTC()}
	d.Other = storable(bsonraw.FromRaw(l.Other))
	var cmds []bson.D
	if len(l.Doc) > 0 && embeddable(l.Doc) {
		d.Document = l.Doc
	} else if len(l.Doc) > 0 {
		// Named by their content: a crash never leaves parts of two states.
		sum := sha256.Sum256(l.Doc)
		d.Of = l.ID + "@" + hex.EncodeToString(sum[:8])
		for part := range slices.Chunk(l.Doc, partSize) {
			cmds = append(cmds, upsert(partsCollection, partID(d.Of, d.Parts), bson.D{{Key: "$set", Value: bson.D{
				{Key: "letter", Value: l.ID}, {Key: "of", Value: d.Of}, {Key: "data", Value: part}}}}))
			d.Parts++
		}
	}
	cmds = append(cmds, upsert(Collection, l.ID, d.update()))
	others := bson.D{partsOf(l.ID), {Key: "letter", Value: l.ID}, {Key: "of", Value: bson.D{{Key: "$ne", Value: d.Of}}}}
	return append(cmds, deleteAll(partsCollection, others))
}

// update sets fields, and removes optional ones that are absent. Unknown fields stay, such as the
// position of a rename.
func (d stored) update() bson.D {
	raw, err := bson.Marshal(d)
	var fields []bson.RawElement
	if err == nil {
		fields, err = bson.Raw(raw).Elements()
	}
	if err != nil {
		return bson.D{{Key: "$set", Value: d}} // it is no BSON, and fails where it is sent
	}
	unset := bson.M{}
	for _, optional := range []string{"documentId", "document", "index", "source", "uuid", "targetUuid", "otherId"} {
		unset[optional] = ""
	}
	var set bson.D
	for _, f := range fields[1:] { // without _id; a document's bytes stay as they are
		set = append(set, bson.E{Key: f.Key(), Value: f.Value()})
		delete(unset, f.Key())
	}
	u := bson.D{{Key: "$set", Value: set}, {Key: "$setOnInsert", Value: bson.D{{Key: "time", Value: d.Update}}}}
	if len(unset) > 0 {
		u = append(u, bson.E{Key: "$unset", Value: unset})
	}
	return u
}

func update(coll, id string, change bson.D, more ...bson.E) bson.D {
	return bson.D{{Key: "update", Value: coll}, {Key: "updates", Value: bson.A{
		append(bson.D{{Key: "q", Value: byID(id)}, {Key: "u", Value: change}}, more...)}}}
}

func upsert(coll, id string, change bson.D) bson.D {
	return update(coll, id, change, bson.E{Key: "upsert", Value: true})
}

func deleteAll(coll string, filter bson.D) bson.D {
	all := bson.D{{Key: "q", Value: filter}, {Key: "limit", Value: 0}}
	return bson.D{{Key: "delete", Value: coll}, {Key: "deletes", Value: bson.A{all}}}
}

func (k *keptInMongo) Put(ctx context.Context, l Letter) error {
	return k.run(ctx, commands(k.job, &l)...)
}

func (k *keptInMongo) Settle(ctx context.Context, id, reason string) error {
	return k.run(ctx, SettleCommand(Letter{ID: id}, reason))
}

// SettleCommand returns the command that settles a dead letter, to be followed by Forgotten.
func SettleCommand(l Letter, reason string) bson.D {
	return update(Collection, l.ID, bson.D{{Key: "$set", Value: settled(reason)}})
}

func settled(reason string) bson.D {
	now := time.Now().UTC()
	return bson.D{{Key: "state", Value: Settled}, {Key: "settledBy", Value: reason}, {Key: "settledAt", Value: now}}
}

func (k *keptInMongo) Remove(ctx context.Context, id string) error {
	parts := bson.D{partsOf(id), {Key: "letter", Value: id}}
	return k.run(ctx, deleteAll(Collection, byID(id)), deleteAll(partsCollection, parts))
}

func (k *keptInMongo) Move(ctx context.Context, from, to string, at mongo.OpTime) error {
	return k.updateAll(ctx, k.inDispute(from), bson.D{{Key: "ns", Value: to}, {Key: "moved", Value: at}})
}

// SettleAll settles the dead letters of a namespace, except those that Move brought.
func (k *keptInMongo) SettleAll(ctx context.Context, ns, reason string, but mongo.OpTime) error {
	filter := k.inDispute(ns)
	if !but.IsZero() {
		filter = append(filter, bson.E{Key: "moved", Value: bson.D{{Key: "$ne", Value: but}}})
	}
	return k.updateAll(ctx, filter, settled(reason))
}

func (k *keptInMongo) Reset(ctx context.Context) error {
	filter := bson.D{mongo.OfJob(k.job), {Key: "state", Value: bson.D{{Key: "$ne", Value: Removed}}}}
	_, err := k.c.DeleteState(ctx, Collection, "majority", filter)
	return err
}

// Bind notes the target collection of each dead letter in dispute of a finalized job: applications
// may reuse its name. uuid returns it; empty for none.
func Bind(
	ctx context.Context, c *mongo.Cluster, job string, uuid func(ctx context.Context, ns string) (bson.Binary, error),
) error {
	k := &keptInMongo{c: c, job: job}
	cases, err := k.Cases(ctx)
	if err != nil {
		return err
	}
	names := map[string]bool{}
	for _, one := range cases {
		if one.State.InDispute() && !names[one.NS] {
			names[one.NS] = true
			id, err := uuid(ctx, one.NS)
			if err == nil {
				err = k.updateAll(ctx, k.inDispute(one.NS), bson.D{{Key: "targetUuid", Value: id}})
			}
			if err != nil {
				return fmt.Errorf("note the collection of the dead letters of %s: %w", one.NS, err)
			}
		}
	}
	return nil
}

// Drop removes all dead letters of a job, with their parts.
func Drop(ctx context.Context, c *mongo.Cluster, job string) error {
	// A part's _id begins with its letter's.
	_, err := c.DeleteState(ctx, partsCollection, "majority", bson.D{mongo.OfJob(job)})
	if err == nil {
		_, err = c.DeleteState(ctx, Collection, "majority", bson.D{mongo.OfJob(job)})
	}
	return mongo.Wrap(err, "remove the dead letters of job %s", job)
}

func (k *keptInMongo) inDispute(ns string) bson.D {
	return bson.D{mongo.OfJob(k.job), {Key: "ns", Value: ns},
		{Key: "state", Value: bson.D{{Key: "$in", Value: bson.A{Undecided, Held, Open, Unmapped}}}}}
}

func (k *keptInMongo) updateAll(ctx context.Context, filter, set bson.D) error {
	_, err := k.c.UpdateState(ctx, Collection, "majority", bson.D{{Key: "q", Value: filter},
		{Key: "u", Value: bson.D{{Key: "$set", Value: set}}}, {Key: "multi", Value: true}})
	return err
}

func (k *keptInMongo) run(ctx context.Context, cmds ...bson.D) error {
	failpoint.Hit("letter.before")
	defer failpoint.Hit("letter.after")
	for _, cmd := range cmds {
		concern := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: k.c.DataConcern()}}}
		raw, err := k.c.Write(ctx, mongo.StateDB, append(cmd, concern))
		if err == nil && k.observe != nil {
			err = k.observe(wire.ParseWriteResult([]byte(raw)).Term)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Sizes of one stored document. The server takes 16 MB at most.
const (
	maxEmbedded = 15 << 20
	partSize    = 8 << 20
	maxDepth    = 60 // levels, of the 180 that the server takes
)

// embeddable reports that any server stores the document unchanged as a field: it is neither too
// large nor too deep. Servers before 5.0 refuse names that begin with a dollar sign.
func embeddable(doc []byte) bool { return len(doc) <= maxEmbedded && plainNames(doc, 0) }

func plainNames(doc []byte, depth int) bool {
	if depth > maxDepth {
		return false
	}
	elems, err := bsoncore.Document(doc).Elements()
	if err != nil {
		return false
	}
	for _, e := range elems {
		if k := e.KeyBytes(); len(k) > 0 && k[0] == '$' {
			return false
		}
		v := e.Value()
		switch v.Type {
		case bsoncore.TypeEmbeddedDocument, bsoncore.TypeArray:
			if !plainNames(v.Data, depth+1) {
				return false
			}
		case bsoncore.TypeCodeWithScope:
			return false // the scope's names are checked by some servers
		}
	}
	return true
}

func storable(v bsoncore.Value) bson.RawValue {
	if len(v.Data) > 1<<20 || v.Type == bsoncore.TypeEmbeddedDocument && !plainNames(v.Data, 1) {
		return bson.RawValue{}
	}
	return bsonraw.RawValue(v)
}

// Nameable reports that a dead letter without a document can keep its _id.
func Nameable(id bsoncore.Value) bool { return len(storable(id).Value) > 0 || len(id.Data) == 0 }
