// Package users copies the users and roles of a cluster, with their credentials: the documents of admin.system.users
// and admin.system.roles. It writes them as mongorestore does, which the role restore permits.
package users

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/transform"
)

// Most is how many users and roles a job copies.
const Most = 10_000

// Roles come first, because users have them.
type kind struct{ name, collection, field, drop, temp string }

func kinds() []kind {
	return []kind{
		{"role", "system.roles", "role", "dropRole", "tempRolesCollection"},
		{"user", "system.users", "user", "dropUser", "tempUsersCollection"},
	}
}

type entry struct {
	kind
	db, name string
	doc      bson.Raw // as stored by the server
	sum      string   // see sumOf
}

func (e entry) id() string { return e.kind.name + " " + e.db + "." + e.name }

// Set has users and roles by id.
type Set map[string]entry

// Names returns the ids, sorted: "role shop.reader", "user shop.ada".
func (s Set) Names() []string { return slices.Sorted(maps.Keys(s)) }

// Read reads the users and roles of the databases that rules choose, with every change that was acknowledged before.
// Those of admin and $external count as chosen unless the rules include only some databases. The user needs find on
// both collections, which backup grants.
func Read(ctx context.Context, c *mongo.Cluster, rules *transform.Set) (Set, error) {
	all := Set{}
	// Servers acknowledge a change before a majority read sees it, so the session reads after it.
	causal := options.Session().SetCausalConsistency(true)
	err := c.Client.UseSessionWithOptions(ctx, causal, func(ctx context.Context) error {
		admin := c.Client.Database("admin", options.Database().SetReadPreference(readpref.Primary()).
			SetReadConcern(readconcern.Majority()))
		if err := admin.RunCommand(ctx, bson.D{{Key: "ping", Value: 1}}).Err(); err != nil {
			return err
		}
		for _, k := range kinds() {
			if err := all.read(ctx, admin, k, rules); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if len(all) > Most {
		return nil, mongo.WithHint(fmt.Errorf("cannot copy %d users and roles: the limit is %d", len(all), Most),
			"leave --users out, and copy them with mongodump --dumpDbUsersAndRoles and mongorestore")
	}
	return all, nil
}

func (s Set) read(ctx context.Context, admin *driver.Database, k kind, rules *transform.Set) error {
	cur, err := admin.Collection(k.collection).Find(ctx, bson.D{})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("cannot read admin.%s: %w", k.collection, err),
			"grant the user the role backup, and that of the target restore, too")
	}
	defer func() { _ = cur.Close(ctx) }()
	for cur.Next(ctx) {
		if err := s.add(k, cur.Current, rules); err != nil {
			return err
		}
	}
	return mongo.Wrap(cur.Err(), "cannot read admin.%s", k.collection)
}

func (s Set) add(k kind, raw bson.Raw, rules *transform.Set) error {
	db, _ := raw.Lookup("db").StringValueOK()
	name, _ := raw.Lookup(k.field).StringValueOK()
	if chosen := rules.MatchDB(db) || (db == "admin" || db == "$external") && !rules.Includes(); !chosen {
		return nil
	}
	sum, err := sumOf(raw)
	if err != nil {
		return fmt.Errorf("read %s %s.%s: %w", k.name, db, name, err)
	}
	e := entry{kind: k, db: db, name: name, doc: slices.Clone(raw), sum: sum}
	s[e.id()] = e
	return nil
}

// sumOf identifies the contents of an entry, without its UUID and the order of fields, roles and privileges.
func sumOf(raw bson.Raw) (string, error) {
	all, err := raw.Elements()
	if err != nil {
		return "", err
	}
	all = slices.DeleteFunc(all, func(e bson.RawElement) bool { return e.Key() == "userId" })
	slices.SortFunc(all, func(a, b bson.RawElement) int { return strings.Compare(a.Key(), b.Key()) })
	h := sha256.New()
	for _, e := range all {
		h.Write([]byte(e.Key() + "\x00"))
		list, isArray := e.Value().ArrayOK()
		values, err := list.Values()
		if !isArray || err != nil {
			h.Write(e.Value().Value)
			continue
		}
		slices.SortFunc(values, func(a, b bson.RawValue) int { return bytes.Compare(a.Value, b.Value) })
		for _, v := range values {
			h.Write(v.Value)
		}
	}
	return hex.EncodeToString(h.Sum(nil)[:8]), nil
}

// Own has the sums that a job has written, by id. There are several if a change may not have been made.
type Own map[string][]string

// Begin records what is about to be written.
func (o Own) Begin(c Changes) {
	for _, e := range c.put {
		if id := e.id(); !slices.Contains(o[id], e.sum) {
			o[id] = append(o[id], e.sum)
		}
	}
}

// Adopt records what a copy of the source's files brought.
func (o Own) Adopt(s Set) {
	for id, e := range s {
		o[id] = []string{e.sum}
	}
}

// End records that the changes were made.
func (o Own) End(c Changes) {
	for _, e := range c.put {
		o[e.id()] = []string{e.sum}
	}
	for _, e := range c.drop {
		delete(o, e.id())
	}
}

// Changes are what makes a target's users and roles those of a source.
type Changes struct {
	put, drop []entry
	there     map[string]bool // to be written, and present on the target
	// Foreign entries differ and were not written by a job. They stay.
	Foreign []schema.Difference
}

// Any reports whether there is something to do.
func (c Changes) Any() bool { return len(c.put)+len(c.drop) > 0 }

// Text lists up to ten entries to write.
func (c Changes) Text() string {
	var names []string
	for _, e := range c.put[:min(len(c.put), 10)] {
		names = append(names, e.id())
	}
	if more := len(c.put) - len(names); more > 0 {
		names = append(names, fmt.Sprintf("%d more", more))
	}
	return strings.Join(names, ", ")
}

// Counts returns the numbers of entries to write and remove.
func (c Changes) Counts() (put, drop int) { return len(c.put), len(c.drop) }

// Plan changes and removes only what is as the job wrote it.
func Plan(source, target Set, own Own) (c Changes) {
	c.there = map[string]bool{}
	for _, id := range source.Names() {
		s, t := source[id], target[id]
		switch {
		case s.sum == t.sum:
		case t.sum == "" || slices.Contains(own[id], t.sum):
			c.put, c.there[id] = append(c.put, s), t.sum != ""
		default:
			c.Foreign = append(c.Foreign, difference(s, t))
		}
	}
	for _, id := range target.Names() {
		if _, there := source[id]; !there && slices.Contains(own[id], target[id].sum) {
			c.drop = append(c.drop, target[id])
		}
	}
	return c
}

// difference has no values, which nobody may see.
func difference(s, t entry) schema.Difference {
	d := schema.Difference{NS: s.db + "." + s.name, What: s.kind.name, Source: "it"}
	if t.sum != "" {
		d.What = strings.Join(differing(s.doc, t.doc), ", ") + " of the " + s.kind.name
		d.Source, d.Target = "its own", "others"
	}
	return d
}

// Apply makes the changes. It first removes what an interrupted call left.
func Apply(ctx context.Context, target *mongo.Cluster, c Changes) error {
	if len(c.put) > 0 {
		if err := put(ctx, target, c); err != nil {
			return err
		}
	}
	for _, e := range c.drop {
		_, err := target.Write(ctx, e.db, bson.D{{Key: e.kind.drop, Value: e.name},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
		if err != nil && !mongo.IsCode(err, codeUserNotFound) && !mongo.IsCode(err, codeRoleNotFound) {
			return fmt.Errorf("cannot remove the %s: %w", e.id(), err)
		}
	}
	return nil
}

// put writes users and roles: new documents by two collections that the server merges, as for mongorestore.
func put(ctx context.Context, target *mongo.Cluster, c Changes) error {
	if err := dropTemp(ctx, target); err != nil {
		return err
	}
	merge := bson.D{}
	for _, k := range kinds() {
		var docs bson.A
		for _, e := range c.put {
			if e.kind == k && (k.name == "user" || !c.there[e.id()]) {
				docs = append(docs, e.doc)
			}
		}
		if len(docs) == 0 {
			continue
		}
		name := temp + k.name
		for part := range slices.Chunk(docs, 100) { // each has a few KB
			_, err := target.Write(ctx, "admin", bson.D{{Key: "insert", Value: name}, {Key: "documents", Value: part}})
			if err != nil {
				return fmt.Errorf("cannot write admin.%s: %w", name, err)
			}
		}
		merge = append(merge, bson.E{Key: k.temp, Value: "admin." + name})
	}
	if err := replace(ctx, target, c); err != nil {
		return err
	}
	if len(merge) > 0 {
		// db "" is all databases. Users and roles that are there stay as they are.
		command := append(bson.D{{Key: "_mergeAuthzCollections", Value: 1}, {Key: "db", Value: ""},
			{Key: "drop", Value: false}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}, merge...)
		if _, err := target.Write(ctx, "admin", command); err != nil {
			return mongo.WithHint(fmt.Errorf("cannot write the users and roles: %w", err),
				"grant the target's user the role restore, or leave --users out")
		}
	}
	return dropTemp(ctx, target)
}

// temp begins the names of the collections in database admin from which a server takes users and roles.
const temp = "millrace."

func dropTemp(ctx context.Context, target *mongo.Cluster) error {
	for _, k := range kinds() {
		_, err := target.Write(ctx, "admin", bson.D{{Key: "drop", Value: temp + k.name}})
		if err != nil && !mongo.IsCode(err, mongo.CodeNamespaceNotFound) {
			return fmt.Errorf("cannot drop admin.%s: %w", temp+k.name, err)
		}
	}
	return nil
}

// replace changes roles, and removes users, which no command can give credentials: the merge puts them there again.
// A role that was removed would be taken from all who have it.
func replace(ctx context.Context, target *mongo.Cluster, c Changes) error {
	for _, e := range c.put {
		var cmd bson.D
		switch {
		case !c.there[e.id()]:
			continue
		case e.kind.name == "user":
			cmd = bson.D{{Key: "dropUser", Value: e.name}}
		default:
			cmd = bson.D{{Key: "updateRole", Value: e.name}}
			for _, field := range []string{"privileges", "roles", "authenticationRestrictions"} {
				value := any(bson.A{})
				if v := e.doc.Lookup(field); v.Type == bson.TypeArray {
					value = v
				}
				cmd = append(cmd, bson.E{Key: field, Value: value})
			}
		}
		cmd = append(cmd, bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
		if _, err := target.Write(ctx, e.db, cmd); err != nil && !mongo.IsCode(err, codeUserNotFound) {
			return fmt.Errorf("cannot change the %s: %w", e.id(), err)
		}
	}
	return nil
}

const (
	codeUserNotFound = 11
	codeRoleNotFound = 31
)

// Both reads the users and roles of both sides.
func Both(ctx context.Context, source, target *mongo.Cluster, rules *transform.Set) (s, t Set, err error) {
	if s, err = Read(ctx, source, rules); err != nil {
		return nil, nil, fmt.Errorf("source: %w", err)
	}
	if t, err = Read(ctx, target, rules); err != nil {
		return nil, nil, fmt.Errorf("target: %w", err)
	}
	return s, t, nil
}

// Diff compares the users and roles that rules choose. What only the target has is no difference.
func Diff(ctx context.Context, source, target *mongo.Cluster, rules *transform.Set) ([]schema.Difference, error) {
	var out []schema.Difference
	s, t, err := Both(ctx, source, target, rules)
	for _, id := range s.Names() {
		if s[id].sum != t[id].sum {
			out = append(out, difference(s[id], t[id]))
		}
	}
	return out, err
}

func differing(a, b bson.Raw) (names []string) {
	values := func(raw bson.Raw) map[string]bson.RawValue {
		all, _ := raw.Elements()
		m := map[string]bson.RawValue{}
		for _, e := range all {
			m[e.Key()] = e.Value()
		}
		return m
	}
	s, t := values(a), values(b)
	all := maps.Clone(s)
	maps.Copy(all, t)
	for _, key := range slices.Sorted(maps.Keys(all)) {
		if key != "userId" && !s[key].Equal(t[key]) {
			names = append(names, key)
		}
	}
	return names
}

// Side is a cluster whose users are read or written. Shards overrides addresses by name, that of the config servers by
// "config".
type Side struct {
	Cluster *mongo.Cluster
	URI     string
	Shards  map[string]string
}

type Sides struct{ Source, Target Side }

// Homes returns the replica sets that have the users and roles of both sides. The caller calls done, which closes what
// was opened.
func (s Sides) Homes(ctx context.Context) (source, target *mongo.Cluster, done func(), err error) {
	source, closeSource, err := s.Source.home(ctx)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("source: %w", err)
	}
	target, closeTarget, err := s.Target.home(ctx)
	if err != nil {
		closeSource()
		return nil, nil, nil, fmt.Errorf("target: %w", err)
	}
	return source, target, func() { closeSource(); closeTarget() }, nil
}

// home returns the cluster itself, or the config servers of a sharded one. Routers read users from there, and notice
// changes within half a minute.
func (s Side) home(ctx context.Context) (*mongo.Cluster, func(), error) {
	if s.Cluster.Info.Kind != mongo.KindSharded {
		return s.Cluster, func() {}, nil
	}
	uri := s.Shards["config"]
	if uri == "" {
		raw, err := s.Cluster.Command(ctx, "admin", bson.D{{Key: "getShardMap", Value: 1}})
		if err != nil {
			return nil, nil, fmt.Errorf("find the config servers, which have the users: %w", err)
		}
		hosts, ok := raw.Lookup("map", "config").StringValueOK()
		if !ok {
			return nil, nil, errors.New("the router does not know the config servers, which have the users")
		}
		if uri, err = mongo.MemberURI(s.URI, hosts); err != nil {
			return nil, nil, fmt.Errorf("find the config servers, which have the users: %w", err)
		}
	}
	c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace-users"})
	if err != nil {
		return nil, nil, mongo.WithHint(fmt.Errorf("config servers, which have the users: %w", err),
			"they have to be reachable from here, with the user of the router; else leave --users out")
	}
	return c, c.Close, nil
}
