package bench

import (
	"context"
	"errors"
	"fmt"
	"os"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/workshop/lab/sharded"
)

// open gives the scenario its clusters.
func (b *bench) open(ctx context.Context, n needs) (*site, error) {
	servers := b.o.Servers
	if n.pairing != (pairing{}) {
		servers.SourceTopology, servers.TargetTopology = n.pairing.source, n.pairing.target
	} else if sharded.Is(servers.SourceTopology) || sharded.Is(servers.TargetTopology) {
		return nil, mongo.WithHint(errors.New("this scenario measures replica sets"), "those for sharded clusters are full-sharded, incr-sharded and latency-sharded")
	}
	st, err := openSite(ctx, servers, b.share(n), starting{b.o.Log, b.o.Router, b.dir})
	if err != nil {
		return nil, err
	}
	for _, s := range []*side{st.source, st.target} {
		if err := s.steady(ctx); err != nil {
			return nil, joinClose(err, st)
		}
	}
	if n.member {
		if err := st.source.retire(ctx); err != nil {
			return nil, joinClose(err, st)
		}
	}
	return st, nil
}

// steady keeps a lab's primary in its place while its machine is busy. The lab's
// own sets elect another within 2 s, for tests of that.
func (s *side) steady(ctx context.Context) error {
	if s.lab == nil || len(s.lab.Members()) == 1 {
		return nil
	}
	err := s.reconfigure(ctx, func(c *setConfig) error {
		if c.Settings == nil {
			c.Settings = bson.M{}
		}
		c.Settings["electionTimeoutMillis"], c.Settings["heartbeatIntervalMillis"] = 30_000, 2000
		return nil
	})
	return mongo.Wrap(err, "keep the primary of %s in its place", s.Address())
}

func joinClose(err error, st *site) error { return errors.Join(err, st.close()) }

// inDirectory gives the run a directory of its own for its time.
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

// describe tells versions and sizes of the clusters.
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
		return text + " of " + itoa(len(s.cluster.ShardNames())) + " shards, " + itoa(len(s.routers)) + " routers of the lab as processes of their own, cache " + s.cache + " GB each"
	}
	if s.lab == nil {
		return text + ", given"
	}
	return text + ", cache " + s.cache + " GB"
}
