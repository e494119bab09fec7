package precheck

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/placing"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/state"
)

// The actions of a job, found by taking each away (test/access).
const (
	// readActions are needed on the documents of a source collection.
	readActions = listActions + " find"
	// listActions suffice where no documents are copied.
	listActions = "listIndexes collStats"
	// writeActions are needed on a target collection, also for what it may become.
	writeActions = documentActions + " " + makeActions
	// documentActions are needed for documents, makeActions where none are copied.
	documentActions = "insert update remove bypassDocumentValidation"
	makeActions     = "find createCollection convertToCapped collMod dropCollection createIndex dropIndex listIndexes " +
		"collStats"
	viewActions = "createCollection collMod dropCollection"
	// seriesActions are needed on a time-series collection, bucketActions on its buckets.
	seriesActions     = viewActions + " dropIndex"
	bucketActions     = documentActions + " " + makeBucketActions
	makeBucketActions = "find createIndex listIndexes collStats"
	// makeSystemJSActions are needed where no documents are copied.
	systemJSActions     = documentActions + " find listIndexes collStats"
	makeSystemJSActions = "find createCollection listIndexes collStats"
)

// directAction is the action of the role directShardOperations, without which shards from 8.0 on refuse users.
const directAction = "issueDirectShardOperations"

// A sharded target's routers are asked where collections are. Sharded collections are placed, and
// kept from the balancer.
const (
	routedActions  = "find"
	shardActions   = "enableSharding splitChunk moveChunk"
	balanceActions = "find update"
)

type access struct{ *planner }

func (p access) privileges(context.Context) error {
	if err := p.report("source", p.seen.sourceGrants, p.sourceNeeds); err != nil {
		return err
	}
	if p.Shards != nil {
		for i, s := range p.Shards.Cluster().Shards {
			look := func(now, later *needs) { p.shardNeeds(s.Info.Version, now, later) }
			if err := p.report("shard "+s.Name, p.seen.shardGrants[i], look); err != nil {
				return err
			}
		}
	}
	if p.seen.configGrants != nil {
		if err := p.report("config servers", p.seen.configGrants, p.configNeeds); err != nil {
			return err
		}
	}
	return p.report("target", p.seen.targetGrants, p.targetNeeds)
}

// rolesHint names sufficient built-in roles (docs/reference/privileges.md).
func (p access) rolesHint(side string) string {
	roles := "readAnyDatabase and clusterMonitor"
	switch {
	case strings.HasPrefix(side, "shard "):
		roles = "readAnyDatabase, clusterMonitor and, from MongoDB 8.0 on, directShardOperations"
	case side == "source" && p.Users:
		roles = "readAnyDatabase, clusterMonitor and backup"
	case side == "target" && p.Target.Info.Kind == mongo.KindSharded && p.Users:
		roles = "readWriteAnyDatabase, restore, backup, clusterMonitor and clusterManager"
	case side == "target" && p.Target.Info.Kind == mongo.KindSharded:
		roles = "readWriteAnyDatabase, restore, clusterMonitor and clusterManager"
	case side == "target" && p.Users: // restore reads no roles
		roles = "readWriteAnyDatabase, restore, backup and clusterMonitor"
	case side == "target":
		roles = "readWriteAnyDatabase, restore and clusterMonitor"
	}
	return fmt.Sprintf("grant the %s's user the roles %s, or the actions that docs/reference/privileges.md lists", side,
		roles)
}

// sourceNeeds and targetNeeds collect what is missing now, and for what may be created later.
func (p access) sourceNeeds(now, later *needs) {
	only := p.Mode == state.ModeStructure // no documents are copied
	// Without listDatabases the server silently leaves out databases that the user may not read.
	// Collections are copied by UUID.
	actions := "useUUID listDatabases"
	if only || p.Streamed != nil && p.Source.Info.Kind == mongo.KindSharded { // routers know no UUIDs
		actions = "listDatabases"
	}
	now.on(onCluster, actions)
	p.accountNeeds(now)
	switch {
	case p.Source.Info.Kind == mongo.KindSharded:
		for _, name := range []string{"shards", "databases", "collections", "chunks"} {
			now.on("config."+name, "find")
		}
		if p.Target.Info.Kind == mongo.KindSharded {
			now.on("config.tags", "find")
		}
	case p.Source.Info.Kind == mongo.KindReplicaSet && !only && p.Streamed == nil:
		now.on("local.oplog.rs", "find")
	}
	if p.Streamed != nil && !only { // one stream of all databases
		now.on(anyDB+"."+probe, "changeStream find")
	}
	for _, c := range p.plan.Collections {
		db, _ := mongo.SplitNS(c.Source)
		now.on(db+"."+probe, "listCollections")
		switch {
		case c.Type == schema.TypeView:
		case only && (p.Shards != nil || !p.toShard(c)):
			now.on(dataNS(c.Source, c.Type), listActions)
		default:
			now.on(dataNS(c.Source, c.Type), readActions)
		}
		if !only && p.Rules.Match(db+"."+probe) {
			later.on(db+"."+probe, readActions)
			p.laterSeries(later, p.Source, db, readActions)
		}
	}
}

func (p access) accountNeeds(now *needs) {
	if p.Users {
		now.on("admin.system.users", "find")
		now.on("admin.system.roles", "find")
	}
}

// toShard reports collections to be sharded, whose keys are sampled in any mode.
func (p access) toShard(c Collection) bool {
	s, _ := p.seen.sharding()
	return s.desired[c.Source].Key != nil
}

// configNeeds are those on the config servers, which record who owned what before 6.0.
func (p access) configNeeds(now, _ *needs) {
	now.on("local.oplog.rs", "find")
	for _, name := range []string{"databases", "collections", "chunks", "changelog"} {
		now.on("config."+name, "find")
	}
}

// shardNeeds are those on each shard of a sharded source, for its documents and oplog.
func (p access) shardNeeds(v mongo.Version, now, later *needs) {
	if v.AtLeast(8, 0) {
		now.also(onCluster, directAction)
	}
	only := p.Mode == state.ModeStructure // no documents are copied
	if !only {
		now.on(onCluster, "useUUID")
		now.on("local.oplog.rs", "find")
		now.on("config.transactions", "find")
	}
	for _, c := range p.plan.Collections {
		switch {
		case only && p.toShard(c):
			now.on(dataNS(c.Source, c.Type), "find")
		case !only && c.Type != schema.TypeView:
			now.on(dataNS(c.Source, c.Type), readActions)
		}
		if db, _ := mongo.SplitNS(c.Source); !only && p.Rules.Match(db+"."+probe) {
			later.on(db+"."+probe, readActions)
		}
	}
}

func (p access) shardedNeeds(now *needs) {
	if p.Target.Info.Kind != mongo.KindSharded {
		return
	}
	for _, name := range []string{"chunks", "databases", "shards", "tags", "version"} {
		now.on("config."+name, routedActions)
	}
	balance := routedActions
	for _, c := range p.plan.Collections {
		if p.toShard(c) {
			balance = balanceActions
			now.also(c.Target, shardActions)
		}
	}
	now.on("config.collections", balance)
	s, _ := p.seen.sharding()
	p.zoneNeeds(now, s)
}

func (p access) zoneNeeds(now *needs, s sharding) {
	if now.have.may("enableSharding", onCluster) {
		return
	}
	tags := map[string]bool{}
	for _, w := range s.desired {
		for _, z := range w.Zones {
			tags[z.Tag] = true
		}
	}
	if len(tags) == 0 {
		return
	}
	now.also("config.tags", "find update insert remove")
	for tag := range tags {
		if len(placing.JoinOf(tag, p.Desired.Zones, s.from, s.shards).Add) > 0 {
			now.also("config.shards", "find update")
			return
		}
	}
}

func (p access) targetNeeds(now, later *needs) {
	now.on(mongo.StateDB+".jobs", "find insert update remove")
	if p.accountNeeds(now); p.Users {
		now.on("admin."+probe, "createUser dropUser createRole dropRole grantRole revokeRole insert find dropCollection")
	}
	p.shardedNeeds(now)
	for _, c := range p.plan.Collections {
		db, name := mongo.SplitNS(c.Target)
		now.on(db+"."+probe, "listCollections")
		whole, buckets, systemJS := writeActions, bucketActions, systemJSActions
		if p.Mode == state.ModeStructure {
			whole, buckets, systemJS = makeActions, makeBucketActions, makeSystemJSActions
		}
		switch {
		case c.Type == schema.TypeView:
			now.on(c.Target, viewActions)
		case c.Type == schema.TypeTimeSeries:
			now.on(c.Target, seriesActions)
			now.on(dataNS(c.Target, c.Type), buckets)
		case name == "system.js":
			now.on(c.Target, systemJS)
		default:
			now.on(c.Target, whole)
		}
		if p.Mode == state.ModeStructure {
			continue // nothing is created later
		}
		if src, ok := p.Rules.Source(db + "." + probe); ok && p.Rules.Match(src) {
			later.on(db+"."+probe, writeActions)
			p.laterSeries(later, p.Target, db, bucketActions)
		}
	}
}

func (p access) laterSeries(later *needs, c *mongo.Cluster, db, actions string) {
	if p.Source.Info.Version.AtLeast(5, 0) && c.Info.Version.AtLeast(5, 0) {
		later.on(db+"."+mongo.BucketsPrefix+probe, actions)
	}
}

// report adds a failure for what is missing now, a warning for what may come.
func (p access) report(side string, granted func() (grants, error), look func(now, later *needs)) error {
	have, err := granted()
	if err != nil {
		return err
	}
	now, later := &needs{have: have, seen: map[string]bool{}}, &needs{have: have, seen: map[string]bool{}}
	look(now, later)
	switch name := side + " privileges"; {
	case len(now.lacks) > 0:
		p.add(Fail, name, p.rolesHint(side), "%s", now.text())
	case len(later.lacks) > 0:
		p.add(Warn, name, p.rolesHint(side), "enough for what there is; a collection created later could stop the job: %s",
			later.text())
	default:
		p.ok(name, "sufficient")
	}
	return nil
}

// unauthorized notes that a side refused to be read at all.
func (p access) unauthorized(err error) {
	side := "source"
	if strings.Contains(err.Error(), p.Target.Address()) || strings.Contains(err.Error(), "job "+p.Job) {
		side = "target"
	}
	text, _, _ := strings.Cut(err.Error(), " to execute command")
	hint := p.rolesHint(side)
	switch {
	case mongo.RefusedDirectly(err):
		hint = mongo.HintOf(err)
	case strings.Contains(text, "requires authentication"):
		hint = "write user and password into --" + side + ": its connection string names no user"
	}
	p.add(Fail, side+" privileges", hint, "%s", text)
}

type needs struct {
	have  grants
	lacks []string
	seen  map[string]bool
}

// on adds the actions needed on a namespace, separated by spaces.
func (n *needs) on(ns, actions string) {
	missing := slices.DeleteFunc(strings.Fields(actions), func(a string) bool { return n.have.may(a, ns) })
	if len(missing) == 0 || n.seen[ns] {
		return
	}
	n.seen[ns] = true
	n.lacks = append(n.lacks, strings.Join(missing, ", ")+" on "+ns)
}

// also adds actions needed on a namespace beside others.
func (n *needs) also(ns, actions string) {
	n.on(ns, actions)
	delete(n.seen, ns)
}

func (n *needs) text() string {
	const most = 4
	text := "the user lacks " + strings.Join(n.lacks[:min(most, len(n.lacks))], "; ")
	if more := len(n.lacks) - most; more > 0 {
		text += fmt.Sprintf("; and more on %d others", more)
	}
	return text
}

// probe and anyDB are a collection and a database that no privilege names.
const probe, anyDB = "millrace-probe", "millrace-any"

func dataNS(ns string, t schema.Type) string { return schema.Collection{NS: ns, Type: t}.DataNS() }

// privilege is an entry of connectionStatus' authenticatedUserPrivileges.
type privilege struct {
	Resource struct {
		DB         *string `bson:"db"`
		Collection *string `bson:"collection"`
		Buckets    *string `bson:"system_buckets"` // of time-series collections
		Cluster    bool    `bson:"cluster"`
		Any        bool    `bson:"anyResource"`
	} `bson:"resource"`
	Actions []string `bson:"actions"`
}

// onCluster stands for the cluster instead of a namespace.
const onCluster = "the cluster"

// covers reports whether the privilege's resource includes a namespace, or is the cluster. A database does not include
// system collections: buckets of time series have their own resource, others must be named.
func (p privilege) covers(ns string) bool {
	r := p.Resource
	if r.Any || ns == onCluster {
		return r.Any || r.Cluster
	}
	db, coll := mongo.SplitNS(ns)
	if series, ok := strings.CutPrefix(coll, mongo.BucketsPrefix); ok && r.Buckets != nil {
		return orAny(r.DB, db) && orAny(r.Buckets, series)
	}
	if r.Collection == nil || r.DB == nil {
		return false
	}
	system := strings.HasPrefix(coll, "system.")
	if *r.DB == "" && *r.Collection == "" && (db == "local" || db == "config") {
		return false
	}
	return orAny(r.DB, db) && (*r.Collection == coll || *r.Collection == "" && !system)
}

func orAny(have *string, want string) bool { return have == nil || *have == "" || *have == want }

// grants are nil without access control.
type grants []privilege

func (g grants) may(action, ns string) bool {
	return g == nil || slices.ContainsFunc(g, func(p privilege) bool {
		return p.covers(ns) && (slices.Contains(p.Actions, action) || slices.Contains(p.Actions, "anyAction"))
	})
}

func grantsOf(ctx context.Context, c *mongo.Cluster) (grants, error) {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	var status struct {
		AuthInfo struct {
			Users      []bson.Raw `bson:"authenticatedUsers"`
			Privileges grants     `bson:"authenticatedUserPrivileges"`
		} `bson:"authInfo"`
	}
	if err == nil {
		err = bson.Unmarshal(raw, &status)
	}
	if err != nil {
		return nil, fmt.Errorf("read the user's privileges on %s: %w", c.Address(), err)
	}
	if len(status.AuthInfo.Users) == 0 {
		return nil, nil // no authentication: where it is required, connecting would have failed
	}
	return append(grants{}, status.AuthInfo.Privileges...), nil
}
