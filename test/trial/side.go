package trial

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab"
)

// side is one of the two clusters, with what was done to it. Its clients reach
// each member by itself, past the proxies.
type side struct {
	name    string
	shape   Shape
	c       *lab.Cluster
	members []*mongo.Client

	isolated int              // -1 is none
	points   map[string]int64 // fail points that were set, and how often they had been met
	held     bool
	alone    bool
}

// openSide starts a cluster.
func openSide(ctx context.Context, name string, shape Shape) (*side, error) {
	o := lab.Options{TestCommands: true, LeanJournal: true, Version: shape.Version, Proxy: shape.Proxy,
		Topology: fmt.Sprintf("rs:%d", max(1, shape.Members)), SetParameters: map[string]string{
			"ttlMonitorEnabled": "false", "transactionLifetimeLimitSeconds": "600",
		}}
	for k, v := range shape.Params {
		o.SetParameters[k] = v
	}
	c, err := lab.Start(ctx, o)
	if err != nil {
		return nil, err
	}
	s := &side{name: name, shape: shape, c: c, isolated: -1, points: map[string]int64{}}
	for i := range c.Members() {
		client, err := mongo.Connect(options.Client().ApplyURI(c.DirectURI(i)).SetAppName("trial").SetRetryWrites(false).
			SetServerMonitoringMode(options.ServerMonitoringModePoll).SetHeartbeatInterval(time.Second).
			SetServerSelectionTimeout(5 * time.Second))
		if err != nil {
			return nil, errors.Join(err, s.close())
		}
		s.members = append(s.members, client)
	}
	// A trial says itself when it wants more than one member.
	err = s.admin(ctx, "primary", D("setDefaultRWConcern", 1, "defaultWriteConcern", D("w", 1), "writeConcern",
		D("w", "majority")))
	if err != nil && !codeIs(err, 59) { // before 4.4
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// codeIs reports whether a server answered with a code.
func codeIs(err error, code int) bool {
	var se mongo.ServerError
	return errors.As(err, &se) && se.HasErrorCode(code)
}

func (s *side) close() error {
	for _, m := range s.members {
		_ = m.Disconnect(context.Background())
	}
	return s.c.Stop()
}

// uri lets a client notice a silent network within seconds.
func (s *side) uri() string {
	return s.c.URI() + "&connectTimeoutMS=2000&heartbeatFrequencyMS=1000"
}

// state is what a member says of itself.
type state struct {
	Primary   bool          `bson:"ismaster"`
	Secondary bool          `bson:"secondary"`
	Election  bson.ObjectID `bson:"electionId"`
	LastWrite struct {
		OpTime struct {
			TS bson.Timestamp `bson:"ts"`
		} `bson:"opTime"`
	} `bson:"lastWrite"`
}

// states asks the members that are up.
func (s *side) states(ctx context.Context) []state {
	out := make([]state, len(s.members))
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	var g errgroup.Group
	for i, m := range s.c.Members() {
		if m.Pid() == 0 {
			continue
		}
		g.Go(func() error {
			_ = s.members[i].Database("admin").RunCommand(ctx, D("isMaster", 1)).Decode(&out[i])
			return nil
		})
	}
	_ = g.Wait()
	return out
}

// primary is the primary of the newest election, or -1.
func (s *side) primary(ctx context.Context) int {
	all := s.states(ctx)
	best := -1
	for i, st := range all {
		if st.Primary && (best < 0 || bytes.Compare(st.Election[:], all[best].Election[:]) > 0) {
			best = i
		}
	}
	return best
}

// awaitPrimary waits for a primary that is not isolated.
func (s *side) awaitPrimary(ctx context.Context) (int, error) {
	for {
		if i := s.primary(ctx); i >= 0 && i != s.isolated {
			return i, nil
		}
		if err := nap(ctx, 20*time.Millisecond); err != nil {
			return -1, fmt.Errorf("no primary of the %s: %w", s.name, err)
		}
	}
}

// nap waits, unless ctx ends.
func nap(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// pick finds the members that an event means.
func (s *side) pick(ctx context.Context, member string) ([]int, error) {
	switch member {
	case "all":
		var up []int
		for i, m := range s.c.Members() {
			if m.Pid() != 0 {
				up = append(up, i)
			}
		}
		return up, nil
	case "isolated":
		if s.isolated < 0 {
			return nil, errors.New("no member is isolated")
		}
		return []int{s.isolated}, nil
	case "secondary":
		for i, st := range s.states(ctx) {
			if st.Secondary && i != s.isolated {
				return []int{i}, nil
			}
		}
		return nil, errors.New("no secondary is up")
	}
	ctx, cancel := context.WithTimeout(ctx, 15*time.Second)
	defer cancel()
	for {
		if i := s.primary(ctx); i >= 0 {
			return []int{i}, nil
		}
		if err := nap(ctx, 20*time.Millisecond); err != nil {
			return nil, errors.New("no primary is up")
		}
	}
}

// admin runs a command on database admin, again where it met the connection of a
// server that has ended meanwhile.
func (s *side) admin(ctx context.Context, member string, cmd bson.D) error {
	return s.on(ctx, member, func(c *mongo.Client) (err error) {
		for range 3 {
			if err = c.Database("admin").RunCommand(ctx, cmd).Err(); !mongo.IsNetworkError(err) {
				break
			}
		}
		return err
	})
}

// on does something with the clients of members.
func (s *side) on(ctx context.Context, member string, do func(*mongo.Client) error) error {
	which, err := s.pick(ctx, member)
	if err != nil {
		return err
	}
	for _, i := range which {
		if err := do(s.members[i]); err != nil {
			return err
		}
	}
	return nil
}

// client is that of the primary.
func (s *side) client(ctx context.Context) (*mongo.Client, error) {
	which, err := s.pick(ctx, "primary")
	if err != nil {
		return nil, err
	}
	return s.members[which[0]], nil
}

// failPoint configures a fail point on members.
func (s *side) failPoint(ctx context.Context, member string, cmd bson.Raw) error {
	name, _ := cmd.Lookup("configureFailPoint").StringValueOK()
	return s.on(ctx, member, func(c *mongo.Client) error {
		r, err := c.Database("admin").RunCommand(ctx, cmd).Raw()
		if err == nil {
			s.points[name], _ = r.Lookup("count").AsInt64OK()
		}
		return err
	})
}

// entered reports whether a fail point was met since it was set.
func (s *side) entered(ctx context.Context, name string) bool {
	met := false
	_ = s.on(ctx, "all", func(c *mongo.Client) error {
		ctx := context.WithoutCancel(ctx) // else the driver adds a time of its own
		err := c.Database("admin").RunCommand(ctx,
			D("waitForFailPoint", name, "timesEntered", s.points[name]+1, "maxTimeMS", 20)).Err()
		met = met || err == nil
		return nil
	})
	return met
}

// hold keeps the secondaries from reading on.
func (s *side) hold(ctx context.Context, yes bool) error {
	mode := map[bool]string{true: "alwaysOn", false: "off"}[yes]
	s.held = yes
	for i, m := range s.c.Members() {
		if m.Pid() == 0 {
			continue
		}
		if yes && s.states(ctx)[i].Primary {
			continue
		}
		if err := s.members[i].Database("admin").RunCommand(ctx, D("configureFailPoint", "stopReplProducer", "mode", mode)).
			Err(); err != nil {
			return err
		}
	}
	return nil
}

// isolate cuts a member off, from the clients' other servers too if alone.
func (s *side) isolate(ctx context.Context, member string, alone bool) error {
	which, err := s.pick(ctx, member)
	if err != nil {
		return err
	}
	if s.isolated >= 0 || !s.shape.Proxy || len(s.members) < 3 {
		return errors.New("no member can be isolated")
	}
	if err := s.c.Isolate(which[0]); err != nil {
		return err
	}
	s.isolated, s.alone = which[0], alone
	for i, m := range s.c.Members() {
		if alone && i != which[0] {
			m.Proxy().Stall()
		}
	}
	return nil
}

func (s *side) rejoin() error {
	if s.isolated < 0 {
		return nil
	}
	for _, m := range s.c.Members() {
		m.Proxy().Restore()
	}
	i := s.isolated
	s.isolated = -1
	return s.c.Rejoin(i)
}

// up starts the members that are down.
func (s *side) up(ctx context.Context) error {
	g, ctx := errgroup.WithContext(ctx)
	for _, m := range s.c.Members() {
		if m.Pid() == 0 {
			g.Go(func() error { return m.Start(ctx) })
		}
	}
	return g.Wait()
}

// heal ends all that was done to the cluster, and waits until it replicates.
func (s *side) heal(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	if err := s.rejoin(); err != nil {
		return err
	}
	if s.held {
		_ = s.hold(ctx, false)
	}
	for name := range s.points {
		_ = s.admin(ctx, "all", D("configureFailPoint", name, "mode", "off"))
	}
	clear(s.points)
	if err := s.up(ctx); err != nil {
		return err
	}
	for {
		err := s.replicates(ctx)
		if err == nil {
			break
		}
		if nap(ctx, 50*time.Millisecond) != nil {
			return fmt.Errorf("the %s does not recover: %w", s.name, err)
		}
	}
	return s.admin(ctx, "all", D("setParameter", 1, "ttlMonitorEnabled", false))
}

// replicates fails until a write is on all members.
func (s *side) replicates(ctx context.Context) error {
	for _, st := range s.states(ctx) {
		if !st.Primary && !st.Secondary {
			return errors.New("a member is neither primary nor secondary")
		}
	}
	short, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return s.admin(short, "primary", D("insert", "trials", "documents", A(D("at", time.Now())), "writeConcern",
		D("w", len(s.members), "wtimeout", 8000)))
}

// databases that a trial may have made.
func databases(ctx context.Context, c *mongo.Client) ([]string, error) {
	all, err := c.ListDatabaseNames(ctx, D())
	return slices.DeleteFunc(all, func(db string) bool { return db == "admin" || db == "config" || db == "local" }), err
}

// clean removes what a trial has left, and sets the parameters of the shape. The
// first of it may meet connections to servers that are gone.
func (s *side) clean(ctx context.Context) (err error) {
	for range 5 {
		if err = s.remove(ctx); !mongo.IsNetworkError(err) {
			return err
		}
	}
	return err
}

func (s *side) remove(ctx context.Context) error {
	c, err := s.client(ctx)
	if err != nil {
		return err
	}
	_ = s.quiet(ctx, 5*time.Second, true)
	dbs, err := databases(ctx, c)
	if err != nil {
		return err
	}
	for _, db := range dbs {
		if err := c.Database(db).RunCommand(ctx, D("dropDatabase", 1, "writeConcern", D("w", "majority", "wtimeout", 30000))).
			Err(); err != nil {
			return err
		}
	}
	if s.shape.Params["ttlMonitorEnabled"] == "true" {
		return s.admin(ctx, "all", D("setParameter", 1, "ttlMonitorEnabled", true))
	}
	return nil
}

// quiet waits until nothing that millrace sent runs any more; kill ends it.
func (s *side) quiet(ctx context.Context, long time.Duration, kill bool) error {
	ctx, cancel := context.WithTimeout(ctx, long)
	defer cancel()
	for {
		busy := 0
		err := s.on(ctx, "primary", func(c *mongo.Client) error {
			cur, err := c.Database("admin").Aggregate(ctx, A(D("$currentOp", D("allUsers", true)),
				D("$match", D("appName", D("$regex", "^millrace"), "active", true, "command.hello", D("$exists", false),
					"command.isMaster", D("$exists", false)))))
			if err != nil {
				return err
			}
			var ops []struct {
				ID any `bson:"opid"`
			}
			if err := cur.All(ctx, &ops); err != nil {
				return err
			}
			busy = len(ops)
			for _, op := range ops {
				if kill {
					_ = c.Database("admin").RunCommand(ctx, D("killOp", 1, "op", op.ID)).Err()
				}
			}
			return nil
		})
		if err == nil && busy == 0 {
			return nil
		}
		if e := nap(ctx, 50*time.Millisecond); e != nil {
			return fmt.Errorf("%d operations of millrace still run on the %s: %w", busy, s.name, errors.Join(err, e))
		}
	}
}
