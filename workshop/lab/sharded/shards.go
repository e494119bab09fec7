package sharded

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/router"
)

// join makes a running set a shard (_configsvrAddShard), unless it is one.
func (c *Cluster) join(ctx context.Context, s *set) error {
	return c.config.command(ctx, bson.D{
		{Key: "_configsvrAddShard", Value: s.Name() + "/" + strings.Join(s.Hosts(), ",")}, {Key: "name", Value: s.name},
		majority(),
	})
}

// AddShard starts another set, makes it a shard and returns its name.
func (c *Cluster) AddShard(ctx context.Context) (string, error) {
	return c.AddShardWith(ctx, func(*lab.Cluster) error { return nil })
}

// AddShardWith is AddShard with a function before the set joins. The cluster takes over databases that it lacks.
func (c *Cluster) AddShardWith(ctx context.Context, before func(*lab.Cluster) error) (string, error) {
	c.mu.Lock()
	name := c.nextName()
	c.mu.Unlock()
	ctx, cancel := lab.WithTimeout(ctx, startTimeout)
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

// RemoveShard moves a shard's primary databases, lets the balancer move its chunks, and removes it. The balancer
// has to be on, and a chunk does not go where its orphans are, by default for 900 seconds. The shard's servers run
// until Stop.
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
		return fmt.Errorf("lab: remove shard %s from %s: the balancer, which empties it, is off; call Balancer first", name,
			c.Name())
	}
	var left bson.Raw
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		answer, done, err := c.drain(ctx, name)
		if err == nil {
			left = answer
		}
		return done || err != nil, err
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

// drain asks once how far the removal of a shard is, does its part, and reports whether the shard has gone.
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
			return raw, false, fmt.Errorf("%s is the last shard", name)
		}
		if err := c.MovePrimary(ctx, db, shards[i].name); err != nil {
			return raw, false, err
		}
	}
	return raw, progress.State == "completed", nil
}

// Balancer turns the balancer on or off by the config servers' commands, which wait for the end of a round.
func (c *Cluster) Balancer(ctx context.Context, on bool) error {
	name := map[bool]string{true: "_configsvrBalancerStart", false: "_configsvrBalancerStop"}[on]
	return c.config.command(ctx, bson.D{{Key: name, Value: 1}})
}

// BalancerState is what the config servers say of their balancer.
type BalancerState struct {
	Mode    string `bson:"mode"`              // Mode is "full", "autoSplitOnly" or "off".
	InRound bool   `bson:"inBalancerRound"`   // InRound reports whether it is at work.
	Rounds  int64  `bson:"numBalancerRounds"` // Rounds is how many it has done.
}

// BalancerState asks how the balancer is.
func (c *Cluster) BalancerState(ctx context.Context) (state BalancerState, err error) {
	raw, err := c.config.run(ctx, "admin", func(context.Context) (bson.D, error) {
		return bson.D{{Key: "_configsvrBalancerStatus", Value: 1}}, nil
	})
	if err == nil {
		err = bson.Unmarshal(raw, &state)
	}
	return state, lab.Wrap(err, "lab: ask %s for its balancer", c.Name())
}

// ChunkSize sets the chunk size: with 1, the least, the balancer moves little data.
func (c *Cluster) ChunkSize(ctx context.Context, mb int) error {
	_, err := c.configData("settings").UpdateOne(ctx, bson.D{{Key: "_id", Value: "chunksize"}},
		bson.D{{Key: "$set", Value: bson.D{{Key: "value", Value: mb}}}}, options.UpdateOne().SetUpsert(true))
	return lab.Wrap(err, "lab: set the chunk size of %s", c.Name())
}

// CreateDatabase makes a database whose primary shard is the one named.
func (m *Map) CreateDatabase(ctx context.Context, name, primary string) error {
	if _, err := m.shard(primary); err != nil {
		return err
	}
	return m.config.command(ctx, m.server.CreateDatabase(name, primary))
}

type database struct {
	Primary string   `bson:"primary"`
	Version bson.Raw `bson:"version"`
}

func (m *Map) database(ctx context.Context, name string) (d database, s *set, err error) {
	err = m.config.client.Database("config").Collection("databases").FindOne(ctx, bson.D{{Key: "_id", Value: name}}).
		Decode(&d)
	if err != nil {
		return d, nil, fmt.Errorf("lab: find database %s of %s: %w; make it with CreateDatabase", name, m.name, err)
	}
	s, err = m.shard(d.Primary)
	return d, s, err
}

// Primary is the name of a database's primary shard.
func (m *Map) Primary(ctx context.Context, db string) (string, error) {
	d, _, err := m.database(ctx, db)
	return d.Primary, err
}

// MovePrimary makes another shard a database's primary one. Its unsharded collections move there.
func (m *Map) MovePrimary(ctx context.Context, db, to string) error {
	_, from, err := m.database(ctx, db)
	if err != nil {
		return err
	}
	if _, err := m.shard(to); err != nil {
		return err
	}
	if !m.server.AtLeast(6, 0) {
		// The shard's own command is not for others there: 5.0.4 and 4.4.2 die of one with a database version.
		return m.config.command(ctx, bson.D{{Key: "_configsvrMovePrimary", Value: db}, {Key: "to", Value: to}, majority()})
	}
	_, err = from.run(ctx, "admin", func(ctx context.Context) (bson.D, error) {
		d, _, err := m.database(ctx, db)
		return bson.D{
			{Key: "_shardsvrMovePrimary", Value: db}, {Key: "to", Value: to}, {Key: "databaseVersion", Value: d.Version},
			majority(),
		}, err
	})
	return lab.Wrap(err, "lab: move database %s to %s", db, to)
}

const (
	// commandTimeout bounds what has no deadline of its own: only what hangs comes to it.
	commandTimeout = 3 * time.Minute
	again          = 20 * time.Millisecond // the pause before something is asked for once more.
)

// stale reports that a shard refused a command for differing metadata, which it then reads anew.
func stale(err error) bool {
	const (
		staleShardVersion = 63 // of a write before 6.0
		staleEpoch        = 150
		staleDbVersion    = 249
		staleConfig       = 13388
	)
	return hasCode(err, staleShardVersion, staleEpoch, staleDbVersion, staleConfig)
}

// passes reports an error that passes by itself: stale, another migration, a lost primary. Commands may be repeated.
func passes(err error) bool {
	const (
		hostUnreachable        = 6
		lockTimeout            = 24
		lockBusy               = 46
		shardNotFound          = 70 // by a shard that has not heard of one that has just joined
		networkTimeout         = 89
		shutdownInProgress     = 91
		conflictingOperation   = 117
		failedToFindPrimary    = 133
		majorityNotYet         = 134
		primarySteppedDown     = 189
		socketException        = 9001
		notWritablePrimary     = 10107
		interruptedAtShutdown  = 11600
		interruptedByElection  = 11602
		notPrimaryOrRecovering = 13436
	)
	// The driver's type is not public: an operation that waits for a pool whose server is gone.
	var pool interface {
		error
		Retryable() bool
	}
	if errors.As(err, &pool) && pool.Retryable() {
		return true
	}
	return stale(err) || mongo.IsNetworkError(err) ||
		hasCode(err, hostUnreachable, lockTimeout, lockBusy, shardNotFound, networkTimeout,
			shutdownInProgress, conflictingOperation, failedToFindPrimary, majorityNotYet, primarySteppedDown, socketException,
			notWritablePrimary, interruptedAtShutdown, interruptedByElection, notPrimaryOrRecovering)
}

// hasCode reports whether a server has answered with one of the codes.
func hasCode(err error, codes ...int) bool {
	var answer mongo.ServerError
	return errors.As(err, &answer) && slices.ContainsFunc(codes, answer.HasErrorCode)
}

// majority is what the config servers' commands and the shards' insist on.
func majority() bson.E {
	return bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}
}

// run sends a command, made anew for each try, until the answer does not pass by itself.
func (s *set) run(ctx context.Context, db string, make func(context.Context) (bson.D, error)) (reply bson.Raw,
	err error) {
	err = poll(ctx, func(ctx context.Context) (bool, error) {
		cmd, err := make(ctx)
		if err != nil {
			return true, err
		}
		reply, err = s.client.Database(db).RunCommand(ctx, cmd).Raw()
		return !passes(err), err
	})
	return reply, err
}

// poll tries until done, for commandTimeout at most. The error of the last try counts.
func poll(ctx context.Context, try func(context.Context) (done bool, err error)) error {
	ctx, cancel := lab.WithTimeout(ctx, commandTimeout)
	defer cancel()
	var last error
	err := lab.Poll(ctx, again, func() (done bool, _ error) {
		done, last = try(ctx)
		return done, nil
	})
	return errors.Join(err, last)
}

func (s *set) command(ctx context.Context, cmd bson.D) error {
	_, err := s.run(ctx, "admin", func(context.Context) (bson.D, error) { return cmd, nil })
	return lab.Wrap(err, "lab: %s on %s", cmd[0].Key, s.Name())
}

func (c *Cluster) askVersion(ctx context.Context) (v router.Version, err error) {
	var info struct {
		Version []int32 `bson:"versionArray"`
	}
	err = c.config.client.Database("admin").RunCommand(ctx, bson.D{{Key: "buildInfo", Value: 1}}).Decode(&info)
	if err != nil {
		return v, fmt.Errorf("ask for the version: %w", err)
	}
	if len(info.Version) < 2 {
		return v, errors.New("the server names no version")
	}
	return router.Version{info.Version[0], info.Version[1]}, nil
}

// Up starts a cluster that runs until Store.Down, with routers as processes of the program ("lab router").
func Up(ctx context.Context, store *lab.Store, o Options, program string) (*lab.State, error) {
	o.Version = cmp.Or(o.Version, "6.0")
	named, err := newCluster(o) // has the name, and knows that the directory is fit
	if err != nil {
		return nil, err
	}
	ctx, cancel := lab.WithTimeout(ctx, startTimeout)
	defer cancel()
	return store.Launch(ctx, named.opts.Options, func(ctx context.Context, l *lab.Launch) error {
		c, err := newCluster(named.opts.inLaunch(l, program))
		if err != nil {
			return err
		}
		if err := c.start(ctx); err != nil {
			return errors.Join(fmt.Errorf("lab: start sharded cluster %s: %w", c.Name(), err), c.Stop())
		}
		defer c.leave()
		hosts, err := c.startPrograms(ctx, l, named, program)
		if err != nil {
			return errors.Join(err, c.Stop())
		}
		l.SetURI(c.Config().RouterURI(hosts))
		return nil
	})
}

// inLaunch makes options those of the servers alone, which outlive this process.
func (o Options) inLaunch(l *lab.Launch, program string) Options {
	o.Dir, o.part = l.Dir(), func(o lab.Options) lab.Options {
		if o.Front != nil {
			o.Front = gatePrograms(l, program, o.Name)
		}
		return l.Part(o)
	}
	if o.Port != 0 {
		o.Port += o.Routers
	}
	o.Routers = 0
	return o
}

// startPrograms starts the routers as processes. The password is in a file: others see command lines.
func (c *Cluster) startPrograms(ctx context.Context, l *lab.Launch, named *Cluster, program string) (hosts []string,
	err error) {
	for i := range named.opts.Routers {
		name := "router" + strconv.Itoa(i)
		file := filepath.Join(l.Dir(), name+".uri")
		if err := os.WriteFile(file, []byte(c.ConfigURI()), 0o600); err != nil {
			return nil, fmt.Errorf("lab: write the address of the config servers: %w", err)
		}
		host, err := l.Run(ctx, lab.Program{Name: name, Role: "router", Command: []string{
			program, "lab", "router", "--listen", named.routerAddress(i), "--config", file,
		}})
		if err != nil {
			return nil, err
		}
		hosts = append(hosts, host)
	}
	return hosts, nil
}

// gatePrograms starts gates before a set's members as processes, which Store.Down ends.
func gatePrograms(l *lab.Launch, program, set string) func(context.Context, string, string) (lab.Front, error) {
	return func(ctx context.Context, listen, upstream string) (lab.Front, error) {
		host, err := l.Run(ctx, lab.Program{Name: "gate-" + set + "-" + strings.ReplaceAll(upstream, ":", "-"),
			Role: "gate", Command: []string{program, "lab", "gate", "--listen", listen, "--to", upstream}})
		return launched(host), err
	}
}

// launched is the address of a program that outlives this process.
type launched string

func (l launched) Host() string { return string(l) }
func (launched) Close() error   { return nil }

// leave ends the connections to servers that run on.
func (c *Cluster) leave() {
	ctx, cancel := context.WithTimeout(context.Background(), goodbye)
	defer cancel()
	for _, s := range append(c.sets(), c.config) {
		_ = s.client.Disconnect(ctx)
	}
}
