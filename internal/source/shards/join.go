package shards

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/source/merge"
	"github.com/millrace/millrace/internal/source/oplog"
	"github.com/millrace/millrace/internal/stream"
)

// Refresh returns the cluster with the shards that joined since it was opened, and without those that
// left and that the position no longer needs. The result shares connections with c: only the newest one
// must be closed.
func (c *Cluster) Refresh(ctx context.Context, pos stream.Position) (*Cluster, error) {
	found, err := listShards(ctx, c.Router)
	if err != nil {
		return nil, fmt.Errorf("find the shards of %s: %w", c.Router.Address(), err)
	}
	need, err := neededBy(pos)
	if err != nil {
		return nil, err
	}
	gone := need.missingFrom(found)
	if len(gone) == 0 && need.topology.shardRemoved(found) {
		return nil, errShardMissed
	}
	now := *c
	now.Shards, now.unused = nil, slices.Clone(c.unused)
	for _, s := range c.Shards {
		if _, reads := need.parts[s.Name]; reads || isAmong(found, s.Name) {
			now.Shards = append(now.Shards, s)
		} else {
			now.unused = append(now.unused, s)
		}
	}
	var joined []Shard
	all := hostsOf(found)
	for i, m := range slices.Concat(found, gone) {
		all[m.Name] = cmp.Or(m.Host, c.hosts[m.Name])
		if c.reads(m.Name) {
			continue
		}
		s, err := c.openNeeded(ctx, m, i >= len(found))
		if err == nil {
			all[m.Name] = cmp.Or(m.Host, s.Info.SetName+"/"+strings.Join(s.Info.Hosts, ","))
			joined = append(joined, s)
			err = c.checkConfig(s)
		}
		if err != nil {
			for _, s := range joined {
				s.Close()
			}
			return nil, err
		}
	}
	now.Shards, now.left, now.topology, now.hosts = append(now.Shards, joined...), &leftShards{}, topologyOf(found), all
	slices.SortFunc(now.Shards, func(a, b Shard) int { return cmp.Compare(a.Name, b.Name) })
	return &now, nil
}

// needed are the shards of a position, and the cluster's topology then.
type needed struct {
	parts    map[string]stream.Position
	topology topology
	hosts    hosts
}

func neededBy(pos stream.Position) (n needed, err error) {
	if !hasToken(pos) {
		return n, nil
	}
	m, err := parseToken(pos)
	if err != nil {
		return n, err
	}
	pos.Mark = string(m.Shards)
	n.topology, n.hosts = m.Topology, m.Hosts
	n.parts, err = merge.Parts(pos)
	return n, err
}

func (n needed) missingFrom(now []shardEntry) (gone []shardEntry) {
	for _, name := range slices.Sorted(maps.Keys(n.parts)) {
		if !isAmong(now, name) {
			gone = append(gone, shardEntry{Name: name, Host: n.hosts[name]})
		}
	}
	return gone
}

func isAmong(all []shardEntry, name string) bool {
	return slices.ContainsFunc(all, func(m shardEntry) bool { return m.Name == name })
}

// openNeeded opens a shard that has joined, or that has left but is still needed.
func (c *Cluster) openNeeded(ctx context.Context, m shardEntry, left bool) (Shard, error) {
	if left && m.Host == "" && c.opt.Shards[m.Name] == "" {
		return Shard{}, errUnread(m.Name, nil)
	}
	s, err := openShard(ctx, m, c.opt)
	if left && err != nil {
		err = errUnread(m.Name, err)
	}
	return s, err
}

// errUnread reports a shard that left before all its changes were read; cause is why they cannot be
// read now.
func errUnread(name string, cause error) error {
	err := fmt.Errorf("shard %s has left before all its changes were read", name)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return mongo.WithHint(err, fmt.Sprintf("start its servers, or give their address with --source-shard %s=URI; "+
		"they are needed until the job has stored a position after its removal. Where they are lost, %s", name, restartHint))
}

// topology has each shard's topologyTime, when it was added or another was removed.
type topology map[string]bson.Timestamp

func topologyOf(all []shardEntry) topology {
	t := topology{}
	for _, m := range all {
		t[m.Name] = m.Since
	}
	return t
}

// shardRemoved reports that a shard has been removed since: a remaining one has another time.
func (t topology) shardRemoved(now []shardEntry) bool {
	return slices.ContainsFunc(now, func(m shardEntry) bool {
		was, known := t[m.Name]
		return known && was != m.Since
	})
}

// errShardMissed reports a shard that joined and left without being read.
var errShardMissed = mongo.WithHint(errors.New(
	"a shard has joined the source and left again before its changes were read"), restartHint)

const restartHint = "start again with --restart and --on-existing drop"

// leftShards are shards that have left, with a time by which they had left. It is safe for concurrent
// use.
type leftShards struct {
	mu        sync.Mutex
	at        map[string]bson.Timestamp
	remaining topology // since the last one left
}

// update records which of c's shards have left by at; now are the present shards.
func (l *leftShards) update(c *Cluster, now []shardEntry, at bson.Timestamp) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.at == nil {
		l.at, l.remaining = map[string]bson.Timestamp{}, c.topology
	}
	added := false
	for _, s := range c.Shards {
		if _, known := l.at[s.Name]; !known && !isAmong(now, s.Name) {
			l.at[s.Name], added = at, true
		}
	}
	if !added && l.remaining.shardRemoved(now) {
		return errShardMissed
	}
	l.remaining = topologyOf(now)
	return nil
}

// leftBy returns the shards that had left by a time, and the topology without them.
func (l *leftShards) leftBy(at bson.Timestamp) (names []string, left topology) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for name, gone := range l.at {
		if gone.Compare(at) <= 0 {
			names = append(names, name)
		}
	}
	return names, l.remaining
}

// checkConfig returns an error for a shard that needs the config servers' oplog while these are not
// open, since the other shards are newer.
func (c *Cluster) checkConfig(s Shard) error {
	if s.Info.Version.AtLeast(6, 0) || c.config != nil {
		return nil
	}
	return fmt.Errorf("shard %s has %s and is older than the others", s.Name, s.Info.Version)
}

func (c *Cluster) HasLeft(name string) bool {
	_, present := c.topology[name]
	return !present
}

func (c *Cluster) reads(name string) bool {
	return slices.ContainsFunc(c.Shards, func(s Shard) bool { return s.Name == name })
}

// addJoined adds the shards that joined after a position of the merged stream to it.
func (c *Cluster) addJoined(ctx context.Context, pos stream.Position) (stream.Position, error) {
	parts, err := merge.Parts(pos)
	if err != nil {
		return pos, err
	}
	for name := range parts {
		if !c.reads(name) {
			return pos, errUnread(name, nil)
		}
	}
	for _, s := range c.Shards {
		if _, ok := parts[s.Name]; ok {
			continue
		}
		if parts[s.Name], err = startOf(ctx, s, pos.At); err != nil {
			return pos, fmt.Errorf("shard %s has joined: %w", s.Name, err)
		}
	}
	return merge.Joined(pos.At, parts), nil
}

// startOf returns where to start reading a shard that had not joined at a time. All its entries as a
// part of the cluster are later: it got the cluster's time when it joined. Databases that it had before
// have never been copied, so startOf returns an error if it had data by then.
func startOf(ctx context.Context, s Shard, at mongo.OpTime) (stream.Position, error) {
	first, beginning, err := s.OldestEntry(ctx)
	switch {
	case err != nil:
		return stream.Position{}, err
	case !beginning:
		return stream.Position{}, mongo.WithHint(errors.New(
			"its oplog does not reach back to its set's beginning: cannot determine which data it had before"), restartHint)
	case at.Before(first):
		return oplog.Including(first), nil
	}
	entries := s.Client.Database("local", options.Database().SetReadConcern(readconcern.Majority())).Collection("oplog.rs")
	until := bson.E{Key: "ts", Value: bson.D{{Key: "$lte", Value: at.TS}}}
	var brought struct {
		NS string `bson:"ns"`
	}
	err = entries.FindOne(ctx, append(bson.D{until}, userEntries()...)).Decode(&brought)
	if err == nil {
		return stream.Position{}, mongo.WithHint(fmt.Errorf("it had data (%s) before it joined", brought.NS), restartHint)
	}
	if !errors.Is(err, driver.ErrNoDocuments) {
		return stream.Position{}, mongo.Wrap(err, "look for data from before it joined")
	}
	var last mongo.OpTime
	err = entries.FindOne(ctx, bson.D{until}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}}).
		SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}})).Decode(&last)
	return oplog.Position(last, last), mongo.Wrap(err, "find its entry before %s", at)
}

// userEntries matches oplog entries of users outside the internal databases.
func userEntries() bson.D {
	theirs := bson.D{{Key: "$not", Value: bson.Regex{Pattern: `^(admin|config|local)\.`}}}
	return bson.D{
		{Key: "op", Value: bson.D{{Key: "$in", Value: bson.A{"i", "u", "d", "c"}}}},
		{Key: "fromMigrate", Value: bson.D{{Key: "$ne", Value: true}}},
		{Key: "$or", Value: bson.A{
			bson.D{{Key: "ns", Value: theirs}},
			bson.D{{Key: "o.applyOps", Value: bson.D{{Key: "$elemMatch", Value: bson.D{{Key: "ns", Value: theirs}}}}}},
		}},
	}
}
