package seed

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// A clone that follows its old set must not expire documents by itself: it would
// remove those whose refresh it has not applied yet, and the update that refreshes
// them would find nothing. So its expiries are held back in the files themselves, as
// a job holds them back, and are the job's to restore when it is finalized.

// monitorOff keeps a mongod from expiring documents.
const monitorOff = "ttlMonitorEnabled=false"

// heldCollection of mongo.StateDB is where jobs note what they hold back.
const heldCollection = "held"

// farAway is the expiry that stands in for one that is held back, in seconds: beyond
// any in use, but not beyond 1970, which servers before 5.1 refuse.
const farAway = 1_600_000_000

// followJob names the job that is to follow the old set.
func followJob(set string) string {
	name := []byte("clone-" + set)
	for i, c := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", rune(c)) {
			name[i] = '_'
		}
	}
	return string(name[:min(len(name), 64)])
}

// expiries holds back when documents expire.
type expiries struct {
	c   *driver.Client
	job string
	n   int // were held back
}

// holdExpiries holds back every expiry of a server's collections for a job, and reports
// how many there were. What is held back is noted before it is changed.
func holdExpiries(ctx context.Context, c *driver.Client, job string) (int, error) {
	h := &expiries{c: c, job: job}
	dbs, err := c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return 0, err
	}
	for _, db := range dbs {
		if mongo.IsInternal(db) {
			continue
		}
		if err := h.database(ctx, c.Database(db)); err != nil {
			return h.n, mongo.WithHint(fmt.Errorf("hold back the expiries of %s: %w", db, err), "for a clone that is not to follow its old set give --keep-expiry")
		}
	}
	return h.n, nil
}

func (h *expiries) database(ctx context.Context, db *driver.Database) error {
	cur, err := db.ListCollections(ctx, bson.D{})
	if err != nil {
		return err
	}
	var colls []expiringCollection
	if err := cur.All(ctx, &colls); err != nil {
		return err
	}
	for _, c := range colls {
		if c.Type == "view" || strings.HasPrefix(c.Name, "system.") {
			continue // a series' buckets are changed by its own name
		}
		if err := h.collection(ctx, db, c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

// expiringCollection is a collection as the server lists it.
type expiringCollection struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
}

func (c expiringCollection) is(option string) bool {
	on, _ := c.Options.Lookup(option).BooleanOK()
	return on
}

func (h *expiries) collection(ctx context.Context, db *driver.Database, c expiringCollection) error {
	ns := db.Name() + "." + c.Name
	if v, err := c.Options.LookupErr("expireAfterSeconds"); err == nil { // of a clustered collection or a series
		if err := h.note(ctx, ns, "", v, nil); err != nil {
			return err
		}
		if err := h.collMod(ctx, db, c, bson.E{Key: "expireAfterSeconds", Value: "off"}); err != nil {
			return err
		}
	}
	if c.is("capped") {
		return nil // nothing expires there, and collMod is refused
	}
	cur, err := db.Collection(c.Name).Indexes().List(ctx)
	if err != nil {
		return err
	}
	var indexes []bson.Raw
	if err := cur.All(ctx, &indexes); err != nil {
		return err
	}
	for _, ix := range indexes {
		if err := h.index(ctx, db, c, ix); err != nil {
			return err
		}
	}
	return nil
}

func (h *expiries) index(ctx context.Context, db *driver.Database, c expiringCollection, spec bson.Raw) error {
	v, err := spec.LookupErr("expireAfterSeconds")
	if err != nil {
		return nil //nolint:nilerr // it expires nothing
	}
	name, _ := spec.Lookup("name").StringValueOK()
	keys, err := spec.Lookup("key").Document().Elements()
	if err != nil || len(keys) != 1 {
		return err // old servers took an expiry of more keys, and expire nothing by it
	}
	if err := h.note(ctx, db.Name()+"."+c.Name, name, v, spec); err != nil {
		return err
	}
	seconds, _ := wholeSeconds(v)
	return h.collMod(ctx, db, c, bson.E{Key: "index", Value: bson.D{{Key: "name", Value: name}, {Key: "expireAfterSeconds", Value: max(seconds, farAway)}}})
}

func (h *expiries) collMod(ctx context.Context, db *driver.Database, c expiringCollection, what bson.E) error {
	cmd := bson.D{{Key: "collMod", Value: c.Name}, what}
	if c.is("recordPreImages") { // some servers switch it off where it is not repeated
		cmd = append(cmd, bson.E{Key: "recordPreImages", Value: true})
	}
	return db.RunCommand(ctx, cmd).Err()
}

// wholeSeconds is the expiry of an index; one that is no time or beyond all is the
// largest.
func wholeSeconds(v bson.RawValue) (int64, bool) {
	if f, ok := v.DoubleOK(); ok && !(f < math.MaxInt32) {
		return math.MaxInt32, true
	}
	return v.AsInt64OK()
}

// note writes down what is held back, in the format of internal/schema. The numbers
// of an index are whole seconds there.
func (h *expiries) note(ctx context.Context, ns, index string, expire bson.RawValue, spec bson.Raw) error {
	var value any = expire
	if index != "" {
		n, ok := wholeSeconds(expire)
		if !ok {
			return errors.New("the expiry of index " + index + " is no number")
		}
		value = n
	}
	id := bson.D{{Key: "job", Value: h.job}, {Key: "ns", Value: ns}, {Key: "index", Value: index}}
	doc := bson.D{{Key: "_id", Value: id}, {Key: "unbuilt", Value: false}, {Key: "expire", Value: value}}
	if spec != nil {
		doc = append(doc, bson.E{Key: "spec", Value: []byte(spec)})
	}
	_, err := h.c.Database(mongo.StateDB).Collection(heldCollection).ReplaceOne(ctx, bson.D{{Key: "_id", Value: id}}, doc, options.Replace().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("note what is held back: %w", err)
	}
	h.n++
	return nil
}

// holds reports whether the copy becomes a set that is to follow its old one.
func (o MemberOptions) holds() bool { return o.NewSet != "" && !o.KeepExpiry }

// startCommand is the command of the new member, which expires nothing if it is to
// follow its old set.
func (o MemberOptions) startCommand() []string {
	set := slices.ContainsFunc(o.Command, func(s string) bool { return strings.Contains(s, "ttlMonitorEnabled") })
	if !o.holds() || set || program(o.Command) == nil {
		return o.Command
	}
	return slices.Concat(o.Command, []string{"--setParameter", monitorOff})
}

// stopExpiring has a started mongod expire nothing, whatever it was started by. It
// does so a minute after its start at the earliest.
func (o Options) stopExpiring(ctx context.Context, c *driver.Client) {
	if !o.Member.holds() {
		return
	}
	err := c.Database("admin").RunCommand(ctx, bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: false}}).Err()
	if err != nil && len(o.Member.startCommand()) == len(o.Member.Command) {
		o.Pull.Log.Warn("the new set's server could not be told to expire nothing; it has far expiries until the job that follows is finalized", "error", err,
			"hint", "start it with --setParameter "+monitorOff)
	}
}
