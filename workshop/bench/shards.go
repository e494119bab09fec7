package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

const (
	routersOfEach  = 2  // how many routers a sharded cluster has.
	chunksPerShard = 32 // how many chunks of a collection a shard begins with.
)

// routerProcess is a router of the lab in its own process, so that its cost is counted apart.
type routerProcess struct {
	*child
	host string
}

func (s *side) openSharded(ctx context.Context, o lab.Options, start starting) (err error) {
	s.cache = strconv.FormatFloat(o.CacheGB, 'f', 2, 64)
	// What has moved away goes at once, so that it can come back.
	o.SetParameters = map[string]string{"orphanCleanupDelaySecs": "0"}
	if s.cluster, err = sharded.Start(ctx, sharded.Options{Options: o}); err != nil {
		return err
	}
	if err := s.cluster.Balancer(ctx, false); err != nil {
		return err
	}
	file := filepath.Join(start.dir, s.cluster.Name()+".uri") // a command line is for everybody to see
	if err := os.WriteFile(file, []byte(s.cluster.ConfigURI()), 0o600); err != nil {
		return fmt.Errorf("write the address of the config servers: %w", err)
	}
	var hosts []string
	for range routersOfEach {
		r, err := startRouter(ctx, start.router, file)
		if err != nil {
			return err
		}
		s.routers = append(s.routers, r)
		hosts = append(hosts, r.host)
	}
	s.uri = s.cluster.Config().RouterURI(hosts)
	return s.connect(ctx)
}

func startRouter(ctx context.Context, name, config string) (*routerProcess, error) {
	r, w, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("make a pipe: %w", err)
	}
	defer r.Close()
	// It ends with close, not with what was to be measured.
	c, err := startChild(context.WithoutCancel(ctx),
		program{name: name, stdout: w, args: []string{"lab", "router", "--config", config}})
	w.Close() // the child has its own copy
	if err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(r).ReadString('\n')
	if err != nil {
		return nil, fmt.Errorf("start a router: %w", errors.Join(err, c.stop()))
	}
	return &routerProcess{c, strings.TrimSpace(line)}, nil
}

// connectSharded opens the connections to a cluster's routers and servers.
func (s *side) connectSharded(ctx context.Context, o mongo.Options) (err error) {
	for _, r := range s.routers {
		door, err := mongo.Connect(ctx, s.cluster.Config().RouterURI([]string{r.host}), o)
		if err != nil {
			return err
		}
		s.doors = append(s.doors, door)
	}
	for _, set := range append(s.cluster.Shards(), s.cluster.Config()) {
		for i := range set.Members() {
			node, err := mongo.Connect(ctx, set.DirectURI(i), o)
			if err != nil {
				return err
			}
			s.nodes = append(s.nodes, node)
		}
	}
	return nil
}

// door is where the next connection of a writer goes: each router in turn.
func (s *side) door() *mongo.Cluster {
	if len(s.doors) == 0 {
		return s.Cluster
	}
	return s.doors[int(s.next.Add(1))%len(s.doors)]
}

func (s *side) closeSharded() (err error) {
	for _, r := range s.routers {
		err = errors.Join(err, r.stop())
	}
	if s.cluster != nil {
		err = errors.Join(err, s.cluster.Stop())
	}
	return err
}

// ours reports that the bench has started the servers.
func (s *side) ours() bool { return s.lab != nil || s.cluster != nil }

func (s *side) shard(ctx context.Context, coll string) error {
	shards := s.cluster.ShardNames()
	if _, err := s.cluster.Primary(ctx, dataDB); err != nil {
		if err := s.cluster.CreateDatabase(ctx, dataDB, shards[0]); err != nil {
			return err
		}
	}
	return s.cluster.ShardCollection(ctx, dataDB+"."+coll, sharded.Sharding{
		Key: bson.D{{Key: "_id", Value: "hashed"}}, Chunks: chunksPerShard * len(shards),
	})
}

// majorityOfEach waits until a majority of each set has what was written to it.
func (s *side) majorityOfEach(ctx context.Context) error {
	for _, name := range s.cluster.ShardNames() {
		shard, err := s.cluster.Direct(name)
		if err == nil {
			err = shard.Database("admin").RunCommand(ctx,
				append(note(), bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})).Err()
		}
		if err != nil {
			return fmt.Errorf("wait for a majority of %s: %w", name, err)
		}
	}
	return nil
}

// routed is what a router has taken from clients, and its processor time.
type routed struct {
	statements int64
	cpu        float64
}

func (s *side) routed(ctx context.Context) ([]routed, error) {
	var all []routed
	for i, door := range s.doors {
		raw, err := door.Command(ctx, "admin", bson.D{{Key: "serverStatus", Value: 1}})
		if err != nil {
			return nil, fmt.Errorf("ask router %s what it has taken: %w", door.Address(), err)
		}
		one := routed{cpu: processCPU([]int{s.routers[i].pid()})}
		for _, kind := range []string{"insert", "update", "delete"} {
			n, _ := raw.Lookup("opcounters", kind).AsInt64OK()
			one.statements += n
		}
		all = append(all, one)
	}
	return all, nil
}

// counted notes what each router of the target took a second, in statements.
func counted(ctx context.Context, st *site, m *meter, do func() error) error {
	before, err := st.target.routed(ctx)
	if err != nil {
		return err
	}
	began := time.Now()
	if err := do(); err != nil {
		return err
	}
	seconds := time.Since(began).Seconds()
	after, err := st.target.routed(ctx)
	if err != nil || len(after) == 0 {
		return err
	}
	var all, cpu float64
	for i := range after {
		n := float64(after[i].statements - before[i].statements)
		m.value(RouterRate(i+1), n/seconds)
		all, cpu = all+n, cpu+after[i].cpu-before[i].cpu
	}
	m.value(routersTotal, all/seconds)
	m.value(routersCPU, cpu)
	return nil
}

const (
	routersTotal = "routers/s"
	routersCPU   = "CPU routers s"
)

// RouterRate names the statements a second of the nth router of the target, from 1.
func RouterRate(n int) string { return "router " + strconv.Itoa(n) + "/s" }

// parts returns the addresses of shards, config servers and routers; of a replica set only the first.
func (s *side) parts() (shards, configs, routers string) {
	if s.cluster == nil {
		return s.uri, "", ""
	}
	var all []string
	for _, shard := range s.cluster.Shards() {
		all = append(all, shard.URI())
	}
	return strings.Join(all, ";"), s.cluster.Config().URI(), s.uri
}
