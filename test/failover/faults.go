// Package failover holds the faults that may strike the clusters and the
// network while a job runs, and the tests that a job survives each of them.
package failover

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"
	"golang.org/x/sync/errgroup"

	"github.com/millrace/millrace/workshop/lab"
)

// Fault is something bad that happens to a cluster. Strike makes it happen and
// Heal ends it; both wait until it is so.
type Fault struct {
	Name   string
	Strike func(context.Context) error
	Heal   func(context.Context) error
	// Stops says that no job can go on while it lasts, or know how far it is
	// behind, so that its status has to say what is waited for.
	Stops bool
}

// Of are the faults of a cluster of three members with proxies before them
// (lab.Options.Proxy), those of their disks among them if they are small ones
// (lab.Options.DiskMB). side, source or target, goes into their names. Into
// database lose, unless it is empty, an isolated primary takes writes that are
// rolled back.
func Of(side string, c *lab.Cluster, lose string) []Fault {
	f := &faults{c: c, lose: lose}
	all := []Fault{
		{Name: "step-down", Strike: c.StepDown, Heal: f.nothing},
		{Name: "primary killed", Strike: f.killPrimary, Heal: f.startAll},
		{Name: "all members stopped", Strike: f.stopAll, Heal: f.startAll, Stops: true},
		{Name: "majority lost", Strike: f.stopSecondaries, Heal: f.startAll, Stops: true},
		{Name: "connections reset", Strike: f.each((*lab.Proxy).Reset), Heal: f.nothing},
		{Name: "network cut", Strike: f.each((*lab.Proxy).Cut), Heal: f.each((*lab.Proxy).Restore), Stops: true},
		{Name: "network silent", Strike: f.each((*lab.Proxy).Stall), Heal: f.each((*lab.Proxy).Restore)},
		{Name: "slow network",
			Strike: f.each(func(p *lab.Proxy) { p.Latency(80*time.Millisecond, 40*time.Millisecond); p.Bandwidth(2000) }),
			Heal:   f.each((*lab.Proxy).Restore)},
		{Name: "sessions and cursors killed", Strike: f.killSessions, Heal: f.nothing},
		{Name: "a member moved", Strike: f.moveOne, Heal: f.nothing},
		{Name: "all members moved", Strike: f.moveAll, Heal: f.nothing},
	}
	if c.CanIsolate() {
		all = append(all, Fault{Name: "primary isolated", Strike: f.isolatePrimary, Heal: f.rejoin})
	}
	if c.Members()[0].Disk() != nil {
		all = append(all, Fault{Name: "disks full", Strike: f.fillAll, Heal: f.freeAll, Stops: side == "target"},
			Fault{Name: "disk of the primary full", Strike: f.fillPrimary, Heal: f.freeAll})
	}
	for i := range all {
		all[i].Name = side + ": " + all[i].Name
	}
	return all
}

// faults remembers what it did to a cluster. It belongs to one goroutine.
type faults struct {
	c        *lab.Cluster
	lose     string // the database of writes that are to be rolled back
	isolated int
	moved    int // members that moved so far
}

func (f *faults) nothing(context.Context) error { return nil }

func (f *faults) each(do func(*lab.Proxy)) func(context.Context) error {
	return func(context.Context) error {
		for _, m := range f.c.Members() {
			do(m.Proxy())
		}
		return nil
	}
}

func (f *faults) killPrimary(ctx context.Context) error {
	i, err := f.c.Primary(ctx)
	if err != nil {
		return err
	}
	return f.c.Members()[i].Kill()
}

func (f *faults) stopAll(context.Context) error {
	var g errgroup.Group
	for _, m := range f.c.Members() {
		g.Go(m.Stop)
	}
	return g.Wait()
}

func (f *faults) stopSecondaries(ctx context.Context) error {
	primary, err := f.c.Primary(ctx)
	if err != nil {
		return err
	}
	var g errgroup.Group
	for i, m := range f.c.Members() {
		if i != primary {
			g.Go(m.Kill)
		}
	}
	return g.Wait()
}

// startAll starts the members that are down and waits for a primary.
func (f *faults) startAll(ctx context.Context) error {
	var g errgroup.Group
	for _, m := range f.c.Members() {
		if m.Pid() == 0 {
			g.Go(func() error { return m.Start(ctx) })
		}
	}
	if err := g.Wait(); err != nil {
		return err
	}
	_, err := f.c.Primary(ctx)
	return err
}

// killSessions ends every session, cursor and operation of clients.
func (f *faults) killSessions(ctx context.Context) error {
	for i := range f.c.Members() {
		err := OnMember(ctx, f.c, i, func(client *mongo.Client) error {
			admin := client.Database("admin")
			if err := admin.RunCommand(ctx, bson.D{{Key: "killAllSessions", Value: bson.A{}}}).Err(); err != nil {
				return err
			}
			return killCursors(ctx, admin)
		})
		if err != nil {
			return fmt.Errorf("kill the sessions of member %d: %w", i, err)
		}
	}
	return nil
}

// killCursors ends idle cursors, those without a session among them.
func killCursors(ctx context.Context, admin *mongo.Database) error {
	cur, err := admin.Aggregate(ctx, bson.A{
		bson.D{{Key: "$currentOp", Value: bson.D{{Key: "idleCursors", Value: true}, {Key: "allUsers", Value: true}}}},
		bson.D{{Key: "$match", Value: bson.D{{Key: "cursor.cursorId", Value: bson.D{{Key: "$exists", Value: true}}}}}},
	})
	if err != nil {
		return err
	}
	var ops []struct {
		NS     string `bson:"ns"`
		Cursor struct {
			ID int64 `bson:"cursorId"`
		} `bson:"cursor"`
	}
	if err := cur.All(ctx, &ops); err != nil {
		return err
	}
	for _, op := range ops {
		for i := range op.NS {
			if op.NS[i] != '.' {
				continue
			}
			// A cursor that is gone meanwhile is as good as killed.
			_ = admin.Client().Database(op.NS[:i]).RunCommand(ctx,
				bson.D{{Key: "killCursors", Value: op.NS[i+1:]}, {Key: "cursors", Value: bson.A{op.Cursor.ID}}}).Err()
			break
		}
	}
	return nil
}

// isolatePrimary cuts the primary off from the other members, so that what it
// still takes will be rolled back, and waits until another is elected.
func (f *faults) isolatePrimary(ctx context.Context) error {
	i, err := f.c.Primary(ctx)
	if err != nil {
		return err
	}
	f.isolated = i
	if err := f.c.Isolate(i); err != nil {
		return err
	}
	if f.lose != "" {
		if err := f.writeLost(ctx, i); err != nil {
			return err
		}
	}
	for {
		now, err := f.c.Primary(ctx)
		if err == nil && now != i {
			return nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return errors.Join(ctx.Err(), err)
		}
	}
}

// writeLost writes to a primary that does not know yet that it is none any more.
// No target may ever have these documents.
func (f *faults) writeLost(ctx context.Context, i int) error {
	return OnMember(ctx, f.c, i, func(client *mongo.Client) error {
		coll := client.Database(f.lose).Collection("lost", options.Collection().SetWriteConcern(writeconcern.W1()))
		for range 10 {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "lost", Value: true}}); err != nil {
				return fmt.Errorf("write to the isolated primary: %w", err)
			}
		}
		return nil
	})
}

func (f *faults) rejoin(context.Context) error { return f.c.Rejoin(f.isolated) }

// OnMember runs do with a client of one member alone.
func OnMember(ctx context.Context, c *lab.Cluster, i int, do func(*mongo.Client) error) error {
	client, err := mongo.Connect(options.Client().ApplyURI(c.DirectURI(i)))
	if err != nil {
		return err
	}
	defer func() { _ = client.Disconnect(context.WithoutCancel(ctx)) }()
	return do(client)
}
