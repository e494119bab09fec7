package sharded

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/workshop/lab"
)

// join makes a running set a shard, as _configsvrAddShard does in every version;
// for one that is a shard already it does nothing.
func (c *Cluster) join(ctx context.Context, s *set) error {
	return c.config.command(ctx, bson.D{
		{Key: "_configsvrAddShard", Value: s.Name() + "/" + strings.Join(s.Hosts(), ",")}, {Key: "name", Value: s.name}, majority(),
	})
}

// AddShard starts another set, makes it a shard and returns its name.
func (c *Cluster) AddShard(ctx context.Context) (string, error) {
	return c.AddShardWith(ctx, func(*lab.Cluster) error { return nil })
}

// AddShardWith is AddShard of a set with which something is done before it joins. The
// cluster takes databases over that it does not have.
func (c *Cluster) AddShardWith(ctx context.Context, before func(*lab.Cluster) error) (string, error) {
	c.mu.Lock()
	name := c.nextName()
	c.mu.Unlock()
	ctx, cancel := withTimeout(ctx, startTimeout)
	defer cancel()
	// On free ports: those that follow a fixed one may be the routers'.
	s, err := c.startSet(ctx, name, 0)
	if err != nil {
		return "", fmt.Errorf("lab: add a shard to %s: %w", c.Name(), err)
	}
	if err = before(s.Cluster); err == nil {
		err = c.join(ctx, s)
	}
	if err != nil {
		return "", errors.Join(fmt.Errorf("lab: add shard %s to %s: %w", name, c.Name(), err), s.stop())
	}
	c.mu.Lock()
	c.shards = append(c.shards, s)
	c.mu.Unlock()
	return name, c.save()
}

// RemoveShard makes another shard the primary one of the databases that the shard
// is, lets the balancer move its chunks away, and takes it out of the cluster when
// it has nothing left. The balancer has to be on, and a chunk does not go to a shard
// that has its orphans still, for 900 seconds by default (orphanCleanupDelaySecs). The servers of the shard run on
// until Stop, as they do when an operator removes one.
func (c *Cluster) RemoveShard(ctx context.Context, name string) error {
	leaving, err := c.shard(name)
	if err != nil {
		return err
	}
	state, err := c.BalancerState(ctx)
	if err != nil {
		return err
	}
	if state.Mode == "off" {
		return fmt.Errorf("lab: remove shard %s from %s: the balancer, which empties it, is off; call Balancer first", name, c.Name())
	}
	ctx, cancel := withTimeout(ctx, commandTimeout)
	defer cancel()
	var left bson.Raw
	err = lab.Poll(ctx, again, func() (bool, error) {
		answer, done, err := c.drain(ctx, name)
		if err == nil {
			left = answer
		}
		return done, err
	})
	if err != nil {
		return fmt.Errorf("lab: remove shard %s from %s: %w; the last answer: %v", name, c.Name(), err, left)
	}
	c.mu.Lock()
	c.shards = slices.DeleteFunc(c.shards, func(s *set) bool { return s == leaving })
	c.gone = append(c.gone, leaving)
	c.mu.Unlock()
	return c.save()
}

// drain asks once how far the removal of a shard is, does its part, and reports
// whether the shard has gone.
func (c *Cluster) drain(ctx context.Context, name string) (raw bson.Raw, done bool, err error) {
	raw, err = c.config.run(ctx, "admin", func(context.Context) (bson.D, error) {
		return bson.D{{Key: "_configsvrRemoveShard", Value: name}, majority()}, nil
	})
	if err != nil {
		return raw, false, err
	}
	var progress struct {
		State     string   `bson:"state"`
		Databases []string `bson:"dbsToMove"`
	}
	if err := bson.Unmarshal(raw, &progress); err != nil {
		return raw, false, err
	}
	for _, db := range progress.Databases {
		shards := c.sets()
		i := slices.IndexFunc(shards, func(s *set) bool { return s.name != name })
		if i < 0 {
			return raw, false, errors.New("it is the last one")
		}
		if err := c.MovePrimary(ctx, db, shards[i].name); err != nil {
			return raw, false, err
		}
	}
	return raw, progress.State == "completed", nil
}

// Balancer turns the balancer on or off by the config servers' own commands, which
// wait for a round under way to end, and change what config.settings says.
func (c *Cluster) Balancer(ctx context.Context, on bool) error {
	if on {
		return c.config.command(ctx, bson.D{{Key: "_configsvrBalancerStart", Value: 1}})
	}
	return c.config.command(ctx, bson.D{{Key: "_configsvrBalancerStop", Value: 1}})
}

// BalancerState is what the config servers say of their balancer.
type BalancerState struct {
	// Mode is "full", "autoSplitOnly" or "off".
	Mode string `bson:"mode"`
	// InRound reports whether it is at work.
	InRound bool `bson:"inBalancerRound"`
	// Rounds is how many it has done.
	Rounds int64 `bson:"numBalancerRounds"`
}

// BalancerState asks how the balancer is.
func (c *Cluster) BalancerState(ctx context.Context) (state BalancerState, err error) {
	raw, err := c.config.run(ctx, "admin", func(context.Context) (bson.D, error) {
		return bson.D{{Key: "_configsvrBalancerStatus", Value: 1}}, nil
	})
	if err == nil {
		err = bson.Unmarshal(raw, &state)
	}
	if err != nil {
		return state, fmt.Errorf("lab: ask %s for its balancer: %w", c.Name(), err)
	}
	return state, nil
}

// ChunkSize sets config.settings' chunk size: with 1, the least, the balancer finds
// something to do after little data.
func (c *Cluster) ChunkSize(ctx context.Context, mb int) error {
	_, err := c.configData("settings").UpdateOne(ctx, bson.D{{Key: "_id", Value: "chunksize"}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: mb}}}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("lab: set the chunk size of %s: %w", c.Name(), err)
	}
	return nil
}

// CreateDatabase makes a database whose primary shard is the one named.
func (c *Cluster) CreateDatabase(ctx context.Context, name, primary string) error {
	if _, err := c.shard(primary); err != nil {
		return err
	}
	cmd := bson.D{{Key: "_configsvrCreateDatabase", Value: name}, {Key: "primaryShardId", Value: primary}}
	switch {
	case !c.server.atLeast5():
		// There the command above takes no primary shard.
		cmd = bson.D{{Key: "_configsvrEnableSharding", Value: name}, {Key: "primaryShard", Value: primary}}
	case !c.server.atLeast6():
		// Else collections of the database cannot be sharded.
		cmd = append(cmd, bson.E{Key: "enableSharding", Value: true})
	}
	return c.config.command(ctx, append(cmd, majority()))
}

// database is an entry of config.databases.
type database struct {
	Primary string   `bson:"primary"`
	Version bson.Raw `bson:"version"`
}

// database reads where a database has its primary shard.
func (c *Cluster) database(ctx context.Context, name string) (d database, s *set, err error) {
	err = c.config.client.Database("config").Collection("databases").FindOne(ctx, bson.D{{Key: "_id", Value: name}}).Decode(&d)
	if err != nil {
		return d, nil, fmt.Errorf("lab: find database %s of %s: %w; make it with CreateDatabase", name, c.Name(), err)
	}
	s, err = c.shard(d.Primary)
	return d, s, err
}

// Primary is the name of a database's primary shard.
func (c *Cluster) Primary(ctx context.Context, db string) (string, error) {
	d, _, err := c.database(ctx, db)
	return d.Primary, err
}

// MovePrimary makes another shard a database's primary one. Its unsharded
// collections move there.
func (c *Cluster) MovePrimary(ctx context.Context, db, to string) error {
	_, from, err := c.database(ctx, db)
	if err != nil {
		return err
	}
	if _, err := c.shard(to); err != nil {
		return err
	}
	if !c.server.atLeast6() {
		// The shard's own command is not for others there: 5.0.4 and 4.4.2 die of
		// one with a database version.
		return c.config.command(ctx, bson.D{{Key: "_configsvrMovePrimary", Value: db}, {Key: "to", Value: to}, majority()})
	}
	_, err = from.run(ctx, "admin", func(ctx context.Context) (bson.D, error) {
		d, _, err := c.database(ctx, db)
		return bson.D{
			{Key: "_shardsvrMovePrimary", Value: db}, {Key: "to", Value: to}, {Key: "databaseVersion", Value: d.Version}, majority(),
		}, err
	})
	if err != nil {
		return fmt.Errorf("lab: move database %s to %s: %w", db, to, err)
	}
	return nil
}
