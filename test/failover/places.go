package failover

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
	"go.mongodb.org/mongo-driver/v2/mongo/writeconcern"

	"github.com/millrace/millrace/workshop/lab"
)

// ballast is a database that fills disks and oplogs. No job has it.
const ballast = "ballast"

// fillAll fills the disks of all members until a majority of them has ended.
func (f *faults) fillAll(ctx context.Context) error {
	for _, m := range f.c.Members() {
		if err := m.Disk().Fill(ctx); err != nil {
			return err
		}
	}
	return f.writeUntil(ctx, func() bool {
		ended := 0
		for _, m := range f.c.Members() {
			if m.Pid() == 0 {
				ended++
			}
		}
		return 2*ended > len(f.c.Members())
	})
}

// fillPrimary fills the disk of the primary until it has ended.
func (f *faults) fillPrimary(ctx context.Context) error {
	i, err := f.c.Primary(ctx)
	if err != nil {
		return err
	}
	m := f.c.Members()[i]
	if err := m.Disk().Fill(ctx); err != nil {
		return err
	}
	return f.writeUntil(ctx, func() bool { return m.Pid() == 0 })
}

// writeUntil writes what cannot be compressed to whoever is primary.
func (f *faults) writeUntil(ctx context.Context, enough func() bool) error {
	pad := make([]byte, 1<<20)
	if _, err := rand.Read(pad); err != nil {
		return err
	}
	for !enough() {
		for i, m := range f.c.Members() {
			if m.Pid() == 0 {
				continue
			}
			// It fails, sooner or later.
			_ = f.write(ctx, i, pad)
		}
		if ctx.Err() != nil {
			return fmt.Errorf("no member ended by its full disk: %w", ctx.Err())
		}
	}
	return nil
}

func (f *faults) write(ctx context.Context, i int, pad []byte) error {
	ctx, cancel := context.WithTimeout(ctx, 2*time.Second)
	defer cancel()
	return OnMember(ctx, f.c, i, func(client *mongo.Client) error {
		coll := client.Database(ballast).Collection("c", options.Collection().SetWriteConcern(writeconcern.W1()))
		for range 8 {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "pad", Value: pad}}); err != nil {
				return err
			}
		}
		return nil
	})
}

// freeAll makes room on the disks and starts the members that are down.
func (f *faults) freeAll(ctx context.Context) error {
	for _, m := range f.c.Members() {
		if err := m.Disk().Free(); err != nil {
			return err
		}
	}
	if err := f.startAll(ctx); err != nil {
		return err
	}
	i, err := f.c.Primary(ctx)
	if err != nil {
		return err
	}
	// What cannot be dropped just now is dropped the next time.
	_ = OnMember(ctx, f.c, i, func(client *mongo.Client) error { return client.Database(ballast).Drop(ctx) })
	return nil
}

// moveAll moves all members to other addresses, one after another.
func (f *faults) moveAll(ctx context.Context) error {
	for i := range f.c.Members() {
		if err := f.c.Move(ctx, i); err != nil {
			return err
		}
	}
	return nil
}

// moveOne moves one member, another one each time.
func (f *faults) moveOne(ctx context.Context) error {
	f.moved++
	return f.c.Move(ctx, f.moved%len(f.c.Members()))
}

// Flood writes to a database that no job has until enough says so. It makes an
// oplog lose its oldest entries.
func Flood(ctx context.Context, c *mongo.Client, enough func(context.Context) (bool, error)) error {
	coll := c.Database(ballast).Collection("c")
	for {
		for range 4 {
			if _, err := coll.InsertOne(ctx, bson.D{{Key: "pad", Value: make([]byte, 1<<20)}}); err != nil {
				return fmt.Errorf("flood the oplog: %w", err)
			}
		}
		if done, err := enough(ctx); err != nil || done {
			return err
		}
	}
}

// OldestEntry is the first timestamp of a member's oplog.
func OldestEntry(ctx context.Context, c *lab.Cluster, i int) (oldest bson.Timestamp, err error) {
	err = OnMember(ctx, c, i, func(client *mongo.Client) error {
		var e struct {
			TS bson.Timestamp `bson:"ts"`
		}
		err := client.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{}).Decode(&e)
		oldest = e.TS
		return err
	})
	return oldest, err
}
