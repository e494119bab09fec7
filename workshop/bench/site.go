package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync/atomic"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// dataDB holds everything that is measured, and markers for its end.
const dataDB = "mrbench"

// needs is what a scenario asks of its clusters.
type needs struct {
	sourceCacheGB, targetCacheGB float64
	oplogMB                      int
	targetProxy                  bool // a proxy before the target
	ownServers                   bool // servers are stopped and started
	member                       bool // a second member of the source, stopped until it is measured
	pairing                           // sharded clusters, empty for the replica sets of the options
}

// Servers say where scenarios run: on given clusters, or on lab clusters.
type Servers struct {
	Source, Target                 string // Source and Target are connection strings; both or none.
	Version                        string // Version and the topologies are those of lab clusters.
	SourceTopology, TargetTopology string
}

// given reports that the bench did not start the clusters.
func (s Servers) given() bool { return s.Source != "" }

type side struct {
	*mongo.Cluster                // as tools reach it
	uri            string         // the same, credentials included
	direct         *mongo.Cluster // past the proxy, for what is not measured
	lab            *lab.Cluster   // nil when given, or sharded
	nodes          []*mongo.Cluster
	cluster        *sharded.Cluster // nil for a replica set
	routers        []*routerProcess
	doors          []*mongo.Cluster // one for each of the routers
	next           atomic.Uint64    // of doors
	cache          string           // GB, of a lab's members
}

type site struct {
	source, target *side
}

func openSite(ctx context.Context, s Servers, n needs, start starting) (*site, error) {
	if s.given() && (n.targetProxy || n.ownServers || n.member) {
		return nil, mongo.WithHint(errors.New("this measurement stops servers or puts a proxy before them, which is not "+
			"done to given clusters"),
			"run it without --source-uri and --target-uri, on lab clusters")
	}
	st := &site{source: &side{uri: s.Source}, target: &side{uri: s.Target}}
	source := lab.Options{Version: s.Version, Topology: s.SourceTopology, CacheGB: n.sourceCacheGB, OplogMB: n.oplogMB,
		Logger: start.log}
	if n.member {
		source.Topology = "rs:2"
	}
	target := lab.Options{Version: s.Version, Topology: s.TargetTopology, CacheGB: n.targetCacheGB, Proxy: n.targetProxy,
		Logger: start.log}
	g, gctx := errgroup.WithContext(ctx)
	open := func(one *side, o lab.Options) {
		g.Go(func() error {
			if sharded.Is(o.Topology) {
				return one.openSharded(gctx, o, start)
			}
			return one.open(gctx, s.given(), o)
		})
	}
	open(st.source, source)
	open(st.target, target)
	if err := g.Wait(); err != nil {
		return nil, errors.Join(err, st.close())
	}
	return st, nil
}

// starting is what servers are started with beside their options.
type starting struct {
	log         *slog.Logger
	router, dir string // the program that routers are processes of, and a directory
}

func (s *side) open(ctx context.Context, given bool, o lab.Options) (err error) {
	s.cache = strconv.FormatFloat(o.CacheGB, 'f', 2, 64)
	if !given {
		if s.lab, err = lab.Start(ctx, o); err != nil {
			return err
		}
		s.uri = s.lab.URI()
	}
	return s.connect(ctx)
}

// connect opens the connections, again after a server was started again.
func (s *side) connect(ctx context.Context) (err error) {
	s.disconnect()
	o := mongo.Options{AppName: "millrace bench", MaxPoolSize: 128}
	if s.Cluster, err = mongo.Connect(ctx, s.uri, o); err != nil {
		return err
	}
	s.direct = s.Cluster
	if s.cluster != nil {
		return s.connectSharded(ctx, o)
	}
	if s.lab == nil {
		s.nodes = []*mongo.Cluster{s.Cluster}
		return nil
	}
	for i, m := range s.lab.Members() {
		if m.Pid() == 0 {
			continue
		}
		node, err := mongo.Connect(ctx, s.lab.DirectURI(i), o)
		if err != nil {
			return err
		}
		s.nodes = append(s.nodes, node)
	}
	if len(s.lab.Members()) == 1 {
		s.direct = s.nodes[0]
	}
	return nil
}

func (s *side) disconnect() {
	for _, n := range slices.Concat(s.nodes, s.doors) {
		if n != s.Cluster {
			n.Close()
		}
	}
	if s.Cluster != nil {
		s.Cluster.Close()
	}
	s.Cluster, s.direct, s.nodes, s.doors = nil, nil, nil, nil
}

func (s *side) close() error {
	s.disconnect()
	if s.lab == nil {
		return s.closeSharded()
	}
	return s.lab.Stop()
}

func (st *site) close() error { return errors.Join(st.source.close(), st.target.close()) }

// clear removes what an earlier contender left, and lets the server write the rest.
func (s *side) clear(ctx context.Context) error {
	if err := s.drop(ctx); err != nil {
		return err
	}
	if err := s.forget(ctx); err != nil {
		return err
	}
	return s.settle(ctx)
}

// historyWindow is the default of minSnapshotHistoryWindowInSeconds (5.0 and newer).
const historyWindow = 300

// forget waits until dropped collections are gone on all members. For reads of the past a server keeps and writes
// them for minutes, which the next contender would pay for. Given servers are left alone.
func (s *side) forget(ctx context.Context) (err error) {
	if !s.ours() || !s.Info.Version.AtLeast(5, 0) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, 5*time.Minute)
	defer cancel()
	if err := s.keepHistory(ctx, 0); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, s.keepHistory(context.WithoutCancel(ctx), historyWindow)) }()
	for {
		gone, err := s.forgotten(ctx)
		if gone || err != nil {
			return err
		}
		// The past ends at a checkpoint after a newer write.
		if err = s.writeNotes(ctx); err == nil {
			err = s.settle(ctx)
		}
		if err != nil {
			return fmt.Errorf("have %s forget what was dropped: %w", s.Address(), err)
		}
		if !tick(ctx, 100*time.Millisecond) {
			return fmt.Errorf("wait for %s to forget what was dropped: %w", s.Address(), ctx.Err())
		}
	}
}

// forgotten reports that no member keeps anything that was dropped.
func (s *side) forgotten(ctx context.Context) (bool, error) {
	for _, n := range s.nodes {
		status, err := n.Command(ctx, "admin", bson.D{{Key: "serverStatus", Value: 1}})
		if err != nil {
			return false, fmt.Errorf("ask %s for what it still has to drop: %w", n.Address(), err)
		}
		if pending, ok := status.Lookup("storageEngine", "dropPendingIdents").AsInt64OK(); ok && pending > 0 {
			return false, nil
		}
	}
	return true, nil
}

// note is the command that has a server write something into its oplog.
func note() bson.D {
	return bson.D{{Key: "appendOplogNote", Value: 1}, {Key: "data", Value: bson.D{{Key: "msg", Value: "millrace bench"}}}}
}

func (s *side) writeNotes(ctx context.Context) error {
	if s.cluster != nil {
		return s.majorityOfEach(ctx)
	}
	_, err := s.direct.Command(ctx, "admin", note())
	return err
}

func (s *side) keepHistory(ctx context.Context, seconds int) error {
	for _, n := range s.nodes {
		if _, err := n.Command(ctx, "admin", bson.D{{Key: "setParameter", Value: 1},
			{Key: "minSnapshotHistoryWindowInSeconds", Value: seconds}}); err != nil {
			return fmt.Errorf("set minSnapshotHistoryWindowInSeconds of %s: %w", n.Address(), err)
		}
	}
	return nil
}

// drop removes the database on all members that the bench started, so that none is busy with it later.
func (s *side) drop(ctx context.Context) error {
	var members any = "majority"
	if s.lab != nil && len(s.nodes) > 1 {
		members = len(s.nodes)
	}
	names := []string{dataDB}
	if s.ours() { // millrace begins a job anew in more round trips than a new one
		names = append(names, mongo.StateDB)
	}
	for _, db := range names {
		_, err := s.direct.Command(ctx, db, bson.D{{Key: "dropDatabase", Value: 1},
			{Key: "writeConcern", Value: bson.D{{Key: "w", Value: members}}}})
		if err != nil {
			return fmt.Errorf("drop %s of %s: %w", db, s.Address(), err)
		}
	}
	return nil
}

// tooNew is the error of a checkpoint of a member just filled: it waits for the primary's next writes.
const tooNew = 5841000

// settle has the members take a checkpoint.
func (s *side) settle(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, n := range s.nodes {
		_, err := n.Command(ctx, "admin", bson.D{{Key: "fsync", Value: 1}})
		for mongo.IsCode(err, tooNew) && tick(ctx, 100*time.Millisecond) {
			_, err = n.Command(ctx, "admin", bson.D{{Key: "fsync", Value: 1}})
		}
		if err != nil {
			return fmt.Errorf("checkpoint %s: %w", n.Address(), err)
		}
	}
	return nil
}

// majority waits until a majority has everything on disk. All measured work ends there: a target may lose the rest.
func (s *side) majority(ctx context.Context) error {
	if s.cluster != nil {
		return s.majorityOfEach(ctx)
	}
	_, err := s.direct.Command(ctx, dataDB, bson.D{{Key: "insert", Value: markers},
		{Key: "documents", Value: bson.A{bson.D{{Key: "_id", Value: bson.NewObjectID()}}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}})
	return mongo.Wrap(err, "wait for a majority of %s", s.Address())
}

func (s *side) create(ctx context.Context, collections int, indexes []index) error {
	for c := range collections {
		if err := s.createOne(ctx, collection(c)); err != nil {
			return fmt.Errorf("create %s.%s: %w", dataDB, collection(c), err)
		}
		if err := s.index(ctx, c, indexes); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) createOne(ctx context.Context, coll string) error {
	if s.cluster != nil {
		return s.shard(ctx, coll)
	}
	_, err := s.direct.Command(ctx, dataDB, bson.D{{Key: "create", Value: coll}})
	return err
}

type index struct {
	field  string
	unique bool
}

// index builds indexes in as many commands at once as a server works on by default: each uses one processor.
func (s *side) index(ctx context.Context, c int, indexes []index) error {
	const atOnce = 3
	g, ctx := errgroup.WithContext(ctx)
	for first := range min(atOnce, len(indexes)) {
		var part []index
		for i := first; i < len(indexes); i += atOnce {
			part = append(part, indexes[i])
		}
		g.Go(func() error { return s.createIndexes(ctx, c, part) })
	}
	return g.Wait()
}

func (s *side) createIndexes(ctx context.Context, c int, indexes []index) error {
	var specs bson.A
	for _, ix := range indexes {
		spec := bson.D{{Key: "key", Value: bson.D{{Key: ix.field, Value: 1}}}, {Key: "name", Value: ix.field + "_1"}}
		if ix.unique {
			spec = append(spec, bson.E{Key: "unique", Value: true})
		}
		specs = append(specs, spec)
	}
	if _, err := s.direct.Command(ctx, dataDB,
		bson.D{{Key: "createIndexes", Value: collection(c)}, {Key: "indexes", Value: specs}}); err != nil {
		return fmt.Errorf("index %s.%s: %w", dataDB, collection(c), err)
	}
	return nil
}

func collection(c int) string { return "c" + itoa(c) }

// count is the number of documents in the first collections, by their metadata.
func (s *side) count(ctx context.Context, collections int) (n int64, err error) {
	for c := range collections {
		raw, err := s.direct.Command(ctx, dataDB, bson.D{{Key: "count", Value: collection(c)}})
		if err != nil {
			return 0, err
		}
		one, _ := raw.Lookup("n").AsInt64OK()
		n += one
	}
	return n, nil
}

func (b *bench) open(ctx context.Context, n needs) (*site, error) {
	servers := b.o.Servers
	if n.pairing != (pairing{}) {
		servers.SourceTopology, servers.TargetTopology = n.pairing.source, n.pairing.target
	} else if sharded.Is(servers.SourceTopology) || sharded.Is(servers.TargetTopology) {
		return nil, mongo.WithHint(errors.New("this scenario measures replica sets"),
			"those for sharded clusters are full-sharded, incr-sharded and latency-sharded")
	}
	st, err := openSite(ctx, servers, b.share(n), starting{b.o.Log, b.o.Router, b.dir})
	if err != nil {
		return nil, err
	}
	for _, s := range []*side{st.source, st.target} {
		if err := s.steady(ctx); err != nil {
			return nil, errors.Join(err, st.close())
		}
	}
	if n.member {
		if err := st.source.retire(ctx); err != nil {
			return nil, errors.Join(err, st.close())
		}
	}
	return st, nil
}

// steady keeps a lab's primary while the machine is busy: the lab's sets elect another within 2 s.
func (s *side) steady(ctx context.Context) error {
	if s.lab == nil || len(s.lab.Members()) == 1 {
		return nil
	}
	err := lab.Reconfigure(ctx, s.direct.Client, func(c *lab.SetConfig) error {
		if c.Settings == nil {
			c.Settings = bson.M{}
		}
		c.Settings["electionTimeoutMillis"], c.Settings["heartbeatIntervalMillis"] = 30_000, 2000
		return nil
	})
	return mongo.Wrap(err, "keep the primary of %s in its place", s.Address())
}

func (b *bench) inDirectory(do func() error) (err error) {
	if b.dir, err = os.MkdirTemp("", "millrace-bench-"); err != nil {
		return fmt.Errorf("make a directory: %w", err)
	}
	defer func() { err = errors.Join(err, os.RemoveAll(b.dir)) }()
	return do()
}

// restart stops the servers cleanly and starts them again, with empty caches.
func (s *side) restart(ctx context.Context) error {
	s.disconnect()
	for _, m := range s.lab.Members() {
		if m.Pid() == 0 {
			continue
		}
		if err := m.Stop(); err != nil {
			return err
		}
		if err := m.Start(ctx); err != nil {
			return err
		}
	}
	return s.connect(ctx)
}

func (st *site) describe() string {
	if st.source == st.target || st.target.Cluster == nil {
		return st.source.describe()
	}
	return "source " + st.source.describe() + "; target " + st.target.describe()
}

func (s *side) describe() string {
	text := "mongod " + s.Info.Version.String() + " " + string(s.Info.Kind)
	n := len(s.Info.Hosts) // without hidden members and those that cannot be elected
	if s.lab != nil {
		n = len(s.lab.Members())
	}
	if n > 1 {
		text += " of " + itoa(n)
	}
	if s.cluster != nil {
		return text + " of " + itoa(len(s.cluster.ShardNames())) + " shards, " + itoa(len(s.routers)) +
			" routers of the lab as processes of their own, cache " + s.cache + " GB each"
	}
	if s.lab == nil {
		return text + ", given"
	}
	return text + ", cache " + s.cache + " GB"
}
