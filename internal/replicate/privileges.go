package replicate

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

// privilege is one entry of connectionStatus' authenticatedUserPrivileges.
type privilege struct {
	Resource struct {
		DB         *string `bson:"db"`
		Collection *string `bson:"collection"`
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

// readActions and writeActions are what a job does on the source and on the
// databases of the target.
func readActions() []string { return []string{"find", "listCollections", "listIndexes"} }

func writeActions() []string {
	return []string{"find", "insert", "update", "remove", "createCollection", "createIndex", "dropCollection",
		"dropIndex", "collMod", "listCollections", "listIndexes", "bypassDocumentValidation"}
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
	if err := p.side(ctx, p.j.src, "source", srcDBs, readActions(), "readAnyDatabase, clusterMonitor and read on local"); err != nil {
		return err
	}
	return p.side(ctx, p.j.dst, "target", dstDBs, writeActions(), "readWriteAnyDatabase, dbAdminAnyDatabase, restore and clusterMonitor")
}

func (p *planner) side(ctx context.Context, c *mongo.Cluster, name string, dbs, actions []string, roles string) error {
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
	slices.Sort(dbs)
	for _, db := range slices.Compact(dbs) {
		if lacks := missing(status.AuthInfo.Privileges, db, actions); len(lacks) > 0 {
			p.add(LevelFail, name+" privileges", "grant the roles "+roles, "the user lacks %s on database %s", strings.Join(lacks, ", "), db)
			return nil
		}
	}
	p.ok(name+" privileges", "sufficient")
	return nil
}

func missing(have []privilege, db string, actions []string) []string {
	var out []string
	for _, a := range actions {
		if !slices.ContainsFunc(have, func(p privilege) bool { return p.covers(db) && slices.Contains(p.Actions, a) }) {
			out = append(out, a)
		}
	}
	return out
}
