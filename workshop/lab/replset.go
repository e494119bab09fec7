package lab

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"
)

const (
	statePoll = 20 * time.Millisecond // how often a member's state is asked for.
	// electionTimeout and heartbeatMillis make failover quick, with room for a loaded machine.
	electionTimeout = 2 * time.Second
	heartbeatMillis = 250
)

type helloReply struct {
	SetName     string        `bson:"setName"`
	Primary     bool          `bson:"ismaster"`
	Secondary   bool          `bson:"secondary"`
	PrimaryHost string        `bson:"primary"`
	ElectionID  bson.ObjectID `bson:"electionId"`
}

// eachMember does something with all members side by side.
func (c *Cluster) eachMember(ctx context.Context, do func(context.Context, *Member) error) error {
	group, ctx := errgroup.WithContext(ctx)
	for _, m := range c.members {
		group.Go(func() error { return do(ctx, m) })
	}
	return group.Wait()
}

// configure makes the replica set and its users, unless an earlier start did, and waits until all is ready.
func (c *Cluster) configure(ctx context.Context) error {
	if c.topo.replicaSet && !c.kept {
		err := c.withMember(ctx, 0, login{}, func(ctx context.Context, client *mongo.Client) error {
			return client.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetInitiate", Value: c.setConfig()}}).Err()
		})
		if err != nil {
			return fmt.Errorf("initiate replica set: %w", err)
		}
	}
	primary, err := c.firstPrimary(ctx)
	if err != nil {
		return err
	}
	if c.opts.Auth && !c.kept {
		if err := c.createUsers(ctx, primary); err != nil {
			return err
		}
	}
	return c.eachMember(ctx, func(ctx context.Context, m *Member) error { return c.waitMember(ctx, m.Index) })
}

func (c *Cluster) setConfig() bson.D {
	var members bson.A
	for _, m := range c.members {
		member := bson.D{{Key: "_id", Value: m.Index}, {Key: "host", Value: m.publicHost()}}
		if m.Index >= maxVoting {
			member = append(member, bson.E{Key: "votes", Value: 0}, bson.E{Key: "priority", Value: 0})
		}
		members = append(members, member)
	}
	config := bson.D{{Key: "_id", Value: c.opts.Name}}
	if c.opts.Role == ConfigServer {
		config = append(config, bson.E{Key: "configsvr", Value: true})
	}
	return append(config,
		bson.E{Key: "members", Value: members},
		bson.E{Key: "settings", Value: bson.D{
			{Key: "electionTimeoutMillis", Value: cmp.Or(c.opts.ElectionTimeout, electionTimeout).Milliseconds()},
			{Key: "heartbeatIntervalMillis", Value: heartbeatMillis},
		}})
}

// firstPrimary waits for the first primary. Member 0 steps up by command: an election waits for its timeout.
func (c *Cluster) firstPrimary(ctx context.Context) (int, error) {
	if len(c.members) == 1 {
		return c.Primary(ctx)
	}
	var last error
	err := c.withMember(ctx, 0, c.systemLogin(), func(ctx context.Context, client *mongo.Client) error {
		return Poll(ctx, statePoll, func() (bool, error) {
			var state helloReply
			if state, last = hello(ctx, client); last != nil || state.PrimaryHost != "" {
				return last == nil, nil
			}
			// It fails while the others are not ready to vote, and when another member was faster; the state tells.
			last = client.Database("admin").RunCommand(ctx, bson.D{{Key: "replSetStepUp", Value: 1}}).Err()
			return false, nil
		})
	})
	if err != nil {
		return 0, fmt.Errorf("elect member 0: %w", errors.Join(err, last))
	}
	return c.Primary(ctx)
}

// createUsers makes the root users. The server lets a loopback client make the first one without a password.
func (c *Cluster) createUsers(ctx context.Context, primary int) error {
	err := c.withMember(ctx, primary, login{}, func(ctx context.Context, client *mongo.Client) error {
		return createRoot(ctx, client.Database("admin"), rootUser, bson.D{
			{Key: "pwd", Value: rootPassword}, {Key: "mechanisms", Value: bson.A{"SCRAM-SHA-256"}},
		})
	})
	if err != nil || c.tls == nil {
		return err
	}
	return c.withMember(ctx, primary, c.rootLogin(), func(ctx context.Context, client *mongo.Client) error {
		return createRoot(ctx, client.Database("$external"), c.tls.ClientSubject, nil)
	})
}

// createRoot makes a user with all privileges, durable on a majority.
func createRoot(ctx context.Context, db *mongo.Database, user string, more bson.D) error {
	cmd := append(bson.D{{Key: "createUser", Value: user}}, more...)
	cmd = append(cmd,
		bson.E{Key: "roles", Value: bson.A{bson.D{{Key: "role", Value: "root"}, {Key: "db", Value: "admin"}}}},
		bson.E{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}})
	return Wrap(db.RunCommand(ctx, cmd).Err(), "create the root user")
}

// hello asks a member for its state, by the name that old servers know.
func hello(ctx context.Context, client *mongo.Client) (helloReply, error) {
	var reply helloReply
	err := client.Database("admin").RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Decode(&reply)
	return reply, err
}

// withMember calls do with a client of one member.
func (c *Cluster) withMember(ctx context.Context, i int, who login,
	do func(context.Context, *mongo.Client) error) (err error) {
	// The end of the driver's streaming monitor can take ten seconds right after a connect.
	client, err := mongo.Connect(options.Client().ApplyURI(c.directURI(i, who)).
		SetServerMonitoringMode(options.ServerMonitoringModePoll))
	if err != nil {
		return fmt.Errorf("lab: connect to member %d of %s: %w", i, c.Name(), err)
	}
	// Disconnect must also end the client's goroutines after ctx has ended.
	defer func() { err = errors.Join(err, client.Disconnect(context.WithoutCancel(ctx))) }()
	return do(ctx, client)
}

// waitMember waits until a member is primary or secondary; a single one must be writable.
func (c *Cluster) waitMember(ctx context.Context, i int) error {
	ctx, cancel := WithTimeout(ctx, startTimeout)
	defer cancel()
	var last error
	err := c.withMember(ctx, i, login{}, func(ctx context.Context, client *mongo.Client) error {
		return Poll(ctx, statePoll, func() (bool, error) {
			if c.members[i].Pid() == 0 {
				return false, errors.New("mongod has ended; see " + c.members[i].LogPath())
			}
			var state helloReply
			state, last = hello(ctx, client)
			return last == nil && (state.Primary || state.Secondary && len(c.members) > 1), nil
		})
	})
	return Wrap(errors.Join(err, last), "lab: wait for member %d of %s", i, c.Name())
}

// Primary waits for a writable primary and returns its index.
func (c *Cluster) Primary(ctx context.Context) (int, error) {
	i, _, err := c.waitPrimary(ctx, bson.ObjectID{})
	return i, err
}

// waitPrimary waits for a primary whose election came after the one given.
func (c *Cluster) waitPrimary(ctx context.Context, after bson.ObjectID) (int, bson.ObjectID, error) {
	ctx, cancel := WithTimeout(ctx, startTimeout)
	defer cancel()
	type found struct {
		member   int
		election bson.ObjectID
	}
	// Whoever finds the primary first ends the wait of the others.
	searching, stop := context.WithCancel(ctx)
	defer stop()
	primaries := make(chan found, len(c.members))
	err := c.eachMember(searching, func(ctx context.Context, m *Member) error {
		return c.withMember(ctx, m.Index, login{}, func(ctx context.Context, client *mongo.Client) error {
			return Poll(ctx, statePoll, func() (bool, error) {
				if m.Pid() == 0 {
					return false, nil
				}
				state, err := hello(ctx, client)
				// Election ids grow with the term: an old primary that does not know of its end is not taken.
				if err != nil || !state.Primary || bytes.Compare(state.ElectionID[:], after[:]) < 0 ||
					(!after.IsZero() && state.ElectionID == after) {
					return false, nil
				}
				primaries <- found{m.Index, state.ElectionID}
				stop()
				return true, nil
			})
		})
	})
	select {
	case p := <-primaries:
		return p.member, p.election, nil
	default:
		return 0, bson.ObjectID{}, fmt.Errorf("lab: wait for a primary of %s: %w", c.Name(), err)
	}
}

// StepDown makes the primary step down and waits for a new one; a single member is elected again.
func (c *Cluster) StepDown(ctx context.Context) error {
	if !c.topo.replicaSet {
		return fmt.Errorf("lab: %s is not a replica set and has no primary to step down", c.Name())
	}
	primary, election, err := c.waitPrimary(ctx, bson.ObjectID{})
	if err != nil {
		return err
	}
	const exceededTimeLimit = 262 // busy secondaries have not caught up yet
	for again := true; again && ctx.Err() == nil; {
		err = c.withMember(ctx, primary, c.rootLogin(), c.stepDown)
		var refused mongo.CommandError
		again = errors.As(err, &refused) && refused.Code == exceededTimeLimit
	}
	// A network error is the old servers' way to say yes: they hang up.
	if err != nil && !mongo.IsNetworkError(err) {
		return fmt.Errorf("lab: step down the primary of %s: %w", c.Name(), err)
	}
	_, _, err = c.waitPrimary(ctx, election)
	return err
}

func (c *Cluster) stepDown(ctx context.Context, client *mongo.Client) error {
	// The old primary stays out of elections for so long. Without force it hands over at once.
	pause, force := 10, false
	if len(c.members) == 1 {
		pause, force = 1, true
	}
	return client.Database("admin").RunCommand(ctx, bson.D{
		{Key: "replSetStepDown", Value: pause}, {Key: "force", Value: force},
		{Key: "secondaryCatchUpPeriodSecs", Value: pause - 1},
	}).Err()
}

// Connect returns a client of the cluster; the caller disconnects it.
func (c *Cluster) Connect() (*mongo.Client, error) {
	client, err := mongo.Connect(options.Client().ApplyURI(c.URI()))
	return client, Wrap(err, "lab: connect to %s", c.Name())
}

// Move restarts member i at another address, proxy included, and changes the set's configuration. A primary steps
// down first. It returns when the member is primary or secondary. No other method may be called meanwhile.
func (c *Cluster) Move(ctx context.Context, i int) error {
	if !c.topo.replicaSet || len(c.members) < 3 {
		return fmt.Errorf("lab: to move a member needs a replica set of three; %s is %s", c.Name(), c.opts.Topology)
	}
	ctx, cancel := WithTimeout(ctx, startTimeout)
	defer cancel()
	return Wrap(c.move(ctx, c.members[i]), "lab: move member %d of %s", i, c.Name())
}

func (c *Cluster) move(ctx context.Context, m *Member) error {
	if primary, err := c.Primary(ctx); err != nil {
		return err
	} else if primary == m.Index {
		if err := c.StepDown(ctx); err != nil {
			return err
		}
	}
	if err := m.Stop(); err != nil {
		return err
	}
	if err := c.readdress(ctx, m); err != nil {
		return err
	}
	// The member finds itself in the configuration once it has heard of the new one.
	return errors.Join(c.tellAddress(ctx, m), m.Start(ctx))
}

func (c *Cluster) readdress(ctx context.Context, m *Member) error {
	n := 1
	if c.opts.proxied() {
		n = 2
	}
	ports, err := m.cluster.leases.free(n)
	if err != nil {
		return err
	}
	m.Port, c.layout.Ports[m.Index] = ports[0], ports[0]
	if c.opts.proxied() {
		if err := m.closeFront(); err != nil {
			return err
		}
		c.layout.Proxies[m.Index] = ports[1]
		if err := c.startProxy(ctx, m, ports[1]); err != nil {
			return err
		}
	}
	return c.layout.save(c.dir)
}

// tellAddress has the primary write a member's address into the configuration.
func (c *Cluster) tellAddress(ctx context.Context, m *Member) error {
	var last error
	err := Poll(ctx, statePoll, func() (bool, error) {
		primary, err := c.Primary(ctx)
		if err != nil {
			return false, err
		}
		// It fails while an election or another change is not done yet.
		last = c.withMember(ctx, primary, c.rootLogin(), func(ctx context.Context, client *mongo.Client) error {
			return Reconfigure(ctx, client, func(config *SetConfig) error {
				i := slices.IndexFunc(config.Members, func(x bson.M) bool { return x["_id"] == int32(m.Index) })
				if i < 0 {
					return fmt.Errorf("the configuration has no member %d", m.Index)
				}
				config.Members[i]["host"] = m.publicHost()
				return nil
			})
		})
		return last == nil, nil
	})
	return errors.Join(err, last)
}

// SetConfig is the configuration of a replica set.
type SetConfig struct {
	Version  int32    `bson:"version"`
	Members  []bson.M `bson:"members"`
	Settings bson.M   `bson:"settings,omitempty"`
	Rest     bson.M   `bson:",inline"`
}

// Reconfigure changes the configuration of the replica set to whose primary a client leads.
func Reconfigure(ctx context.Context, client *mongo.Client, change func(*SetConfig) error) error {
	admin := client.Database("admin")
	var reply struct {
		Config SetConfig `bson:"config"`
	}
	if err := admin.RunCommand(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}).Decode(&reply); err != nil {
		return fmt.Errorf("read the replica set's configuration: %w", err)
	}
	if err := change(&reply.Config); err != nil {
		return err
	}
	reply.Config.Version++
	return admin.RunCommand(ctx, bson.D{{Key: "replSetReconfig", Value: reply.Config}}).Err()
}
