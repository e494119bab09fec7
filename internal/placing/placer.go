// Package placing shards the collections of a target that is a sharded cluster, through its routers. It chooses a shard
// key, splits the empty collection into ranges and moves each to a shard. It keeps the balancer off until the job is
// finalized. It notes each step on the target first, so that it can be repeated or undone.
//
// Nothing else of a job depends on where documents are: ranges in another place only cost speed.
package placing

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/failpoint"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/ownership"
	"github.com/millrace/millrace/internal/retry"
	"github.com/millrace/millrace/internal/schema"
	"github.com/millrace/millrace/internal/shardkey"
	"github.com/millrace/millrace/internal/stream"
)

// Options shape a Placer.
type Options struct {
	Job string
	// Source says how collections are to be sharded; nil for none.
	Source *Source
	// Builds run the index builds; nil makes them wait for a majority.
	Builds *schema.Builds
	Log    *slog.Logger
}

// Placer shards collections of a target. It is safe for concurrent use for different collections.
type Placer struct {
	c       *mongo.Cluster
	o       Options
	turn    chan struct{}       // a shard takes part in one move at a time
	joining chan struct{}       // guards joined, and what is done to get there
	joined  map[string][]string // the shards of zones, by zone
	step    func(string)        // for tests: called at each step
}

// New prepares sharding on c; it sends nothing yet.
func New(c *mongo.Cluster, o Options) *Placer {
	o.Log = cmp.Or(o.Log, slog.New(slog.DiscardHandler))
	if o.Builds == nil {
		o.Builds = schema.NewBuilds(c, nil, o.Log)
	}
	return &Placer{c: c, o: o, turn: make(chan struct{}, 1), joining: make(chan struct{}, 1),
		joined: map[string][]string{}, step: failpoint.Hit}
}

// Prepare notes how a collection is to be sharded that will be made. One that exists stays as it is, unless it is
// ours. early are indexes to build before Shard.
func (p *Placer) Prepare(ctx context.Context, coll schema.Collection, ns string,
	ours bool) (early []stream.Index, err error) {
	if p.o.Source == nil || coll.Type != schema.TypeCollection {
		return nil, nil
	}
	if n, found, err := p.note(ctx, ns); err != nil || found {
		early, _ = support(coll.Indexes, n.Key)
		return early, err
	}
	desired, err := p.o.Source.Desired(ctx, coll)
	if err != nil || desired.Key == nil {
		return nil, err
	}
	if !ours {
		if there, err := p.has(ctx, ns); err != nil || there {
			return nil, err
		}
	}
	n := note{ID: p.id(ns), Key: desired.Key}
	early, n.StandIn = support(coll.Indexes, desired.Key)
	if err := p.plan(ctx, coll, desired, &n); err != nil {
		return nil, err
	}
	return early, p.save(ctx, n)
}

func (p *Placer) plan(ctx context.Context, coll schema.Collection, desired Desired, n *note) error {
	zones, err := p.zones(ctx, desired, n)
	if err != nil {
		return err
	}
	shards, err := p.shards(ctx)
	if err != nil || len(shards) < 2 {
		return err
	}
	key, ranges := shardkey.Parse(desired.Key), rangesFor(coll.Bytes, len(shards))
	if key[0].Hashed && len(zones) == 0 {
		n.Chunks = ranges
		return nil
	}
	const sampled = 100 // keys a range
	sample, err := p.o.Source.sample(ctx, coll, key, sampled*ranges)
	if err != nil {
		return err
	}
	cuts, weights, of := cutStretches(stretches(zones, key, shards), desired.bounds, sample, ranges)
	if len(cuts) == 0 && len(zones) == 0 {
		return nil // it stays where it is made
	}
	for _, c := range cuts {
		doc, err := ownership.KeyDocument(c, key)
		if err != nil {
			return fmt.Errorf("cut the keys of %s: %w", coll.NS, err)
		}
		n.Cuts = append(n.Cuts, doc)
	}
	n.Owners = owners(weights, of)
	return nil
}

// Shard shards an empty collection that Prepare has noted. It may be repeated.
func (p *Placer) Shard(ctx context.Context, ns string) error {
	n, found, err := p.note(ctx, ns)
	if err != nil || !found {
		return err
	}
	e, sharded, err := p.entry(ctx, ns)
	if err != nil || sharded && n.Placed {
		return err
	}
	p.step("shard.before")
	if !sharded {
		if e, err = p.shard(ctx, n); err != nil {
			return err
		}
	}
	if want, got := shardkey.Text(n.Key), shardkey.Text(e.Key); !SameKey(e.Key, n.Key) {
		return mongo.WithHint(fmt.Errorf("%s is sharded by %s on the target, not by %s", ns, got, want),
			"drop it there, or give --shard "+ns+"="+got)
	}
	p.step("shard.made")
	if n, err = p.hold(ctx, n, e); err != nil {
		return err
	}
	p.step("shard.held")
	for _, z := range n.Zones { // chosen by an earlier run, perhaps
		if _, err := p.members(ctx, z.Tag); err != nil {
			return err
		}
	}
	if err := p.setZones(ctx, ns, n.Zones, nil); err != nil {
		return err
	}
	if err := p.place(ctx, n, e); err != nil {
		return err
	}
	p.step("shard.placed")
	n.Placed = true
	p.o.Log.Info("sharded on the target", "ns", ns, "key", shardkey.Text(n.Key), "ranges", max(len(n.Cuts)+1, n.Chunks))
	return p.save(ctx, n)
}

func (p *Placer) shard(ctx context.Context, n note) (e schema.Entry, err error) {
	ns := n.ID.NS
	if n.StandIn {
		if err := p.standIn(ctx, n); err != nil {
			return e, err
		}
	}
	db, _ := mongo.SplitNS(ns)
	if !p.c.Info.Version.AtLeast(6, 0) {
		if err := p.run(ctx, bson.D{{Key: "enableSharding", Value: db}}); err != nil {
			return e, fmt.Errorf("permit sharding in database %s: %w", db, err)
		}
	}
	cmd := bson.D{{Key: "shardCollection", Value: ns}, {Key: "key", Value: bson.Raw(n.Key)},
		{Key: "collation", Value: bson.D{{Key: "locale", Value: "simple"}}}}
	if n.Chunks > 0 {
		cmd = append(cmd, bson.E{Key: "numInitialChunks", Value: n.Chunks})
	}
	if err := p.run(ctx, cmd); err != nil {
		return e, fmt.Errorf("shard %s by %s on the target: %w", ns, shardkey.Text(n.Key), err)
	}
	e, found, err := p.entry(ctx, ns)
	if err == nil && !found {
		err = fmt.Errorf("shard %s on the target: the config servers do not list it as sharded", ns)
	}
	return e, err
}

// run runs a command of the database admin that changes the cluster.
func (p *Placer) run(ctx context.Context, cmd bson.D) error { return p.runOn(ctx, "admin", cmd) }

func (p *Placer) runOn(ctx context.Context, db string, cmd bson.D) error {
	if ctx.Err() != nil { // the driver may send it all the same
		return context.Cause(ctx)
	}
	majority := bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
	_, err := p.c.Write(ctx, db, append(cmd, majority))
	return err
}

func (p *Placer) hold(ctx context.Context, n note, e schema.Entry) (note, error) {
	if !n.Off || !n.UUID.Equal(e.UUID) {
		n.Off, n.Was, n.UUID = true, e.NoBalance, e.UUID
		if err := p.save(ctx, n); err != nil {
			return n, err
		}
	}
	p.step("shard.noted")
	return n, mongo.Wrap(p.balance(ctx, e, bson.D{{Key: "$set", Value: bson.D{{Key: "noBalance", Value: true}}}}),
		"have the balancer leave %s alone", n.ID.NS)
}

// balance changes the entry of a collection, unless another one has the name now.
func (p *Placer) balance(ctx context.Context, e schema.Entry, change bson.D) error {
	statement := bson.D{{Key: "q", Value: bson.D{{Key: "_id", Value: e.NS}, {Key: "uuid", Value: e.UUID}}},
		{Key: "u", Value: change}}
	return p.runOn(ctx, "config", bson.D{{Key: "update", Value: "collections"},
		{Key: "updates", Value: bson.A{statement}}})
}

// Release makes the balancer treat the job's collections as before.
func (p *Placer) Release(ctx context.Context) error {
	all, err := p.notes(ctx)
	if err != nil {
		return err
	}
	for _, n := range all {
		if !n.Off {
			continue
		}
		change := bson.D{{Key: "$unset", Value: bson.D{{Key: "noBalance", Value: ""}}}}
		if n.Was != nil {
			change = bson.D{{Key: "$set", Value: bson.D{{Key: "noBalance", Value: *n.Was}}}}
		}
		if err := p.balance(ctx, schema.Entry{NS: n.ID.NS, UUID: n.UUID}, change); err != nil {
			return fmt.Errorf("have the balancer treat %s as before: %w", n.ID.NS, err)
		}
		p.step("release.before")
		n.Off = false
		if err := p.save(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// ForgetAll releases all collections and forgets them: for a job that ends or restarts.
func (p *Placer) ForgetAll(ctx context.Context) error {
	if err := p.Release(ctx); err != nil {
		return err
	}
	return p.forget(ctx, bson.D{mongo.OfJobDocuments(p.o.Job)})
}

// Forget forgets a collection that was dropped.
func (p *Placer) Forget(ctx context.Context, ns string) error {
	return p.forget(ctx, bson.D{{Key: "_id", Value: p.id(ns)}})
}

// Move follows a renamed collection. It may be repeated.
func (p *Placer) Move(ctx context.Context, from, to string) error {
	n, found, err := p.note(ctx, from)
	if err != nil || !found {
		return err
	}
	n.ID = p.id(to)
	if err := p.save(ctx, n); err != nil {
		return err
	}
	return p.Forget(ctx, from)
}

const (
	// placeTime bounds the attempts to place a collection, movePause is the wait after a failure.
	placeTime = 30 * time.Second
	movePause = 200 * time.Millisecond
)

// place splits an empty collection into its ranges and moves them to their shards. Ranges that cannot be moved
// within placeTime, as by other migrations, stay where they are.
func (p *Placer) place(ctx context.Context, n note, e schema.Entry) error {
	if len(n.Owners) == 0 {
		return nil
	}
	if err := lock(ctx, p.turn); err != nil {
		return err
	}
	defer func() { <-p.turn }()
	began := time.Now()
	passes := func(error, time.Duration) bool { return ctx.Err() == nil && time.Since(began) <= placeTime }
	err := retry.Again(ctx, movePause, movePause, passes, func() error { return p.tryPlace(ctx, n, e) })
	if err == nil || ctx.Err() != nil || mongo.Classify(err) == mongo.ClassRetry {
		return err
	}
	p.o.Log.Warn("ranges of a collection stay where they are; the balancer may move them after the job is finalized",
		"ns", n.ID.NS, "error", err)
	return nil
}

func lock(ctx context.Context, turn chan<- struct{}) error {
	select {
	case turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (p *Placer) tryPlace(ctx context.Context, n note, e schema.Entry) error {
	have, err := p.chunks(ctx, e)
	if err != nil {
		return err
	}
	ns := n.ID.NS
	for _, at := range n.Cuts {
		if slices.ContainsFunc(have, func(c ownership.Chunk) bool { return shardkey.CompareDocuments(c.Min, at) == 0 }) {
			continue
		}
		if err := p.run(ctx, bson.D{{Key: "split", Value: ns}, {Key: "middle", Value: bson.Raw(at)}}); err != nil {
			return fmt.Errorf("split %s: %w", ns, err)
		}
		p.step("shard.split")
	}
	shards, err := p.shards(ctx)
	if err != nil {
		return err
	}
	if have, err = p.chunks(ctx, e); err != nil {
		return err
	}
	for _, c := range have {
		owner := n.ownerOf(c)
		if c.Shard == owner || !slices.Contains(shards, owner) {
			continue // a shard that has gone since has nothing
		}
		if err := p.run(ctx, bson.D{{Key: "moveChunk", Value: ns}, {Key: "bounds", Value: bson.A{c.Min, c.Max}},
			{Key: "to", Value: owner}}); err != nil {
			return fmt.Errorf("move a range of %s to shard %s: %w", ns, owner, err)
		}
		p.step("shard.moved")
	}
	return nil
}

// ownerOf is the shard that is to have a chunk, which may be a part of a range.
func (n note) ownerOf(c ownership.Chunk) string {
	at := shardkey.Bound(c.Min)
	i, exact := slices.BinarySearchFunc(n.Cuts, at, func(cut []byte, at []bson.RawValue) int {
		return shardkey.CompareKeys(shardkey.Bound(cut), at)
	})
	if exact {
		i++
	}
	return n.Owners[i]
}
