package replicate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/catalog"
	"github.com/millrace/millrace/internal/mongo"
)

// privilege is one entry of connectionStatus' authenticatedUserPrivileges.
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

// covers reports whether the privilege reaches a whole database (any of its
// collections that are not system collections).
func (p privilege) covers(db string) bool {
	r := p.Resource
	if r.Any {
		return true
	}
	if r.DB == nil || r.Collection == nil || *r.Collection != "" {
		return false
	}
	return *r.DB == "" || *r.DB == db
}

// has reports whether the privilege allows an action.
func (p privilege) has(action string) bool {
	return slices.Contains(p.Actions, action) || slices.Contains(p.Actions, "anyAction")
}

// readActions and writeActions are what a job does on the source and on the
// databases of the target.
func readActions() []string { return []string{"find", "listCollections", "listIndexes", "collStats"} }

func writeActions() []string {
	return []string{"find", "insert", "update", "remove", "createCollection", "createIndex", "dropCollection",
		"dropIndex", "convertToCapped", "collMod", "listCollections", "listIndexes", "bypassDocumentValidation"}
}

// The built-in roles that suffice (docs/operations.md).
const (
	sourceRoles = "readAnyDatabase and clusterMonitor"
	targetRoles = "readWriteAnyDatabase, restore and clusterMonitor"
)

// unauthorized notes that a side refused even to be looked at.
func (p *planner) unauthorized(err error) {
	if strings.Contains(err.Error(), mongo.StateDB) {
		p.add(LevelFail, "target privileges", "grant the roles "+targetRoles, "%v", err)
		return
	}
	p.add(LevelFail, "source privileges", "grant the roles "+sourceRoles, "%v", err)
}

// privileges checks that the users may do what the job will do.
func (p *planner) privileges(ctx context.Context) error {
	var srcDBs, dstDBs []string
	for _, c := range p.plan.Collections {
		s, _ := mongo.SplitNS(c.Source)
		t, _ := mongo.SplitNS(c.Target)
		srcDBs, dstDBs = append(srcDBs, s), append(dstDBs, t)
	}
	dstDBs = append(dstDBs, mongo.StateDB)
	if err := p.side(ctx, p.j.src, "source", srcDBs, readActions(), []string{"useUUID"}, sourceRoles); err != nil {
		return err
	}
	return p.side(ctx, p.j.dst, "target", dstDBs, writeActions(), nil, targetRoles)
}

// systemCollections names the sorts of system collections that the plan has and
// that privileges on a database do not reach.
func (p *planner) systemCollections() (buckets, js bool) {
	for _, c := range p.plan.Collections {
		_, name := mongo.SplitNS(c.Source)
		buckets = buckets || c.Type == string(catalog.TypeTimeSeries)
		js = js || name == "system.js"
	}
	return buckets, js
}

// lacksOnSystem says which write to a system collection is not allowed, "" if
// all are.
func (p *planner) lacksOnSystem(have []privilege) string {
	const action = "bypassDocumentValidation"
	buckets, js := p.systemCollections()
	may := func(match func(privilege) bool) bool {
		return slices.ContainsFunc(have, func(p privilege) bool { return (p.Resource.Any || match(p)) && p.has(action) })
	}
	switch {
	case buckets && !may(func(p privilege) bool { return p.Resource.Buckets != nil }):
		return action + " on the buckets of time-series collections"
	case js && !may(func(p privilege) bool {
		return p.Resource.Collection != nil && *p.Resource.Collection == "system.js"
	}):
		return action + " on system.js"
	}
	return ""
}

func (p *planner) side(ctx context.Context, c *mongo.Cluster, name string, dbs, actions, onCluster []string, roles string) error {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "connectionStatus", Value: 1}, {Key: "showPrivileges", Value: true}})
	if err != nil {
		return fmt.Errorf("read privileges on the %s: %w", name, err)
	}
	var status struct {
		AuthInfo struct {
			Users      []bson.Raw  `bson:"authenticatedUsers"`
			Privileges []privilege `bson:"authenticatedUserPrivileges"`
		} `bson:"authInfo"`
	}
	if err := bson.Unmarshal(raw, &status); err != nil {
		return fmt.Errorf("read privileges on the %s: %w", name, err)
	}
	if len(status.AuthInfo.Users) == 0 {
		return nil // no authentication: connecting would have failed where it is required
	}
	for _, a := range onCluster {
		if !slices.ContainsFunc(status.AuthInfo.Privileges, func(p privilege) bool {
			return (p.Resource.Cluster || p.Resource.Any) && p.has(a)
		}) {
			p.add(LevelFail, name+" privileges", "grant the roles "+roles, "the user lacks %s on the cluster", a)
			return nil
		}
	}
	slices.Sort(dbs)
	for _, db := range slices.Compact(dbs) {
		if lacks := missing(status.AuthInfo.Privileges, db, actions); len(lacks) > 0 {
			p.add(LevelFail, name+" privileges", "grant the roles "+roles, "the user lacks %s on database %s", strings.Join(lacks, ", "), db)
			return nil
		}
	}
	if lacks := p.lacksOnSystem(status.AuthInfo.Privileges); name == "target" && lacks != "" {
		p.add(LevelFail, name+" privileges", "grant the roles "+roles, "the user lacks %s", lacks)
		return nil
	}
	p.ok(name+" privileges", "sufficient")
	return nil
}

func missing(have []privilege, db string, actions []string) []string {
	var out []string
	for _, a := range actions {
		if !slices.ContainsFunc(have, func(p privilege) bool { return p.covers(db) && p.has(a) }) {
			out = append(out, a)
		}
	}
	return out
}
