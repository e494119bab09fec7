package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/expiry"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/spawn"
)

// makeIndependent removes a copy's old set. Writes after the last checkpoint are only in the copy's oplog, so it
// applies the oplog first and then drops `local`. at is the last position that the copy has.
func makeIndependent(ctx context.Context, o Options, s Storage) (at mongo.OpTime, deferred int, err error) {
	// Its presence shows that a step is left to do.
	state := filepath.Join(o.Pull.DBPath, newSetMark)
	if err := os.WriteFile(state, []byte("millrace seed makes this copy a replica set of its own\n"), 0o600); err != nil {
		return at, 0, fmt.Errorf("seed: %w", explain(err))
	}
	r, err := recoverOplog(ctx, o, s)
	if err != nil {
		return r.At, 0, err
	}
	err = withPrivateMongod(ctx, o, s, nil, func(ctx context.Context, c *driver.Client) (err error) {
		if err := endUnderWay(ctx, c); err != nil {
			return err
		}
		if o.Member.defersExpiry() {
			if deferred, err = deferExpiries(ctx, c, FollowJob(o.Member.NewSet)); err != nil {
				return err
			}
		}
		return c.Database("local").Drop(ctx)
	})
	if err != nil {
		return r.At, deferred, fmt.Errorf("seed: cannot remove the old set's oplog and configuration from the copy: %w", err)
	}
	return r.At, deferred, os.Remove(state)
}

const newSetMark = "millrace-new-set"

// checkIndependent rejects a copy of a shard or a config server, which the plan cannot see of a stopped member.
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
			return fmt.Errorf("cannot read %s.%s of the copy: %w", one.db, one.coll, err)
		}
	}
	return nil
}

func partOfCluster(role string) error {
	what := map[string]string{"shardsvr": "a shard", "configsvr": "a config server"}[role]
	return mongo.WithHint(fmt.Errorf("seed: cannot make a replica set of its own: the source is %s (%s) of a sharded "+
		"cluster, and the copy would keep that identity and hold a part of the data", what, role),
		"copy the cluster from its routers (mongos) with millrace sync")
}

// withPrivateMongod runs fn on a standalone mongod that listens only on a socket in a private directory. The
// mongod is shut down cleanly, for its last checkpoint counts; its guardian does that if this process is killed.
func withPrivateMongod(ctx context.Context, o Options, s Storage, params []string,
	fn func(context.Context, *driver.Client) error) (err error) {
	private, err := newScratch()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, private.remove()) }()
	dir := private.dir
	socket := filepath.Join(dir, "s.sock")
	args := []string{"--dbpath", o.Pull.DBPath, "--bind_ip", socket, "--unixSocketPrefix", dir, "--logpath",
		filepath.Join(dir, "log"), "--setParameter", monitorOff}
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
		return mongo.WithHint(fmt.Errorf("cannot start %s: %w", o.Member.mongod(), err), "name the mongod with --mongod")
	}
	command := slices.Concat(o.Member.Guardian, []string{o.Member.mongod()}, args)
	cmd := spawn.Command(command[0], command[1:]...) // its guardian ends with its standard input
	cmd.SysProcAttr = apart()
	cmd.ExtraFiles = []*os.File{private.owner} // it may outlive this process
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	in, err := cmd.StdinPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return fmt.Errorf("cannot start the guardian of the private mongod: %w", err)
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
		err = errors.Join(err,
			fmt.Errorf("mongod ended (%w): %s %s", exit, strings.TrimSpace(output.String()), tailOf(filepath.Join(dir, "log"))))
	}
	return err
}

func callPrivate(ctx context.Context, socket string, ended <-chan struct{},
	fn func(context.Context, *driver.Client) error) error {
	ctx, cancel := endingWith(ctx, ended, errors.New("mongod ended"))
	defer cancel()
	c, err := driver.Connect(options.Client().SetHosts([]string{socket}).SetDirect(true).
		SetHeartbeatInterval(500 * time.Millisecond).SetServerSelectionTimeout(selectionWait))
	if err != nil {
		return err
	}
	defer func() { _ = c.Disconnect(context.WithoutCancel(ctx)) }()
	// Recovery may replay hours of oplog: the socket is there before the mongod listens.
	err = pace.Until(ctx, 50*time.Millisecond, func() (bool, error) { return c.Ping(ctx, nil) == nil, nil })
	if err != nil {
		return err
	}
	if err := fn(ctx, c); err != nil {
		return errors.Join(err, context.Cause(ctx))
	}
	return nil
}

const selectionWait = 30 * time.Second

func (o MemberOptions) mongod() string {
	return cmp.Or(o.Mongod, slices.Concat(o.Command, []string{"mongod"})[0])
}

func tailOf(name string) string {
	b, err := os.ReadFile(name)
	if err != nil {
		return ""
	}
	return string(b[max(0, len(b)-2000):])
}

// Private is the guardian of a private mongod, a process of its own: it starts the command, shuts it down cleanly when
// in ends, and returns its exit code. The mongod keeps open the files that the guardian got from its parent. If the
// guardian is killed as well, the kernel shuts the mongod down where it can (see withGuardian).
func Private(in io.Reader, command []string) (code int, err error) {
	if len(command) == 0 {
		return 0, errors.New("seed: the guardian of a private mongod has no command")
	}
	runtime.LockOSThread() // the kernel takes its end for the guardian's
	defer runtime.UnlockOSThread()
	cmd := spawn.Command(command[0], command[1:]...) // shut down below, never killed during its checkpoint
	cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = os.Stdout, os.Stderr, withGuardian()
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("cannot start %s: %w", command[0], err)
	}
	go func() { // ends with this process at the latest
		_, _ = io.Copy(io.Discard, in)
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
	}()
	err = cmd.Wait()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok && exit.Exited() {
		return exit.ExitCode(), nil
	}
	if err != nil {
		return 0, fmt.Errorf("%s: %w", command[0], err)
	}
	return 0, nil
}

const (
	scratchPrefix = "millrace-seed-" // of our directories among temporary files
	ownerFile     = "owner"          // in a directory, locked while its owner lives
)

// scratch is a private directory among temporary files. The next process removes that of a killed one, by its
// unlocked ownerFile.
type scratch struct {
	dir   string
	owner *os.File // its lock also lasts for as long as a child has it open
}

func newScratch() (*scratch, error) {
	parent := os.TempDir()
	sweepScratch(parent)
	dir, err := os.MkdirTemp(parent, scratchPrefix)
	if err != nil {
		return nil, fmt.Errorf("seed: cannot make a private directory: %w", err)
	}
	s := &scratch{dir: dir}
	// It is renamed when it is locked: sweepScratch ignores directories without ownerFile.
	unlocked := filepath.Join(dir, ownerFile+".new")
	if s.owner, err = os.OpenFile(unlocked, os.O_CREATE|os.O_RDWR|os.O_EXCL, 0o600); err == nil {
		if err = tryLock(s.owner); err == nil {
			err = os.Rename(unlocked, filepath.Join(dir, ownerFile))
		}
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("seed: cannot lock a private directory: %w", err), s.remove())
	}
	return s, nil
}

func (s *scratch) remove() error {
	err := os.RemoveAll(s.dir)
	if s.owner != nil {
		err = errors.Join(err, s.owner.Close())
	}
	return err
}

// sweepScratch removes directories of killed processes. It ignores errors: others are another user's, or harmless.
func sweepScratch(parent string) {
	entries, err := os.ReadDir(parent)
	if err != nil {
		return
	}
	for _, e := range entries {
		if e.IsDir() && strings.HasPrefix(e.Name(), scratchPrefix) { // a link is no directory
			sweepOne(filepath.Join(parent, e.Name()))
		}
	}
}

func sweepOne(dir string) {
	if info, err := os.Lstat(dir); err != nil || !info.IsDir() || ownerOf(info) != os.Geteuid() {
		return
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return
	}
	defer root.Close()
	f, err := root.OpenFile(ownerFile, os.O_RDWR, 0)
	if err != nil {
		return
	}
	defer f.Close()
	if tryLock(f) == nil {
		_ = os.RemoveAll(dir)
	}
}

// monitorOff keeps a mongod from expiring documents.
const monitorOff = "ttlMonitorEnabled=false"

// FollowJob returns the name of the job that follows the old set and restores the expiries of a new one.
func FollowJob(set string) string {
	name := []byte("clone-" + set)
	for i, c := range name {
		if !strings.ContainsRune("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_", rune(c)) {
			name[i] = '_'
		}
	}
	return string(name[:min(len(name), 64)])
}

// heldCollection is where internal/schema records what is deferred.
const heldCollection = "held"

type expiries struct {
	c   *driver.Client
	job string
	n   int // deferred so far
}

// deferExpiries defers every expiry for a job, and returns how many there were. A clone that follows its old set
// must not expire documents: updates that refresh them would find nothing. The job restores the expiries when it
// is finalized.
func deferExpiries(ctx context.Context, c *driver.Client, job string) (int, error) {
	h := &expiries{c: c, job: job}
	dbs, err := c.ListDatabaseNames(ctx, bson.D{})
	if err != nil {
		return 0, err
	}
	for _, db := range dbs {
		if mongo.IsInternal(db) {
			continue
		}
		if err := h.database(ctx, c.Database(db)); err != nil {
			return h.n, mongo.WithHint(fmt.Errorf("cannot defer the expiries of %s: %w", db, err),
				"for a clone that does not follow its old set give --keep-expiry")
		}
	}
	return h.n, nil
}

func (h *expiries) database(ctx context.Context, db *driver.Database) error {
	colls, err := mongo.ReadAll[expiringCollection](ctx, "list the collections")(db.ListCollections(ctx, bson.D{}))
	if err != nil {
		return err
	}
	for _, c := range colls {
		if c.Type == "view" || strings.HasPrefix(c.Name, "system.") {
			continue // collMod of a series changes its buckets
		}
		if err := h.collection(ctx, db, c); err != nil {
			return fmt.Errorf("%s: %w", c.Name, err)
		}
	}
	return nil
}

type expiringCollection struct {
	Name    string   `bson:"name"`
	Type    string   `bson:"type"`
	Options bson.Raw `bson:"options"`
}

func (c expiringCollection) is(option string) bool {
	on, _ := c.Options.Lookup(option).BooleanOK()
	return on
}

func (h *expiries) collection(ctx context.Context, db *driver.Database, c expiringCollection) error {
	if v, err := c.Options.LookupErr(expiry.Option); err == nil { // of a clustered collection or a series
		if err := h.deferOne(ctx, db, c, v, nil); err != nil {
			return err
		}
	}
	if c.is("capped") {
		return nil // nothing expires there, and collMod is refused
	}
	indexes, err := mongo.ReadAll[bson.Raw](ctx, "list the indexes")(db.Collection(c.Name).Indexes().List(ctx))
	for _, spec := range indexes {
		v, missing := spec.LookupErr(expiry.Option)
		keys, err := spec.Lookup("key").Document().Elements()
		if missing == nil && err == nil && len(keys) == 1 { // old servers ignore an expiry with more keys
			err = h.deferOne(ctx, db, c, v, spec)
		}
		if err != nil {
			return err
		}
	}
	return err
}

// deferOne records and defers the expiry of a collection, or in whole seconds that of the index with a spec.
func (h *expiries) deferOne(ctx context.Context, db *driver.Database, c expiringCollection, v bson.RawValue,
	spec bson.Raw) error {
	var expire any = v
	index, mod := "", bson.E{Key: expiry.Option, Value: "off"}
	if spec != nil {
		index, _ = spec.Lookup("name").StringValueOK()
		seconds, ok := expiry.Seconds(v)
		if !ok {
			return errors.New("the expiry of index " + index + " is not a number")
		}
		expire, mod = seconds, bson.E{Key: "index",
			Value: bson.D{{Key: "name", Value: index}, {Key: expiry.Option, Value: expiry.StandIn(seconds)}}}
	}
	id := bson.D{{Key: "job", Value: h.job}, {Key: "ns", Value: db.Name() + "." + c.Name}, {Key: "index", Value: index}}
	doc := bson.D{{Key: "_id", Value: id}, {Key: "unbuilt", Value: false}, {Key: "expire", Value: expire}}
	if spec != nil {
		doc = append(doc, bson.E{Key: "spec", Value: []byte(spec)})
	}
	// After an interruption the first record has the real expiry.
	_, err := h.c.Database(mongo.StateDB).Collection(heldCollection).
		UpdateOne(ctx, doc[:1], bson.D{{Key: "$setOnInsert", Value: doc[1:]}}, options.UpdateOne().SetUpsert(true))
	if err != nil {
		return fmt.Errorf("cannot record the deferred expiry: %w", err)
	}
	h.n++
	cmd := bson.D{{Key: "collMod", Value: c.Name}, mod}
	if c.is("recordPreImages") { // some servers switch it off where it is not repeated
		cmd = append(cmd, bson.E{Key: "recordPreImages", Value: true})
	}
	return db.RunCommand(ctx, cmd).Err()
}

func (o MemberOptions) defersExpiry() bool { return o.NewSet != "" && !o.KeepExpiry }

func (o MemberOptions) startCommand() []string {
	set := slices.ContainsFunc(o.Command, func(s string) bool { return strings.Contains(s, "ttlMonitorEnabled") })
	if !o.defersExpiry() || set || program(o.Command) == nil {
		return o.Command
	}
	return slices.Concat(o.Command, []string{"--setParameter", monitorOff})
}

// stopExpiring switches off the TTL monitor of a started mongod, which begins a minute after the start at the earliest.
func (o Options) stopExpiring(ctx context.Context, c *driver.Client) {
	if !o.Member.defersExpiry() {
		return
	}
	err := c.Database("admin").
		RunCommand(ctx, bson.D{{Key: "setParameter", Value: 1}, {Key: "ttlMonitorEnabled", Value: false}}).Err()
	if err != nil && len(o.Member.startCommand()) == len(o.Member.Command) {
		o.Pull.Log.Warn("cannot switch off the TTL monitor of the new set's server; its expiries are deferred until the job "+
			"that follows is finalized", "error", err, "hint", "start it with --setParameter "+monitorOff)
	}
}
