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

// Now is the cluster with the shards that have joined since it was opened, and without
// those that have left and of which a consumer at a position has everything. Both have the
// same connections: the newest one is to be closed.
func (c *Cluster) Now(ctx context.Context, pos stream.Position) (*Cluster, error) {
	found, err := list(ctx, c.Router)
	if err != nil {
		return nil, fmt.Errorf("find the shards of %s: %w", c.Router.Address(), err)
	}
	needed, err := partsOf(pos)
	if err != nil {
		return nil, err
	}
	gone := needed.without(found)
	if len(gone) == 0 && needed.there.removed(found) {
		return nil, errPassedBy
	}
	now := *c
	now.Shards, now.unused = nil, slices.Clone(c.unused)
	for _, s := range c.Shards {
		_, reads := needed.parts[s.Name]
		if reads || slices.ContainsFunc(found, func(m member) bool { return m.Name == s.Name }) {
			now.Shards = append(now.Shards, s)
		} else {
			now.unused = append(now.unused, s)
		}
	}
	var joined []Shard
	where := hostsOf(found)
	for i, m := range slices.Concat(found, gone) {
		where[m.Name] = cmp.Or(m.Host, c.hosts[m.Name])
		if c.has(m.Name) {
			continue
		}
		s, err := c.opens(ctx, m, i >= len(found))
		if err == nil {
			where[m.Name] = cmp.Or(m.Host, s.Info.SetName+"/"+strings.Join(s.Info.Hosts, ","))
			joined = append(joined, s)
			err = c.asks(s)
		}
		if err != nil {
			for _, s := range joined {
				s.Close()
			}
			return nil, err
		}
	}
	now.Shards, now.left, now.topology, now.hosts = append(now.Shards, joined...), &departed{}, topologyOf(found), where
	slices.SortFunc(now.Shards, func(a, b Shard) int { return cmp.Compare(a.Name, b.Name) })
	return &now, nil
}

// needs are the shards that a position names, and what there was then.
type needs struct {
	parts map[string]stream.Position
	there topology
	hosts hosts
}

func partsOf(pos stream.Position) (n needs, err error) {
	if !marked(pos) {
		return n, nil // nothing was begun
	}
	m, err := readMark(pos)
	if err != nil {
		return n, err
	}
	pos.Mark = string(m.Shards)
	n.there, n.hosts = m.Since, m.Hosts
	n.parts, err = merge.Parts(pos)
	return n, err
}

// without are the shards that are needed and not there any more, sorted by name.
func (n needs) without(there []member) (gone []member) {
	for _, name := range slices.Sorted(maps.Keys(n.parts)) {
		if !slices.ContainsFunc(there, func(m member) bool { return m.Name == name }) {
			gone = append(gone, member{Name: name, Host: n.hosts[name]})
		}
	}
	return gone
}

// opens opens a shard that is not open: one that has joined, or one that has left since a
// position was stored, of which a consumer there does not have everything.
func (c *Cluster) opens(ctx context.Context, m member, left bool) (Shard, error) {
	if !left {
		return open(ctx, m, c.opt)
	}
	if m.Host == "" && c.opt.Shards[m.Name] == "" {
		return Shard{}, errUnread(m.Name, nil)
	}
	s, err := open(ctx, m, c.opt)
	if err != nil {
		return s, errUnread(m.Name, err)
	}
	return s, nil
}

// errUnread is the error of a shard that has left before all was read that it did; cause is
// why it is not read now.
func errUnread(name string, cause error) error {
	err := fmt.Errorf("shard %s has left before all was read that it did", name)
	if cause != nil {
		err = fmt.Errorf("%w: %w", err, cause)
	}
	return mongo.WithHint(err, fmt.Sprintf("start its servers, or give their address with --source-shard %s=URI; they are needed until the job has stored a position after its removal. Where they are lost, %s", name, beginAnew))
}

// topology are the times at which shards were added, or others removed, by shard.
type topology map[string]bson.Timestamp

func topologyOf(all []member) topology {
	t := topology{}
	for _, m := range all {
		t[m.Name] = m.Since
	}
	return t
}

// removed reports that a shard has been removed since: of those that there are still, one
// has another time.
func (t topology) removed(now []member) bool {
	return slices.ContainsFunc(now, func(m member) bool {
		was, known := t[m.Name]
		return known && was != m.Since
	})
}

// errPassedBy says that a shard has joined and left, and nobody has read it.
var errPassedBy = mongo.WithHint(errors.New("a shard has joined the source and left it again, and what it did in between was not read"), beginAnew)

const beginAnew = "begin anew with --restart and --on-existing drop"

// departed are shards that have left, with a time by which they had. It is safe for
// concurrent use.
type departed struct {
	mu   sync.Mutex
	at   map[string]bson.Timestamp
	left topology // since the newest left
}

// note compares what there is, at a time, with what is known of a cluster.
func (d *departed) note(c *Cluster, now []member, at bson.Timestamp) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.at == nil {
		d.at, d.left = map[string]bson.Timestamp{}, c.topology
	}
	noted := false
	for _, s := range c.Shards {
		_, known := d.at[s.Name]
		if !known && !slices.ContainsFunc(now, func(m member) bool { return m.Name == s.Name }) {
			d.at[s.Name], noted = at, true
		}
	}
	if !noted && d.left.removed(now) {
		return errPassedBy
	}
	d.left = topologyOf(now)
	return nil
}

// by gives those that had left by a time, after which they did nothing, and what there is
// without them.
func (d *departed) by(at bson.Timestamp) (names []string, left topology) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for name, gone := range d.at {
		if gone.Compare(at) <= 0 {
			names = append(names, name)
		}
	}
	return names, d.left
}

// asks fails for a shard of which the config servers have to be asked what it owned, where
// the others are newer and nobody has opened them.
func (c *Cluster) asks(s Shard) error {
	if s.Info.Version.AtLeast(6, 0) || c.config != nil {
		return nil
	}
	return fmt.Errorf("shard %s has %s and is older than the others", s.Name, s.Info.Version)
}

// HasLeft reports whether a shard that is read is not one of the cluster's any more.
func (c *Cluster) HasLeft(name string) bool {
	_, there := c.topology[name]
	return !there
}

func (c *Cluster) has(name string) bool {
	return slices.ContainsFunc(c.Shards, func(s Shard) bool { return s.Name == name })
}

// join adds to a position of the merged stream where the shards go on that have joined
// after it.
func (c *Cluster) join(ctx context.Context, pos stream.Position) (stream.Position, error) {
	parts, err := merge.Parts(pos)
	if err != nil {
		return pos, err
	}
	for name := range parts {
		if !c.has(name) {
			return pos, errUnread(name, nil)
		}
	}
	for _, s := range c.Shards {
		if _, ok := parts[s.Name]; ok {
			continue
		}
		if parts[s.Name], err = begin(ctx, s, pos.At); err != nil {
			return pos, fmt.Errorf("shard %s has joined: %w", s.Name, err)
		}
	}
	return merge.Whole(pos.At, parts), nil
}

// begin is where a shard goes on for a consumer that has all that the others did up to a
// time, at which it had not joined yet. Whatever it did as a part of the cluster has a
// later time, for it was told the cluster's when it joined. What users did to it before
// then has never been copied: databases that it brings count only from its first entry on.
func begin(ctx context.Context, s Shard, at mongo.OpTime) (stream.Position, error) {
	first, beginning, err := FirstEntry(ctx, s)
	switch {
	case err != nil:
		return stream.Position{}, err
	case !beginning:
		return stream.Position{}, mongo.WithHint(errors.New("its oplog does not reach back to its set's beginning, so that nobody knows what it has brought"), beginAnew)
	case at.Before(first):
		return oplog.Including(first), nil
	}
	entries := s.Client.Database("local", options.Database().SetReadConcern(readconcern.Majority())).Collection("oplog.rs")
	until := bson.E{Key: "ts", Value: bson.D{{Key: "$lte", Value: at.TS}}}
	var brought struct {
		NS string `bson:"ns"`
	}
	err = entries.FindOne(ctx, append(bson.D{until}, ofUsers()...)).Decode(&brought)
	if err == nil {
		return stream.Position{}, mongo.WithHint(fmt.Errorf("it has brought data (%s) from before then", brought.NS), beginAnew)
	}
	if !errors.Is(err, driver.ErrNoDocuments) {
		return stream.Position{}, mongo.Wrap(err, "look for what it has brought")
	}
	var last mongo.OpTime
	err = entries.FindOne(ctx, bson.D{until}, options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}}).
		SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}})).Decode(&last)
	return oplog.Position(last, last), mongo.Wrap(err, "find its entry before %s", at)
}

// FirstEntry is the oldest entry of a shard's oplog, and whether it is the one with which
// a set begins (seen on 4.2 to 6.0).
func FirstEntry(ctx context.Context, s Shard) (at mongo.OpTime, beginning bool, err error) {
	raw, err := s.Client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: 1}}).SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}, {Key: "op", Value: 1}, {Key: "o.msg", Value: 1}})).Raw()
	if err == nil {
		err = bson.Unmarshal(raw, &at)
	}
	if err != nil {
		return at, false, mongo.Wrap(err, "read the oldest oplog entry of shard %s", s.Name)
	}
	op, _ := raw.Lookup("op").StringValueOK()
	msg, _ := raw.Lookup("o", "msg").StringValueOK()
	return at, op == "n" && msg == "initiating set", nil
}

// ofUsers matches oplog entries of what users did outside the internal databases.
func ofUsers() bson.D {
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
