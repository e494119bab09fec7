package seed

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

const (
	downWait   = 30 * time.Second // until the set notices a down member; heartbeats take 2 s by default
	provenWait = time.Minute      // for a majority write
)

// replacing checks that the set has the member to be replaced, and that it is stopped. The returned function
// checks that a directory's files are that member's own. With prove it also proves that the set does not need
// them: its acknowledgement may count in a majority write that is newer than the copy.
func (o MemberOptions) replacing(ctx context.Context, dir string, prove bool) (func(context.Context, *os.Root) error,
	error) {
	set, err := connectSet(ctx, o.SetURI)
	if err != nil {
		return nil, err
	}
	defer func() { _ = set.Disconnect(context.WithoutCancel(ctx)) }()
	id, err := setOf(ctx, set, o.Replace)
	if err != nil {
		return nil, err
	}
	if err := awaitDown(ctx, set, o.Replace); err != nil {
		return nil, err
	}
	if prove {
		if err := provenByOthers(ctx, set, o.Replace, provenWait); err != nil {
			return nil, err
		}
	}
	return func(ctx context.Context, root *os.Root) error { return o.owns(ctx, root, dir, id) }, nil
}

func setOf(ctx context.Context, set *driver.Client, host string) (bson.ObjectID, error) {
	cfg, err := mongo.ReadSetConfig[mongo.SetConfig](ctx, set)
	id := cfg.Settings.ReplicaSetID
	if err != nil {
		return id, mongo.NeedsRole(fmt.Errorf("seed: cannot read the set's configuration: %w", err),
			"the user needs the role clusterManager")
	}
	if !slices.ContainsFunc(cfg.Members, func(m mongo.MemberConfig) bool { return m.Host == host }) {
		return id, mongo.WithHint(fmt.Errorf("seed: the set has no member %s to be replaced", host),
			"name it as rs.conf() does; a new member takes --join")
	}
	if id.IsZero() {
		return id, errors.New("seed: the set's configuration has no replicaSetId")
	}
	return id, nil
}

// awaitDown waits until the set sees that a member is down. It fails at once if a server listens there.
func awaitDown(ctx context.Context, set *driver.Client, host string) error {
	if conn, err := (&net.Dialer{Timeout: 2 * time.Second}).DialContext(ctx, "tcp", host); err == nil {
		_ = conn.Close()
		return mongo.WithHint(fmt.Errorf("seed: %s answers, but a member is replaced only when it is stopped", host),
			"shut it down: db.shutdownServer()")
	}
	wait, cancel := context.WithTimeoutCause(ctx, downWait, mongo.WithHint(
		fmt.Errorf("seed: the set still reaches %s", host), "shut it down on its machine"))
	defer cancel()
	return pace.Until(wait, 100*time.Millisecond, func() (bool, error) {
		st, err := mongo.ReadSetStatus(wait, set)
		switch {
		case err == nil:
			m := st.Member(host)
			return m.Name == host && m.Health == 0, nil
		case wait.Err() != nil:
			return false, context.Cause(wait)
		}
		return false, mongo.WithHint(fmt.Errorf("seed: cannot read the set's status: %w", err),
			"it needs a primary without this member; the user needs the role clusterManager")
	})
}

// provenByOthers proves by a later majority write that the others have all that a stopped member acknowledged.
func provenByOthers(ctx context.Context, set *driver.Client, host string, limit time.Duration) error {
	raw, err := set.Database("admin").RunCommand(ctx, bson.D{{Key: "appendOplogNote", Value: 1},
		{Key: "data", Value: bson.D{{Key: "msg", Value: "millrace seed replaces " + host}}},
		{Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}, {Key: "wtimeout", Value: limit.Milliseconds()}}}}).
		Raw()
	if err == nil {
		if text, ok := raw.Lookup("writeConcernError", "errmsg").StringValueOK(); ok {
			err = errors.New(text)
		}
	}
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: a majority without %s may lack its writes: %w", host, err),
			"start members that are down, and wait for those that are behind; the user needs the role clusterManager")
	}
	return nil
}

// owns accepts a directory that is clearly the member's: it has the set's files, and the start command its path and
// port. It accepts no unknown file and no link: the copy would not remove them, and a mongod would find them.
func (o MemberOptions) owns(ctx context.Context, root *os.Root, dir string, id bson.ObjectID) error {
	refuse := func(why string) error {
		return mongo.WithHint(fmt.Errorf("%w, and it is not clearly the directory of %s: %s",
			notEmptyError(root.Name()), o.Replace, why),
			"check it; if its files may go, empty it by hand and run the same command again")
	}
	if program(o.Command) == nil {
		return refuse("no mongod is to be seen in the command after --")
	}
	c, err := configOf(ctx, o.Command)
	if err != nil {
		return refuse("the mongod of the command after -- does not print its options")
	}
	if _, port, _ := net.SplitHostPort(o.Replace); port != c.port() || !sameDirectory(c.Storage.DBPath, dir) {
		return refuse(fmt.Sprintf("the command after -- starts a mongod on port %s in %q", c.port(), c.Storage.DBPath))
	}
	if name, err := beyondCopy(root); err != nil || name != "" {
		return errors.Join(refuse("it has "+name), err)
	}
	ok, err := hasConfigOf(root, id)
	if err == nil && !ok {
		return refuse("no configuration of this set is found in its files")
	}
	return err
}

func beyondCopy(root *os.Root) (found string, err error) {
	widest := Storage{DirectoryPerDB: true, DirectoryForIndexes: true}
	err = fs.WalkDir(root.FS(), ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return fmt.Errorf("seed: cannot read %s: %w", root.Name(), err)
		}
		top := path.Dir(p) == "."
		switch {
		case top && (p == keyStore || p == keyDB):
			found = p + ", keys of an encrypted member"
		case top && p == newSetMark:
			found = p + ", a clone that was not completed"
		case d.IsDir() && neverTables(d.Name()):
			return fs.SkipDir
		case d.Type()&fs.ModeSymlink != 0:
			found = p + ", a link"
		case !d.IsDir() && widest.kindOf(p) == strange:
			found = p + ", a file of the engine that millrace does not know"
		}
		if found != "" {
			return fs.SkipAll
		}
		return nil
	})
	return found, err
}

// hasConfigOf looks for a set's configuration in a directory's files. Its table is small, and the engine does not
// compress a page unless that saves a block. A larger configuration is not found.
func hasConfigOf(root *os.Root, id bson.ObjectID) (bool, error) {
	const most = 1 << 20
	pattern := append([]byte("\x07replicaSetId\x00"), id[:]...)
	files, err := listCopy(root)
	if err != nil {
		return false, err
	}
	for _, f := range files {
		if !strings.HasSuffix(f.Path, ".wt") || f.Size > most {
			continue
		}
		raw, err := root.ReadFile(f.Path)
		if err != nil {
			return false, fmt.Errorf("seed: cannot read %s: %w", root.Name(), err)
		}
		if bytes.Contains(raw, pattern) {
			return true, nil
		}
	}
	return false, nil
}

func rejoin(ctx context.Context, c *driver.Client, o MemberOptions, took *MemberTimes) error {
	set, err := connectSet(ctx, o.SetURI)
	if err != nil {
		return err
	}
	defer func() { _ = set.Disconnect(context.WithoutCancel(ctx)) }()
	wait, cancel := context.WithTimeoutCause(ctx, o.CatchUp, mongo.WithHint(
		fmt.Errorf("seed: the member was started, but was no secondary after %s", o.CatchUp), "read its log and rs.status()"))
	defer cancel()
	return awaitSecondary(wait, c, set, o.Replace, took)
}
