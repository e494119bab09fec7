package users

import (
	"context"
	"errors"
	"fmt"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
)

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
