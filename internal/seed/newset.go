package seed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/spawn"
)

// makeIndependent makes a copy forget the set that it comes from. What came
// after the last checkpoint is in the oplog of the copy alone: so the oplog is
// applied first, and only then `local` is dropped. It returns the position up
// to which the copy holds everything, and how many expiries were held back.
func makeIndependent(ctx context.Context, o Options, s Storage) (at mongo.OpTime, held int, err error) {
	// A mark that says how far this got: the steps cannot be told apart by the
	// files.
	mark := filepath.Join(o.Pull.DBPath, newSetMark)
	if err := os.WriteFile(mark, []byte("millrace seed makes this copy a replica set of its own\n"), 0o600); err != nil {
		return at, 0, fmt.Errorf("seed: %w", explain(err))
	}
	err = withPrivateMongod(ctx, o, s, []string{"recoverFromOplogAsStandalone=true", "takeUnstableCheckpointOnShutdown=true"},
		func(ctx context.Context, c *driver.Client) (err error) {
			if err := checkIndependent(ctx, c); err != nil {
				return err
			}
			at, err = newestPosition(ctx, c)
			return err
		})
	if err != nil {
		return at, 0, fmt.Errorf("seed: apply the oplog to the copy: %w", err)
	}
	err = withPrivateMongod(ctx, o, s, nil, func(ctx context.Context, c *driver.Client) (err error) {
		if o.Member.holds() {
			if held, err = holdExpiries(ctx, c, followJob(o.Member.NewSet)); err != nil {
				return err
			}
		}
		return c.Database("local").Drop(ctx)
	})
	if err != nil {
		return at, held, fmt.Errorf("seed: remove the old set's oplog and configuration from the copy: %w", err)
	}
	return at, held, os.Remove(mark)
}

const newSetMark = "millrace-new-set"

// checkIndependent rejects a copy of a shard or of a config server. A stopped member says
// nothing of that before.
func checkIndependent(ctx context.Context, c *driver.Client) error {
	for _, one := range []struct {
		db, coll string
		filter   bson.D
		role     string
	}{
		{"admin", "system.version", bson.D{{Key: "_id", Value: "shardIdentity"}}, "shardsvr"},
		{"local", "system.replset", bson.D{{Key: "configsvr", Value: true}}, "configsvr"},
	} {
		err := c.Database(one.db).Collection(one.coll).FindOne(ctx, one.filter).Err()
		if err == nil {
			return partOfCluster(one.role)
		}
		if !errors.Is(err, driver.ErrNoDocuments) {
			return fmt.Errorf("read %s.%s of the copy: %w", one.db, one.coll, err)
		}
	}
	return nil
}

// partOfCluster says why no set of its own is made of a member of a sharded cluster.
func partOfCluster(role string) error {
	what := map[string]string{"shardsvr": "a shard", "configsvr": "a config server"}[role]
	return mongo.WithHint(fmt.Errorf("seed: cannot make a replica set of its own: the source is %s (%s) of a sharded cluster, and the copy would keep that identity and hold a part of the data", what, role),
		"copy the cluster from its routers (mongos) with millrace sync")
}

func newestPosition(ctx context.Context, c *driver.Client) (mongo.OpTime, error) {
	var at mongo.OpTime
	err := c.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: -1}}).
			SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}})).Decode(&at)
	if err != nil {
		return at, fmt.Errorf("read the end of the oplog: %w", err)
	}
	return at, nil
}

// withPrivateMongod runs fn on a standalone mongod that listens on a socket in
// a private directory only: nobody else can write to the copy meanwhile. It is
// shut down cleanly, for the checkpoint at the end is what counts. Its guardian does
// that even if this process is killed.
func withPrivateMongod(ctx context.Context, o Options, s Storage, params []string, fn func(context.Context, *driver.Client) error) (err error) {
	private, err := newScratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, private.remove()) }()
	dir := private.dir
	socket := filepath.Join(dir, "s.sock")
	args := []string{"--dbpath", o.Pull.DBPath, "--bind_ip", socket, "--unixSocketPrefix", dir, "--logpath", filepath.Join(dir, "log"),
		"--setParameter", monitorOff}
	if s.DirectoryPerDB {
		args = append(args, "--directoryperdb")
	}
	if s.DirectoryForIndexes {
		args = append(args, "--wiredTigerDirectoryForIndexes")
	}
	for _, p := range params {
		args = append(args, "--setParameter", p)
	}
	if _, err := exec.LookPath(o.Member.mongod()); err != nil {
		return mongo.WithHint(fmt.Errorf("start %s: %w", o.Member.mongod(), err), "name the mongod with --mongod")
	}
	command := slices.Concat(o.Member.Guardian, []string{o.Member.mongod()}, args)
	cmd := spawn.Command(command[0], command[1:]...) // its guardian ends with its standard input
	cmd.SysProcAttr = apart()
	cmd.ExtraFiles = []*os.File{private.owner} // it may outlive this process for a moment
	var said strings.Builder
	cmd.Stdout, cmd.Stderr = &said, &said
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("start the guardian of the private mongod: %w", err)
	}
	ended := make(chan struct{})
	var exit error
	go func() { // ends with the mongod, which this function waits for
		exit = cmd.Wait()
		close(ended)
	}()
	err = callPrivate(ctx, socket, ended, fn)
	_ = in.Close() // closed already if the guardian is gone
	<-ended
	if exit != nil {
		err = errors.Join(err, fmt.Errorf("mongod ended (%w): %s %s", exit, strings.TrimSpace(said.String()), tailOf(filepath.Join(dir, "log"))))
	}
	return err
}

// callPrivate waits until a mongod answers on the socket and runs fn.
func callPrivate(ctx context.Context, socket string, ended <-chan struct{}, fn func(context.Context, *driver.Client) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	over := make(chan struct{})
	defer close(over)
	go func() { // ends with this function
		select {
		case <-ended:
			cancel(errors.New("mongod ended"))
		case <-over:
		}
	}()
	c, err := driver.Connect(options.Client().SetHosts([]string{socket}).SetDirect(true).
		SetHeartbeatInterval(500 * time.Millisecond).SetServerSelectionTimeout(selectionWait))
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	if err := awaitAnswer(ctx, c); err != nil {
		return err
	}
	if err := fn(ctx, c); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

// selectionWait is how long an operation looks for its mongod, which may share
// its processors with much else.
const selectionWait = 30 * time.Second

// awaitAnswer waits as long as recovery takes, a replay of hours of oplog
// perhaps: the socket is there before that, but nobody listens on it.
func awaitAnswer(ctx context.Context, c *driver.Client) error {
	return until(ctx, 50*time.Millisecond, func() (bool, error) { return c.Ping(ctx, nil) == nil, nil })
}

func (o MemberOptions) mongod() string {
	switch {
	case o.Mongod != "":
		return o.Mongod
	case len(o.Command) > 0:
		return o.Command[0]
	}
	return "mongod"
}

// tailOf is the end of a log.
func tailOf(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-2000):])
}
