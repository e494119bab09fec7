package seed

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
)

// GuardRequest is the first line on a guardian's standard input. At the end of the input it unlocks.
type GuardRequest struct {
	URI          string  `json:"uri"`
	App          string  `json:"app"`          // names the guardian's operations on the server
	LimitSeconds float64 `json:"limitSeconds"` // longest time of the lock
	Primary      bool    `json:"primary"`      // permits to lock a primary, which blocks all writes
}

type guardReply struct {
	Locked   bool    `json:"locked,omitempty"`
	Released bool    `json:"released,omitempty"`
	InTime   bool    `json:"inTime,omitempty"` // released on request, not by the limit
	Seconds  float64 `json:"seconds,omitempty"`
	Error    string  `json:"error,omitempty"`
	Hint     string  `json:"hint,omitempty"`
	Passing  bool    `json:"passing,omitempty"` // of Error: nothing is locked, and another guardian may get the lock
}

const (
	// lockWait bounds the wait for the lock, during which other operations wait too. On 6.0.5 a lock at the end
	// of an index build took more than 30 s. See lockRetries.
	lockWait      = 5 * time.Second
	buildWait     = 5 * time.Minute // for index builds before the lock
	unlockOwnWait = 2 * time.Second // for a server that works to unlock
	unlockPause   = 200 * time.Millisecond
	refusedFor    = 3 * time.Second // after which a mongod that refuses connections counts as ended
	stableWait    = time.Minute     // until a member can take a checkpoint
	// codeCommandFailed says that the lock's checkpoint was refused, and the lock released.
	codeCommandFailed = 125
	// codeNotLocked is IllegalOperation. Servers up to 6.0 send no code (observed), only notLockedText.
	codeNotLocked = 20
	notLockedText = "fsyncUnlock called when not locked"
)

// Guard is the guardian process: it locks a member and unlocks it when its input ends or the limit is over.
// It must run in a process that gets no signals to the parent. The lock belongs to the server and not to a
// connection, so Guard returns only when it knows that the lock is gone.
func Guard(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("seed: the guardian got no request: %w", err)
	}
	var q GuardRequest
	if err := json.Unmarshal(line, &q); err != nil {
		return errors.New("seed: the guardian cannot read its request") // which has secrets
	}
	gone := make(chan struct{})
	go func() { // ends with the input, which the process's end closes too
		defer close(gone)
		_, _ = io.Copy(io.Discard, lines)
	}()
	replies := json.NewEncoder(out)
	err = guard(ctx, q, gone, func(r guardReply) { _ = replies.Encode(r) }) // the parent may be gone
	if err != nil {
		_ = replies.Encode(guardReply{Error: err.Error(), Hint: mongo.HintOf(err),
			Passing: mongo.Classify(err) == mongo.ClassRetry})
	}
	return err
}

func guard(ctx context.Context, q GuardRequest, gone <-chan struct{}, send func(guardReply)) error {
	m, err := connectMember(ctx, q.URI, q.App)
	if err != nil {
		return err
	}
	defer m.close()
	if err := m.lockable(ctx, q.Primary); err != nil {
		return err
	}
	if err := m.awaitIndexBuilds(ctx, gone); err != nil {
		return err
	}
	if err := m.lockWhenStable(ctx, gone); err != nil {
		return err
	}
	began := time.Now()
	// It may have become primary meanwhile.
	if err := m.stillLockable(ctx, q.Primary); err != nil {
		return m.unlockAfter(err)
	}
	send(guardReply{Locked: true})
	inTime := false
	select {
	case <-gone:
		inTime = true
	case <-time.After(time.Duration(q.LimitSeconds * float64(time.Second))):
	case <-ctx.Done():
	}
	if m.unlockOwn() != nil {
		if err := m.unlock(); err != nil {
			return err
		}
	}
	send(guardReply{Released: true, InTime: inTime, Seconds: time.Since(began).Seconds()})
	return nil
}

// member is a direct connection to the one mongod that is copied.
type member struct {
	client  *driver.Client
	admin   *driver.Database
	app     string // names our operations on the server
	process []byte // of the mongod; a restarted one is not locked
}

func connectMember(ctx context.Context, uri, app string) (*member, error) {
	// The connection is open before the lock: a login to a locked member may wait.
	opts, err := mongo.ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	client, err := driver.Connect(opts.SetDirect(true).SetAppName(app).
		SetMaxPoolSize(2).SetServerSelectionTimeout(selectionWait).SetRetryReads(false).SetRetryWrites(false))
	if err != nil {
		return nil, errBadURI
	}
	m := &member{client: client, admin: client.Database("admin"), app: app}
	h, err := hello(ctx, client)
	if err != nil {
		m.close()
		return nil, mongo.WithHint(fmt.Errorf("seed: cannot connect to %s: %w", mongo.Redact(uri), err),
			"name one member, as mongodb://host:port")
	}
	m.process = h.Topology.Process.Value
	return m, nil
}

func (m *member) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_ = m.client.Disconnect(ctx)
}

type helloReply struct {
	Primary   bool   `bson:"ismaster"`
	Secondary bool   `bson:"secondary"`
	SetName   string `bson:"setName"`
	Me        string `bson:"me"`
	Hosts     []string
	Topology  struct {
		Process bson.RawValue `bson:"processId"`
	} `bson:"topologyVersion"`
}

func hello(ctx context.Context, c *driver.Client) (h helloReply, err error) {
	err = c.Database("admin").RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Decode(&h)
	return h, err
}

// restarted reports another process than that of the first connection.
func (m *member) restarted(h helloReply) bool {
	return len(m.process) > 0 && string(h.Topology.Process.Value) != string(m.process)
}

func (m *member) run(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	return m.admin.RunCommand(ctx, cmd).Raw()
}

func (m *member) lockable(ctx context.Context, primary bool) error {
	if err := m.stillLockable(ctx, primary); err != nil {
		return err
	}
	raw, err := m.run(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}})
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("seed: cannot look for a lock: %w", err),
			"the user needs the role hostManager, or backup and clusterMonitor")
	}
	if locked, _ := raw.Lookup("fsyncLock").BooleanOK(); locked {
		return mongo.WithHint(errors.New("seed: the member is locked already"),
			"another backup runs, or left its lock behind: db.fsyncUnlock()")
	}
	return nil
}

func (m *member) stillLockable(ctx context.Context, primary bool) error {
	h, err := hello(ctx, m.client)
	if err != nil {
		return fmt.Errorf("seed: cannot read the member's state: %w", err)
	}
	if h.Primary && !primary {
		return mongo.WithHint(errors.New("seed: the member is a primary: its lock would block all writes to the set"),
			"name a secondary, best a hidden one; or give both --allow-primary and --yes-block-all-writes")
	}
	return nil
}

// awaitIndexBuilds waits until no index is built: a lock would wait for the build, and replication for the lock.
func (m *member) awaitIndexBuilds(ctx context.Context, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildWait, mongo.WithHint(
		fmt.Errorf("seed: the member has been building indexes for %s", buildWait), "run it when no index is being built"))
	defer cancel()
	return pace.Until(ctx, 100*time.Millisecond, func() (bool, error) {
		select {
		case <-gone:
			return false, errors.New("seed: the guardian's parent is gone")
		default:
		}
		ops, listed, err := m.operations(ctx, bson.E{Key: "active", Value: true},
			bson.E{Key: "desc", Value: bson.D{{Key: "$regex", Value: "^IndexBuild"}}})
		if err != nil {
			return false, fmt.Errorf("seed: cannot look for index builds: %w", err)
		}
		return !listed || len(ops) == 0, nil
	})
}

// operations returns the operations that match; listed is false if the member lists none.
func (m *member) operations(ctx context.Context, filter ...bson.E) (ops []bson.RawValue, listed bool, err error) {
	raw, err := m.run(ctx, append(bson.D{{Key: "currentOp", Value: 1}}, filter...))
	if err != nil {
		return nil, false, err
	}
	array, listed := raw.Lookup("inprog").ArrayOK()
	if listed {
		ops, err = array.Values()
	}
	return ops, listed, err
}

// lockWhenStable takes the lock; after an error it holds none. It retries while a member that has just ended its
// initial sync refuses: "Cannot take checkpoints when the stable timestamp is less than the initial data timestamp".
func (m *member) lockWhenStable(ctx context.Context, gone <-chan struct{}) error {
	var last error
	wait, cancel := context.WithTimeout(ctx, stableWait)
	defer cancel()
	err := pace.Until(wait, 200*time.Millisecond, func() (bool, error) {
		last = m.lock(ctx, gone)
		if last == nil {
			return true, nil
		}
		if mongo.IsCode(last, codeCommandFailed) {
			return false, nil
		}
		last = m.unlockAfter(last)
		return false, last
	})
	if err != nil && last != nil && wait.Err() != nil {
		return last
	}
	return err
}

// lock locks the member. After an error other than codeCommandFailed it may be locked.
func (m *member) lock(ctx context.Context, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeout(ctx, lockWait)
	defer cancel()
	ctx, end := endingWith(ctx, gone, nil)
	defer end()
	_, err := m.run(ctx, bson.D{{Key: "fsync", Value: 1}, {Key: "lock", Value: true}})
	switch {
	case err == nil:
		return nil
	case driver.IsTimeout(err): // its deadline may come before that of ctx
		return mongo.Retry(fmt.Sprintf("seed: cannot lock the member: it did not grant the lock within %s", lockWait), nil,
			"the member is busy: name another one, or run it at another time")
	}
	return mongo.NeedsRole(fmt.Errorf("seed: cannot lock the member: %w", err),
		"the user needs the role hostManager or backup")
}

// unlockAfter unlocks after a failure that may have left a lock. If it cannot, its error permits no retry.
func (m *member) unlockAfter(failure error) error {
	if err := m.unlock(); err != nil {
		return fmt.Errorf("%w, after: %v", err, failure) //nolint:errorlint // it must not count as passing
	}
	return failure
}

// unlockOwn removes a lock that was granted, so that no lock command is under way.
func (m *member) unlockOwn() error {
	ctx, cancel := context.WithTimeout(context.Background(), unlockOwnWait)
	defer cancel()
	h, err := hello(ctx, m.client)
	if err == nil && m.restarted(h) {
		return errors.New("seed: the server was restarted")
	}
	if err == nil {
		_, err = m.run(ctx, bson.D{{Key: "fsyncUnlock", Value: 1}})
	}
	return err
}

// unlock retries until the server reports that we do not lock it. It gives up only when the server was restarted
// or has ended: a locked mongod listens, so refused connections mean that it ended.
func (m *member) unlock() error {
	var refused time.Time // since when
	for {
		done, err := m.tryUnlock()
		if done {
			return err
		}
		switch {
		case err == nil || !errors.Is(err, syscall.ECONNREFUSED) && !strings.Contains(err.Error(), "connection refused"):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > refusedFor:
			return errors.New("seed: the member ended while it was locked")
		}
		time.Sleep(unlockPause) // the guardian must not end before
	}
}

// tryUnlock reports whether the lock is certainly gone.
func (m *member) tryUnlock() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	h, err := hello(ctx, m.client)
	if err != nil {
		return false, err
	}
	if m.restarted(h) {
		return true, nil
	}
	// A lock command under way may still take the lock; an unlock helps it end.
	pending, unknown := m.pending(ctx)
	_, err = m.run(ctx, bson.D{{Key: "fsyncUnlock", Value: 1}})
	switch {
	case err == nil, notLocked(err):
		return !pending && unknown == nil, unknown
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return true, mongo.WithHint(fmt.Errorf("seed: the member stays locked: %w", err),
			"run db.fsyncUnlock() as a user with the privilege")
	}
	return false, err
}

func notLocked(err error) bool {
	var reply driver.CommandError
	return mongo.IsCode(err, codeNotLocked) || errors.As(err, &reply) && reply.Message == notLockedText
}

// pending kills our lock command. After an error one may be under way.
func (m *member) pending(ctx context.Context) (bool, error) {
	ops, listed, err := m.operations(ctx, bson.E{Key: "appName", Value: m.app},
		bson.E{Key: "command.fsync", Value: bson.D{{Key: "$exists", Value: true}}})
	if err == nil && !listed {
		err = errors.New("the member does not list its operations")
	}
	if err != nil {
		return false, fmt.Errorf("seed: cannot look for the lock command: %w", err)
	}
	for _, v := range ops {
		if op, ok := v.DocumentOK(); ok {
			if id, err := op.LookupErr("opid"); err == nil {
				_, _ = m.run(ctx, bson.D{{Key: "killOp", Value: 1}, {Key: "op", Value: id}})
			}
		}
	}
	return len(ops) > 0, nil
}
