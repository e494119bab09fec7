package placing

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/shardkey"
)

// Rules say by which keys collections are sharded, by their names on the source. The zero value has none.
type Rules struct {
	ruled[bson.Raw] // nil for one that is to stay unsharded
}

type ruled[T any] struct{ by map[string]T }

// Of returns the rule about a name; ok is false without one.
func (r ruled[T]) Of(name string) (says T, ok bool) {
	says, ok = r.by[name]
	return says, ok
}

// Names are the names that rules are about, sorted.
func (r ruled[T]) Names() []string { return slices.Sorted(maps.Keys(r.by)) }

// ParseRules reads rules such as shop.orders=customer:1,_id:hashed, shop.orders={"customer": 1} and shop.orders=none.
func ParseRules(texts []string) (Rules, error) {
	r := Rules{ruled[bson.Raw]{map[string]bson.Raw{}}}
	for _, text := range texts {
		ns, key, ok := strings.Cut(text, "=")
		db, coll := mongo.SplitNS(ns)
		if !ok || db == "" || coll == "" {
			return r, fmt.Errorf("%q is not database.collection=key", text)
		}
		if _, twice := r.by[ns]; twice {
			return r, fmt.Errorf("names %s twice", ns)
		}
		pattern, err := parseKey(strings.TrimSpace(key))
		if err != nil {
			return r, fmt.Errorf("of %s: %w", ns, err)
		}
		r.by[ns] = pattern
	}
	return r, nil
}

func parseKey(text string) (bson.Raw, error) {
	var key bson.D
	switch {
	case text == "none":
		return nil, nil
	case strings.HasPrefix(text, "{"):
		if err := bson.UnmarshalExtJSON([]byte(text), false, &key); err != nil {
			return nil, fmt.Errorf("the key %s is not JSON: %w", text, err)
		}
	default:
		for part := range strings.SplitSeq(text, ",") {
			name, how, _ := strings.Cut(strings.TrimSpace(part), ":")
			key = append(key, bson.E{Key: strings.TrimSpace(name), Value: strings.TrimSpace(how)})
		}
	}
	return checkKey(key)
}

// checkKey checks a key and gives it the servers' form.
func checkKey(key bson.D) (bson.Raw, error) {
	hashed, seen := 0, map[string]bool{}
	for i, e := range key {
		if e.Key == "" || strings.HasPrefix(e.Key, "$") || seen[e.Key] {
			return nil, fmt.Errorf("%q cannot be a field of the key", e.Key)
		}
		seen[e.Key] = true
		switch fmt.Sprint(e.Value) {
		case "hashed":
			hashed++
			key[i].Value = "hashed"
		case "1", "":
			key[i].Value = int32(1)
		default:
			return nil, fmt.Errorf("field %s of the key is %v: want 1 or hashed", e.Key, e.Value)
		}
	}
	switch {
	case len(key) == 0:
		return nil, errors.New("the key has no fields")
	case hashed > 1:
		return nil, errors.New("two fields of the key are hashed; servers hash one at most")
	}
	return bson.Marshal(key)
}

// SameKey reports that two patterns of shard keys mean the same.
func SameKey(a, b bson.Raw) bool {
	return slices.EqualFunc(shardkey.Parse(a), shardkey.Parse(b), func(x, y shardkey.Field) bool {
		return x.Path == y.Path && x.Hashed == y.Hashed
	})
}

// placedCollection, in the target's mongo.StateDB, has one document for each job and collection, and for each zone
// whose shards were chosen.
const placedCollection = "placed"

// note is what a job does to a collection of the target. It is durable before that begins.
type note struct {
	ID noteID `bson:"_id"`
	// Key is the shard key. It and Cuts are bytes: names of fields may have dots.
	Key []byte `bson:"key"`
	// Chunks is how many a hashed key begins with; 0 leaves it to the server.
	Chunks int `bson:"chunks,omitempty"`
	// Cuts are the bounds between ranges, Owners the shards of the ranges: one more.
	Cuts   [][]byte `bson:"cuts,omitempty"`
	Owners []string `bson:"owners,omitempty"`
	// Zones are the ranges of zones that the job sets. Foreign says that the target had some before, which stay.
	Zones   []notedZone `bson:"zones,omitempty"`
	Foreign bool        `bson:"foreign,omitempty"`
	// StandIn says that an index of ours replaces one of the source's that is not built yet.
	StandIn bool `bson:"standIn,omitempty"`
	// Placed says that all of this is done.
	Placed bool `bson:"placed,omitempty"`

	// Off says that the balancer may ignore the collection with this UUID, Was what noBalance was before.
	Off  bool        `bson:"off,omitempty"`
	Was  *bool       `bson:"was,omitempty"`
	UUID bson.Binary `bson:"uuid,omitempty"`
}

type noteID struct {
	Job string `bson:"job"`
	NS  string `bson:"ns"` // on the target
}

func (p *Placer) id(ns string) noteID { return noteID{p.o.Job, ns} }

func (p *Placer) note(ctx context.Context, ns string) (n note, found bool, err error) {
	found, err = p.find(ctx, p.id(ns), &n)
	return n, found, mongo.Wrap(err, "read how %s is to be sharded", ns)
}

func (p *Placer) find(ctx context.Context, id, into any) (found bool, err error) {
	err = p.stored().FindOne(ctx, bson.D{{Key: "_id", Value: id}}).Decode(into)
	if errors.Is(err, driver.ErrNoDocuments) {
		return false, nil
	}
	return err == nil, err
}

func (p *Placer) notes(ctx context.Context) ([]note, error) {
	ours := bson.D{mongo.OfJobDocuments(p.o.Job), {Key: "_id.ns", Value: bson.D{{Key: "$exists", Value: true}}}}
	return mongo.ReadAll[note](ctx, "read which collections the job has sharded")(
		p.stored().Find(ctx, ours, options.Find().SetSort(bson.D{{Key: "_id", Value: 1}})))
}

func (p *Placer) stored() *driver.Collection {
	return p.c.Client.Database(mongo.StateDB,
		options.Database().SetReadPreference(readpref.Primary())).Collection(placedCollection)
}

func (p *Placer) save(ctx context.Context, n note) error {
	return mongo.Wrap(p.saveAs(ctx, n.ID, n), "note how %s is sharded", n.ID.NS)
}

func (p *Placer) saveAs(ctx context.Context, id, what any) error {
	statement := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: id}}}, {Key: "u", Value: what},
		{Key: "upsert", Value: true}}
	_, err := p.c.UpdateState(ctx, placedCollection, "majority", statement)
	return err
}

func (p *Placer) forget(ctx context.Context, which bson.D) error {
	_, err := p.c.DeleteState(ctx, placedCollection, "majority", which)
	return mongo.Wrap(err, "forget what is sharded")
}
