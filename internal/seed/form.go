package seed

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
)

// Formation is what copies become: members of one new set. All its members get the same one.
type Formation struct {
	Set     string        `json:"set"`
	ID      bson.ObjectID `json:"id"` // the set's replicaSetId
	Members []SetMember   `json:"members"`
	// Job follows the source from the files' position, and restores the expiries.
	Job string `json:"job"`
	// Include and Exclude are rules of namespaces; others are removed.
	Include []string `json:"include,omitempty"`
	Exclude []string `json:"exclude,omitempty"`
	Users   bool     `json:"users"` // keeps users and roles
}

// SetMember is a member as the new set's configuration has it.
type SetMember struct {
	Host     string  `json:"host"`
	Votes    int     `json:"votes"`
	Priority float64 `json:"priority"`
	Hidden   bool    `json:"hidden,omitempty"`
}

// FormCollection has for each job whose target was made of files where they stand, in database millrace.
const FormCollection = "filecopies"

// Formed is a document of FormCollection.
type Formed struct {
	Job string       `bson:"_id"`
	At  mongo.OpTime `bson:"at"` // the source's position of the files
	// By is what the files became; nil is not known.
	By *Formation `bson:"formation,omitempty"`
}

// SameContent reports that two formations keep the same of the files.
func (f Formation) SameContent(other Formation) bool {
	return f.Users == other.Users && slices.Equal(f.Include, other.Include) && slices.Equal(f.Exclude, other.Exclude)
}

// former makes a copy a member of a new set. All its steps may be repeated.
type former struct {
	Formation
	c    *driver.Client
	keep func(ns string) bool
}

// form does everything but local, without which a copy has no oplog to recover from.
func (f *former) form(ctx context.Context, at mongo.OpTime) (deferred int, err error) {
	underWay := func(ctx context.Context) error { return endUnderWay(ctx, f.c) }
	for _, step := range []func(context.Context) error{f.removeLeftOut, underWay, f.makeState, f.clearSessions,
		f.removeUsers} {
		if err := step(ctx); err != nil {
			return 0, err
		}
	}
	if deferred, err = deferExpiries(ctx, f.c, f.Job); err != nil {
		return deferred, err
	}
	_, err = f.c.Database(mongo.StateDB).Collection(FormCollection).
		ReplaceOne(ctx, bson.D{{Key: "_id", Value: f.Job}}, Formed{f.Job, at, &f.Formation},
			options.Replace().SetUpsert(true))
	if err != nil {
		return deferred, fmt.Errorf("cannot record the position: %w", err)
	}
	return deferred, nil
}

func (f *former) removeLeftOut(ctx context.Context) error {
	dbs, err := f.c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return fmt.Errorf("cannot list the databases: %w", err)
	}
	for _, db := range dbs {
		if mongo.IsInternal(db) {
			continue
		}
		if err := f.removeFrom(ctx, f.c.Database(db)); err != nil {
			return fmt.Errorf("cannot remove what is left out of %s: %w", db, err)
		}
	}
	return nil
}

func (f *former) removeFrom(ctx context.Context, db *driver.Database) error {
	names, err := db.ListCollectionNames(ctx, bson.D{})
	if err != nil {
		return err
	}
	var drop []string
	kept := false
	for _, name := range names {
		switch {
		case mongo.OfServer(name), strings.HasPrefix(name, mongo.BucketsPrefix): // goes with its series, or its database
		case f.keep(db.Name() + "." + name):
			kept = true
		default:
			drop = append(drop, name)
		}
	}
	if !kept {
		return db.Drop(ctx)
	}
	for _, name := range drop {
		if name == "system.js" { // the command drop refuses it, replication does not
			err = f.c.Database("admin").RunCommand(ctx, bson.D{{Key: "applyOps", Value: bson.A{bson.D{{Key: "op", Value: "c"},
				{Key: "ns", Value: db.Name() + ".$cmd"}, {Key: "o", Value: bson.D{{Key: "drop", Value: name}}}}}}}).Err()
		} else {
			err = db.Collection(name).Drop(ctx)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// makeState replaces database millrace, which may be that of the source's own jobs. Members replicate by UUID, so
// the collections have the same ones everywhere.
func (f *former) makeState(ctx context.Context) error {
	db := f.c.Database(mongo.StateDB)
	there, err := db.ListCollectionSpecifications(ctx, bson.D{})
	if err != nil {
		return fmt.Errorf("cannot list database %s: %w", mongo.StateDB, err)
	}
	made := map[string]bool{}
	for _, c := range there {
		made[c.Name] = c.UUID != nil && c.UUID.Equal(f.uuid(c.Name))
	}
	if !made[FormCollection] { // else an earlier attempt has begun, whose records count
		if err := db.Drop(ctx); err != nil {
			return fmt.Errorf("cannot drop database %s: %w", mongo.StateDB, err)
		}
		clear(made)
	}
	for _, name := range []string{FormCollection, heldCollection} {
		if made[name] {
			continue
		}
		id := bson.D{{Key: "v", Value: 2}, {Key: "key", Value: bson.D{{Key: "_id", Value: 1}}}, {Key: "name", Value: "_id_"}}
		op := bson.D{{Key: "op", Value: "c"}, {Key: "ns", Value: mongo.StateDB + ".$cmd"}, {Key: "ui", Value: f.uuid(name)},
			{Key: "o", Value: bson.D{{Key: "create", Value: name}, {Key: "idIndex", Value: id}}}}
		err := f.c.Database("admin").RunCommand(ctx, bson.D{{Key: "applyOps", Value: bson.A{op}}}).Err()
		if err != nil {
			return fmt.Errorf("cannot create %s.%s: %w", mongo.StateDB, name, err)
		}
	}
	return nil
}

func (f *former) uuid(name string) bson.Binary {
	h := sha256.Sum256([]byte(f.ID.Hex() + name))
	id := h[:16]
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80
	return bson.Binary{Subtype: 4, Data: id}
}

// clearSessions removes what retryable writes and transactions of the source have left: it refers to its oplog.
func (f *former) clearSessions(ctx context.Context) error {
	for _, name := range []string{"transactions", "image_collection"} {
		if _, err := f.c.Database("config").Collection(name).DeleteMany(ctx, bson.D{}); err != nil {
			return fmt.Errorf("cannot empty config.%s: %w", name, err)
		}
	}
	return nil
}

func (f *former) removeUsers(ctx context.Context) error {
	if f.Users {
		return nil
	}
	for _, name := range []string{"system.users", "system.roles"} {
		if _, err := f.c.Database("admin").Collection(name).DeleteMany(ctx, bson.D{}); err != nil {
			return fmt.Errorf("cannot empty admin.%s: %w", name, err)
		}
	}
	return nil
}

// replaceLocal gives the copy an oplog with one entry, the same on all members, and the new set's configuration:
// a set whose members begin like this needs no initial sync.
func (f *former) replaceLocal(ctx context.Context, at mongo.OpTime, oplogBytes int64) error {
	var info struct {
		Version []int `bson:"versionArray"`
	}
	if err := f.c.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info); err != nil {
		return fmt.Errorf("cannot read the server's version: %w", err)
	}
	local := f.c.Database("local")
	if err := local.Drop(ctx); err != nil {
		return fmt.Errorf("cannot drop database local: %w", err)
	}
	err := local.RunCommand(ctx, bson.D{{Key: "create", Value: "oplog.rs"}, {Key: "capped", Value: true},
		{Key: "size", Value: oplogBytes}}).Err()
	if err != nil {
		return fmt.Errorf("cannot create the oplog: %w", err)
	}
	const term = int64(1)
	entry := bson.D{{Key: "ts", Value: at.TS}, {Key: "t", Value: term}, {Key: "v", Value: int64(2)},
		{Key: "op", Value: "n"}, {Key: "ns", Value: ""}, {Key: "wall", Value: at.Time()},
		{Key: "o", Value: bson.D{{Key: "msg", Value: "initiating set"}}}}
	vote := bson.D{{Key: "term", Value: term}, {Key: "candidateIndex", Value: int64(-1)}}
	withTerm := len(info.Version) > 1 && (info.Version[0] > 4 || info.Version[0] == 4 && info.Version[1] >= 4)
	for _, one := range []struct {
		coll string
		doc  bson.D
	}{{"oplog.rs", entry}, {"replset.election", vote}, {"system.replset", f.configuration(withTerm, term)}} {
		if _, err := local.Collection(one.coll).InsertOne(ctx, one.doc); err != nil {
			return fmt.Errorf("cannot write local.%s: %w", one.coll, err)
		}
	}
	return nil
}

func (f *former) configuration(withTerm bool, term int64) bson.D {
	var members bson.A
	for i, m := range f.Members {
		members = append(members, bson.D{{Key: "_id", Value: i}, {Key: "host", Value: m.Host},
			{Key: "priority", Value: m.Priority}, {Key: "votes", Value: m.Votes}, {Key: "hidden", Value: m.Hidden}})
	}
	c := bson.D{{Key: "_id", Value: f.Set}, {Key: "version", Value: 1}}
	if withTerm {
		c = append(c, bson.E{Key: "term", Value: term})
	}
	return append(c, bson.E{Key: "protocolVersion", Value: int64(1)},
		bson.E{Key: "writeConcernMajorityJournalDefault", Value: true}, bson.E{Key: "members", Value: members},
		bson.E{Key: "settings", Value: bson.D{{Key: "replicaSetId", Value: f.ID}}})
}

// recovered is a copy whose oplog was applied.
type recovered struct {
	At         mongo.OpTime `json:"at"`
	OplogBytes int64        `json:"oplogBytes"` // the size of the source's oplog
}

// recoverOplog applies the copy's oplog, without which it stands at an older checkpoint.
func recoverOplog(ctx context.Context, o Options, s Storage) (r recovered, err error) {
	err = withPrivateMongod(ctx, o, s,
		[]string{"recoverFromOplogAsStandalone=true", "takeUnstableCheckpointOnShutdown=true"},
		func(ctx context.Context, c *driver.Client) (err error) {
			if err := checkIndependent(ctx, c); err != nil {
				return err
			}
			if r.At, err = oplogEnd(ctx, c, -1); err != nil {
				return fmt.Errorf("cannot read the end of the oplog: %w", err)
			}
			var stats struct {
				MaxSize int64 `bson:"maxSize"`
			}
			err = c.Database("local").RunCommand(ctx, bson.D{{Key: "collStats", Value: "oplog.rs"}}).Decode(&stats)
			if err == nil && stats.MaxSize <= 0 {
				err = errors.New("it has none")
			}
			if err != nil {
				return fmt.Errorf("cannot read the size of the oplog: %w", err)
			}
			r.OplogBytes = stats.MaxSize
			return nil
		})
	if err != nil {
		return r, fmt.Errorf("seed: cannot apply the oplog to the copy: %w", err)
	}
	return r, nil
}

// formMember makes a recovered copy a member of a new set.
func formMember(ctx context.Context, o Options, s Storage, f former, r recovered) (deferred int, err error) {
	err = withPrivateMongod(ctx, o, s, []string{"disableLogicalSessionCacheRefresh=true"},
		func(ctx context.Context, c *driver.Client) (err error) {
			f.c = c
			if deferred, err = f.form(ctx, r.At); err != nil {
				return err
			}
			return f.replaceLocal(ctx, r.At, r.OplogBytes)
		})
	if err != nil {
		return deferred, fmt.Errorf("seed: cannot make the copy a member of set %s: %w", f.Set, err)
	}
	return deferred, nil
}
