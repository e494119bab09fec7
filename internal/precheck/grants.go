package precheck

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
		Buckets    *string `bson:"system_buckets"` // of time-series collections
		Cluster    bool    `bson:"cluster"`
		Any        bool    `bson:"anyResource"`
	} `bson:"resource"`
	Actions []string `bson:"actions"`
}

// onCluster stands for the cluster instead of a namespace.
const onCluster = "the cluster"

// covers reports whether the privilege's resource has a namespace, or is the cluster. A
// database does not cover system collections: those of a time series' buckets have a
// resource of their own, others must be named.
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

// orAny compares with a name of a resource; an absent one matches all.
func orAny(have *string, want string) bool { return have == nil || *have == "" || *have == want }

// allows reports whether the privilege has an action.
func (p privilege) allows(action string) bool {
	return slices.Contains(p.Actions, action) || slices.Contains(p.Actions, "anyAction")
}

// grants has the privileges of a user; nil means a server without access control.
type grants []privilege

// may reports whether an action on a namespace, or on the cluster, is allowed.
func (g grants) may(action, ns string) bool {
	return g == nil || slices.ContainsFunc(g, func(p privilege) bool { return p.covers(ns) && p.allows(action) })
}

// grantsOf reads the privileges of the user on a deployment.
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
