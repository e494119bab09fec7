package mongo

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/readconcern"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/wire"
)

// Role is the part that a replica set has in a sharded cluster.
type Role string

// The roles. The zero value is a replica set of its own, or no replica set.
const (
	RoleShard  Role = "shard"
	RoleConfig Role = "config server"
)

const (
	// electionTime bounds the wait for a member that knows no primary. Elections take about 10 s.
	electionTime = 12 * time.Second
	// hostTime bounds the reply of a host of the connection string.
	hostTime = 2 * time.Second
)

// Incomplete reports a connection string that leads to less or more than one deployment. It has a hint.
type Incomplete struct{ text string }

func (e *Incomplete) Error() string { return e.text }

func incomplete(hint, format string, args ...any) error {
	return WithHint(&Incomplete{fmt.Sprintf(format, args...)}, hint)
}

// CheckComplete returns an Incomplete unless c is one complete deployment: a replica set at its primary, a sharded
// cluster at its routers, or a standalone server. allowShard accepts a shard. It waits up to 12 s for an election.
// Any other error says that the deployment did not reply.
func (c *Cluster) CheckComplete(ctx context.Context, allowShard bool) error {
	if err := c.CheckMember(ctx); err != nil {
		return err
	}
	if err := c.checkHosts(ctx); err != nil {
		return err
	}
	shard := "a shard"
	if c.Info.Shard != "" {
		shard = "the shard " + c.Info.Shard
	}
	switch {
	case c.Info.Role == RoleConfig:
		return incomplete("connect to the cluster's routers (mongos)",
			"%s is a config server of a sharded cluster, which has none of its users' data", c.Address())
	case c.Info.Role == RoleShard && !allowShard:
		return incomplete("connect to the cluster's routers (mongos); --allow-shard accepts this shard alone",
			"%s is %s of a sharded cluster, which has only a part of the data, and whose routers do not see what is written "+
				"to it directly", c.Address(), shard)
	}
	return nil
}

// CheckMember returns an Incomplete for a member other than the primary, which only a direct connection stays with. It
// waits up to 12 s for an election.
func (c *Cluster) CheckMember(ctx context.Context) error {
	if !c.direct {
		return nil
	}
	for began, h := time.Now(), c.first; ; {
		state, elects := h.notPrimary()
		if state == "" {
			return nil
		}
		if !elects || time.Since(began) > electionTime {
			return errMember(c.Address(), state)
		}
		if err := pace.Pause(ctx, 200*time.Millisecond); err != nil {
			return err
		}
		var err error
		if h, err = c.hello(ctx); err != nil {
			return fmt.Errorf("read the state of %s: %w", c.Address(), err)
		}
	}
}

func errMember(address, state string) error {
	return incomplete("leave out directConnection=true, or name the primary; --read-preference reads the source from "+
		"secondaries",
		"%s is %s, which takes no writes and may be behind", address, state)
}

// notPrimary describes a member that is not the primary; "" for any other server. elects says that it knows no
// primary and may become it.
func (h *hello) notPrimary() (state string, elects bool) {
	switch {
	case h.Writable || h.Msg == msgRouter:
		return "", false
	case h.Ghost:
		return "a server without a valid replica set configuration: it was not initiated, or was removed from its set", false
	case h.Arbiter:
		return "an arbiter of the replica set " + h.SetName, false
	case h.Secondary:
		return "a secondary of the replica set " + h.SetName, h.Primary == ""
	}
	return "a member of the replica set " + h.SetName +
		" that is neither primary nor secondary (starting, recovering or in rollback)", h.Primary == ""
}

// explainMember explains why a direct connection refuses a user: members such as arbiters have no users.
func explainMember(ctx context.Context, err error, opts *options.ClientOptions, address string) error {
	if !wire.AuthFailed(err) || opts.Direct == nil || !*opts.Direct || len(opts.Hosts) != 1 {
		return err
	}
	h, helloErr := helloAt(ctx, *opts, opts.Hosts[0])
	if state, elects := h.notPrimary(); helloErr == nil && state != "" && !elects {
		return errMember(address, state)
	}
	return err
}

// checkHosts rejects hosts of several deployments: the driver uses one of these, or the routers of all. A host that
// does not reply within 2 s is not checked.
func (c *Cluster) checkHosts(ctx context.Context) error {
	if len(c.seeds) < 2 {
		return nil
	}
	members := slices.Concat(c.first.Hosts, c.first.Passives, c.first.Arbiters)
	foreign := make([]error, len(c.seeds))
	var asking sync.WaitGroup
	for i, host := range c.seeds {
		if slices.ContainsFunc(members, func(m string) bool { return strings.EqualFold(m, withPort(host)) }) {
			continue
		}
		asking.Go(func() { foreign[i] = c.checkHost(ctx, host) })
	}
	asking.Wait()
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return errors.Join(foreign...)
}

func withPort(host string) string {
	if _, _, err := net.SplitHostPort(host); err != nil {
		return net.JoinHostPort(strings.Trim(host, "[]"), "27017")
	}
	return host
}

func (c *Cluster) checkHost(ctx context.Context, host string) error {
	opts, err := ParseURI(c.uri)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, hostTime)
	defer cancel()
	var is string
	h, err := helloAt(ctx, *opts, host)
	switch {
	case err != nil || h.Ghost: // the driver does without it
		return nil
	case h.Msg == msgRouter && c.Info.Kind == KindSharded:
		if c.sameRouter(ctx, *opts, host) {
			return nil
		}
		is = "a router of another sharded cluster"
	case h.Msg == msgRouter:
		is = "a router of a sharded cluster"
	case h.SetName == "":
		is = "a standalone server"
	case h.SetName == c.Info.SetName && slices.ContainsFunc(h.Hosts,
		func(m string) bool { return slices.Contains(c.first.Hosts, m) }):
		return nil
	default:
		is = "a member of another replica set, " + h.SetName
	}
	return incomplete("name hosts of one deployment only",
		"the connection string %s names hosts of several deployments: %s is %s", c.Address(), host, is)
}

// sameRouter reports whether a router belongs to the cluster, or does not say.
func (c *Cluster) sameRouter(ctx context.Context, opts options.ClientOptions, host string) bool {
	var about struct {
		ID bson.ObjectID `bson:"clusterId"`
	}
	err := AskAt(ctx, opts, host, func(client *driver.Client) error {
		return client.Database("config").Collection("version").FindOne(ctx, bson.D{}).Decode(&about)
	})
	return err != nil || about.ID.IsZero() || c.Info.SetID.IsZero() || about.ID == c.Info.SetID
}

// helloAt asks one host without login.
func helloAt(ctx context.Context, opts options.ClientOptions, host string) (h hello, err error) {
	opts.Auth = nil
	err = AskAt(ctx, opts, host, func(client *driver.Client) error {
		raw, err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Raw()
		if err == nil {
			h, err = parseHello(raw)
		}
		return err
	})
	return h, err
}

// AskAt runs ask with a client of one host alone, and bounds connecting to it. The options are else those given.
func AskAt(ctx context.Context, opts options.ClientOptions, host string, ask func(*driver.Client) error) error {
	opts.ReplicaSet, opts.SRVMaxHosts, opts.ServerMonitor = nil, nil, nil
	opts.SetHosts([]string{host}).SetDirect(true).SetServerSelectionTimeout(hostTime).SetConnectTimeout(hostTime)
	client, err := driver.Connect(&opts)
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	return ask(client)
}

// Config is a collection of the database config, as a majority of the config servers has it.
func (c *Cluster) Config(name string) *driver.Collection {
	return c.Client.Database("config").Collection(name,
		options.Collection().SetReadConcern(readconcern.Majority()).SetReadPreference(readpref.Primary()))
}

// EachSet calls do with each replica set of a deployment, one after the other: with c itself, named "", or with the
// shards behind a router. It connects to shards as the router's user. The first error ends it.
func (c *Cluster) EachSet(ctx context.Context, do func(name string, set *Cluster) error) error {
	if c.Info.Kind != KindSharded {
		return do("", c)
	}
	type shard struct {
		ID   string `bson:"_id"`
		Host string
	}
	shards, err := ReadAll[shard](ctx, "list the shards of %s", c.Address())(c.Config("shards").Find(ctx, bson.D{}))
	if err != nil {
		return err
	}
	for _, s := range shards {
		if err := c.ofShard(ctx, s.Host, func(set *Cluster) error { return do(s.ID, set) }); err != nil {
			return fmt.Errorf("shard %s: %w", s.ID, err)
		}
	}
	return nil
}

func (c *Cluster) ofShard(ctx context.Context, hosts string, do func(*Cluster) error) error {
	uri, err := MemberURI(c.uri, hosts)
	if err != nil {
		return err
	}
	set, err := Connect(ctx, uri, Options{AppName: "millrace", ServerSelectionTimeout: 2 * time.Second, MaxPoolSize: 2})
	if err != nil {
		return err
	}
	defer set.Close()
	return do(set)
}
