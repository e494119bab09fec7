package lab

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/spawn"
)

// A test gets a cluster that an earlier test of the same process has used, if one has the same options and no
// other changes than data. A start takes most of a second of processor time.

// mostSpares is how many servers may wait for a test: idle ones take processor time, too.
const mostSpares = 6

// Reusable is a cluster that tests use one after another.
type Reusable interface {
	// Renew empties the cluster. It fails when a test has changed more than data.
	Renew(ctx context.Context) error
	// Directories are the members' temporary ones.
	Directories() []string
	Stop() error
}

// spares are clusters that no test uses at the moment. Their methods may be called concurrently.
type spares struct {
	mu      sync.Mutex
	idle    []spare   // the oldest first
	janitor io.Writer // takes the names of directories that it removes when this process has ended
}

type spare struct {
	key string // the same for equal options
	Reusable
}

//nolint:gochecknoglobals // The tests of a process share servers as they share the process.
var idle spares

// TakeSpare returns an emptied cluster that was put back under a key, nil if there is none. It stops those that a
// test has changed.
func TakeSpare(ctx context.Context, key string) (Reusable, error) {
	for c := idle.take(key); c != nil; c = idle.take(key) {
		if err := c.Renew(ctx); err == nil {
			return c, nil
		}
		if err := c.Stop(); err != nil {
			return nil, err
		}
	}
	return nil, nil
}

// PutSpare keeps a cluster for another test under a key. It stops clusters that no test has taken for the longest time.
func PutSpare(key string, c Reusable) error {
	err := idle.note(c.Directories())
	if err != nil {
		return errors.Join(err, c.Stop())
	}
	for _, old := range idle.put(spare{key, c}) {
		err = errors.Join(err, old.Stop())
	}
	return err
}

func (s *spares) take(key string) Reusable {
	s.mu.Lock()
	defer s.mu.Unlock()
	i := slices.IndexFunc(s.idle, func(c spare) bool { return c.key == key })
	if i < 0 {
		return nil
	}
	c := s.idle[i]
	s.idle = slices.Delete(s.idle, i, i+1)
	return c.Reusable
}

// put adds a cluster and removes those that are too many.
func (s *spares) put(c spare) (tooMany []spare) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.idle = append(s.idle, c)
	servers := 0
	for i := len(s.idle) - 1; i >= 0; i-- {
		if servers += len(s.idle[i].Directories()); servers > mostSpares && i < len(s.idle)-1 {
			tooMany = slices.Clone(s.idle[:i+1])
			s.idle = slices.Delete(s.idle, 0, i+1)
			break
		}
	}
	return tooMany
}

// note has directories removed after this process has ended. The kernel ends the servers then.
func (s *spares) note(dirs []string) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.janitor == nil {
		cmd := spawn.Command("sh", "-c", `while read -r dir; do set -- "$@" "$dir"; done; rm -rf "$@"`)
		cmd.SysProcAttr = childAttr(true)
		in, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			return fmt.Errorf("lab: start what removes directories: %w", err)
		}
		s.janitor = in
	}
	for _, dir := range dirs {
		if _, err := fmt.Fprintln(s.janitor, dir); err != nil {
			return fmt.Errorf("lab: name directories that are to be removed: %w", err)
		}
	}
	return nil
}

// ordinary reports whether clusters with these options have nothing that a later test could miss or notice.
func (o Options) ordinary() bool {
	own := o.Name != "" || o.Dir != "" || o.Role != "" || o.Secrets != "" || o.Port != 0 || o.Auth || o.TLS || o.Proxy ||
		o.PeerLatency > 0 || o.DiskMB != 0 || o.Cores > 0 || o.DiskSpeed.Slow() || o.detached || o.Front != nil
	return !own && (o.Topology == "" || o.Topology == "rs:1" || o.Topology == "standalone")
}

// Key is the same for equal options.
func (o Options) Key() (string, error) {
	o.Logger = nil
	raw, err := json.Marshal(o)
	return string(raw), Wrap(err, "lab: name a cluster")
}

// CanShare reports whether tests may use clusters one after another: only on Linux do servers end with the process.
func CanShare() bool { return runtime.GOOS == "linux" }

// startShared starts a cluster for a test or takes a spare one.
func startShared(ctx context.Context, o Options) (*Cluster, error) {
	if !o.ordinary() || keepFor(o) > 0 || !CanShare() {
		return Start(ctx, o)
	}
	key, err := o.Key()
	if err != nil {
		return nil, err
	}
	if c, err := TakeSpare(ctx, key); c != nil || err != nil {
		old, _ := c.(*Cluster)
		return old, err
	}
	c, err := Start(ctx, o)
	if err != nil {
		return nil, err
	}
	settings, err := c.Settings(ctx)
	if err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	c.shared = &shared{key, settings}
	return c, nil
}

// shared is what a cluster was when it started.
type shared struct{ key, settings string }

// putBack keeps a cluster for other tests if they may use it, and else stops it.
func (c *Cluster) putBack() error {
	if c.shared == nil || c.members[0].Pid() == 0 {
		return c.Stop()
	}
	return PutSpare(c.shared.key, c)
}

// Directories are the members' temporary ones.
func (c *Cluster) Directories() []string {
	if c.tempDir == nil {
		return nil
	}
	return []string{c.tempDir.path}
}

// Renew empties a cluster of ForTest. It fails when a test has changed more than data.
func (c *Cluster) Renew(ctx context.Context) error {
	now, err := c.Settings(ctx)
	if err != nil {
		return err
	}
	if now != c.shared.settings {
		return fmt.Errorf("lab: use %s again: a test has changed the server", c.Name())
	}
	return c.Empty(ctx)
}

// Empty drops all databases of a cluster of one member but the server's own.
func (c *Cluster) Empty(ctx context.Context) error {
	err := c.withMember(ctx, 0, login{}, func(ctx context.Context, client *mongo.Client) error {
		// A transaction that a test has left would keep its collection.
		return client.Database("admin").RunCommand(ctx, bson.D{{Key: "killAllSessions", Value: bson.A{}}}).Err()
	})
	return errors.Join(err, c.dropAll(ctx))
}

// Settings are what a test may change beside data on a cluster of one member. That is the process, parameters, fail
// points and defaults. It is the set's configuration and term, users, roles and the oplog's size.
func (c *Cluster) Settings(ctx context.Context) (string, error) {
	type ask struct {
		db  string
		cmd bson.D
	}
	all := []ask{
		{"admin", bson.D{{Key: "getParameter", Value: "*"}}},
		{"admin", bson.D{{Key: "find", Value: "system.users"}}},
		{"admin", bson.D{{Key: "find", Value: "system.roles"}}},
		{"config", bson.D{{Key: "find", Value: "settings"}}},
		{"local", bson.D{{Key: "listCollections", Value: 1}, {Key: "filter", Value: bson.D{{Key: "name",
			Value: "oplog.rs"}}}}},
	}
	if c.topo.replicaSet {
		all = append(all, ask{"admin", bson.D{{Key: "replSetGetConfig", Value: 1}}})
	}
	out := []byte(strconv.Itoa(c.members[0].Pid()))
	err := c.withMember(ctx, 0, login{}, func(ctx context.Context, client *mongo.Client) error {
		state, err := hello(ctx, client)
		out = append(out, state.ElectionID[:]...)
		for _, a := range all {
			var raw bson.Raw
			if err == nil {
				raw, err = client.Database(a.db).RunCommand(ctx, a.cmd).Raw()
			}
			var elements []bson.RawElement
			if err == nil {
				elements, err = raw.Elements()
			}
			for _, e := range elements {
				if !slices.Contains([]string{"operationTime", "$clusterTime", "lastCommittedOpTime"}, e.Key()) {
					out = append(out, e...)
				}
			}
		}
		return err
	})
	return string(out), Wrap(err, "lab: read the settings of %s", c.Name())
}
