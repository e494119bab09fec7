package bench

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/lab"
	"github.com/millrace/millrace/internal/mongo"
)

// The source's second member has neither vote nor priority, so that the first
// is a primary and its own majority while the second is down.
const spare = 1

// retire takes the vote of the second member and stops it.
func (s *side) retire(ctx context.Context) error {
	raw, err := s.direct.Command(ctx, "admin", bson.D{{Key: "replSetGetConfig", Value: 1}})
	if err != nil {
		return fmt.Errorf("read the replica set's configuration: %w", err)
	}
	var config struct {
		Config bson.M `bson:"config"`
	}
	if err := bson.Unmarshal(raw, &config); err != nil {
		return err
	}
	config.Config["version"] = int32(asInt(config.Config["version"]) + 1)
	members, ok := config.Config["members"].(bson.A)
	if !ok || len(members) <= spare {
		return errors.New("the source has no second member")
	}
	for i, m := range members {
		d, ok := m.(bson.D)
		if !ok {
			return fmt.Errorf("member %d of the configuration is a %T", i, m)
		}
		if i == spare {
			members[i] = set(set(d, "votes", 0), "priority", 0)
		}
	}
	if _, err := s.direct.Command(ctx, "admin", bson.D{{Key: "replSetReconfig", Value: config.Config}}); err != nil {
		return fmt.Errorf("take the second member's vote: %w", err)
	}
	if err := s.spare().Stop(); err != nil {
		return err
	}
	return s.connect(ctx)
}

func (s *side) spare() *lab.Member { return s.lab.Members()[spare] }

func asInt(v any) int64 {
	switch n := v.(type) {
	case int32:
		return int64(n)
	case int64:
		return n
	}
	return 0
}

// set replaces a field or adds it.
func set(d bson.D, key string, value any) bson.D {
	for i := range d {
		if d[i].Key == key {
			d[i].Value = value
			return d
		}
	}
	return append(d, bson.E{Key: key, Value: value})
}

// initialSync is the server's own logical copy into an empty member.
func (w *fullWork) initialSync() contender {
	m := w.source.spare()
	return contender{
		name: peerSecondary, kind: KindPeer,
		how:     "initial sync of an empty member of the source's replica set, from its own begin until SECONDARY; it writes no oplog; its CPU, from the start of the process, and its memory are the tool's",
		prepare: func(context.Context) error { return emptyDirectory(m.DBPath) },
		run: func(ctx context.Context, mt *meter) error {
			var began time.Time
			return w.source.spareRun(ctx, mt, func(ctx context.Context, c *mongo.Cluster) (bool, error) {
				done, err := isSecondary(ctx, c)
				if err != nil {
					return false, err
				}
				if !done {
					began = syncBegan(ctx, c, began)
					return false, nil
				}
				if began.IsZero() {
					return false, errors.New("the initial sync was over before its begin was seen")
				}
				mt.took(time.Since(began).Seconds())
				n, err := (&side{direct: c}).count(ctx, w.data.collections)
				if err == nil && n != int64(w.data.docs) {
					err = fmt.Errorf("the member has %d of %d documents", n, w.data.docs)
				}
				return true, err
			})
		},
	}
}

// syncBegan is when a member began its initial sync, by its own clock, which is
// ours too; known is what was known before.
func syncBegan(ctx context.Context, c *mongo.Cluster, known time.Time) time.Time {
	if !known.IsZero() {
		return known
	}
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "replSetGetStatus", Value: 1}, {Key: "initialSync", Value: 1}})
	if err != nil {
		return known // it is in no replica set yet
	}
	if ms, ok := raw.Lookup("initialSyncStatus", "initialSyncStart").DateTimeOK(); ok {
		return time.UnixMilli(ms)
	}
	return known
}

// catchUp is the server's own secondary that was down while the backlog was
// written.
func (w *incrWork) catchUp() contender {
	m := w.source.spare()
	return contender{
		name: peerSecondary, kind: KindPeer,
		how: "a member of the source's replica set that was down, from its first progress until it has applied the last operation; its CPU, from the start of the process, and its memory are the tool's",
		prepare: func(context.Context) error {
			return errors.Join(emptyDirectory(m.DBPath), os.CopyFS(m.DBPath, os.DirFS(w.behind)))
		},
		run: func(ctx context.Context, mt *meter) error {
			var began time.Time
			return w.source.spareRun(ctx, mt, func(ctx context.Context, c *mongo.Cluster) (bool, error) {
				p, err := c.Positions(ctx)
				if err != nil || !w.span.from.Before(p.Last) {
					return false, err
				}
				if began.IsZero() {
					began = time.Now()
				}
				mt.took(time.Since(began).Seconds())
				return !p.Last.Before(w.span.to), nil
			})
		},
	}
}

// spareRun starts the second member, asks done again and again as soon as it
// answers, and stops it.
func (s *side) spareRun(ctx context.Context, mt *meter, done func(context.Context, *mongo.Cluster) (bool, error)) (err error) {
	m := s.spare()
	started := make(chan error, 1)
	go func() { started <- m.Start(ctx) }() // returns only when it is a secondary
	defer func() {
		err = errors.Join(err, <-started)
		mt.used(processCPU([]int{m.Pid()}))
		err = errors.Join(err, m.Stop())
	}()
	c, err := reach(ctx, s.lab.DirectURI(spare))
	if err != nil {
		return err
	}
	defer c.Close()
	mt.runs(m.Pid())
	for {
		ok, err := done(ctx, c)
		if err != nil || ok {
			return err
		}
		if !tick(ctx, 5*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// reach connects to a member as soon as it answers.
func reach(ctx context.Context, uri string) (*mongo.Cluster, error) {
	for {
		c, err := mongo.Connect(ctx, uri, mongo.Options{AppName: "millrace bench", ServerSelectionTimeout: 200 * time.Millisecond})
		if err == nil {
			return c, nil
		}
		if !tick(ctx, 10*time.Millisecond) {
			return nil, errors.Join(err, ctx.Err())
		}
	}
}

func isSecondary(ctx context.Context, c *mongo.Cluster) (bool, error) {
	raw, err := c.Command(ctx, "admin", bson.D{{Key: "isMaster", Value: 1}})
	if err != nil {
		return false, err
	}
	yes, _ := raw.Lookup("secondary").BooleanOK()
	return yes, nil
}

// emptyDirectory removes what is in a directory.
func emptyDirectory(path string) error {
	entries, err := os.ReadDir(path)
	if err != nil {
		return err
	}
	for _, e := range entries {
		if err := os.RemoveAll(filepath.Join(path, e.Name())); err != nil {
			return err
		}
	}
	return nil
}
