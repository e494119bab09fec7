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
)

// GuardRequest is the first line that a guardian reads on its standard input.
// The end of the input tells it to let go.
type GuardRequest struct {
	URI string `json:"uri"`
	// App names the guardian's operations on the server.
	App string `json:"app"`
	// LimitSeconds is the longest the lock may be held.
	LimitSeconds float64 `json:"limitSeconds"`
	// Primary permits to lock a primary: nothing can be written meanwhile.
	Primary bool `json:"primary"`
}

// guardReply is a line that a guardian writes.
type guardReply struct {
	Locked   bool    `json:"locked,omitempty"`
	Released bool    `json:"released,omitempty"`
	InTime   bool    `json:"inTime,omitempty"` // released when asked to, not by the limit
	Seconds  float64 `json:"seconds,omitempty"`
	Error    string  `json:"error,omitempty"`
	Hint     string  `json:"hint,omitempty"`
	Passing  bool    `json:"passing,omitempty"` // the error: nothing is held, and another guardian may get the lock
}

const (
	// lockWait bounds the wait for the lock itself: the server waits for
	// operations under way, and makes others wait meanwhile. On 6.0.5 a lock
	// that met the end of an index build was seen to wait for more than 30 s. A
	// member that is busy gets another chance later: see lockPatience.
	lockWait = 5 * time.Second
	// buildWait is how long index builds are waited for before the lock.
	buildWait = 5 * time.Minute
	// unlockOwnWait is how long a server that works may take to unlock.
	unlockOwnWait = 2 * time.Second
	// unlockPause is the time between two attempts to let go.
	unlockPause = 200 * time.Millisecond
	// refusedFor is how long nobody has to listen until the mongod counts as
	// ended.
	refusedFor = 3 * time.Second
	// stableWait is how long a member may take until it can make a checkpoint.
	stableWait = time.Minute
	// codeCommandFailed is what a lock that failed without a trace replies: its
	// checkpoint was refused, and it let go of what it held.
	codeCommandFailed = 125
	// codeNotLocked is IllegalOperation. Servers up to 6.0 give this error no
	// code (observed), only notLockedText.
	codeNotLocked = 20
	notLockedText = "fsyncUnlock called when not locked"
)

// Guard is the guardian process: it locks a member, says so, and lets go when
// its input ends, because its parent is done or gone, or when the limit is
// over. It must run in a process of its own that no signal to the parent
// reaches. The lock belongs to the server, not to a connection; so the
// guardian does not end before it knows that the server is not locked by it.
func Guard(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := bufio.NewReader(in)
	line, err := lines.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("seed: the guardian was told nothing: %w", err)
	}
	var q GuardRequest
	if err := json.Unmarshal(line, &q); err != nil {
		return errors.New("seed: the guardian was told nothing that it understands")
	}
	gone := make(chan struct{})
	go func() { // ends with the input, which the process's end closes too
		defer close(gone)
		_, _ = io.Copy(io.Discard, lines)
	}()
	tell := json.NewEncoder(out)
	err = guard(ctx, q, gone, func(r guardReply) { _ = tell.Encode(r) }) // a parent that is gone reads nothing
	if err != nil {
		_ = tell.Encode(guardReply{Error: err.Error(), Hint: mongo.HintOf(err),
			Passing: mongo.Classify(err) == mongo.ClassRetry})
	}
	return err
}

func guard(ctx context.Context, q GuardRequest, gone <-chan struct{}, tell func(guardReply)) error {
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
	// A step up between the look and the lock.
	if err := m.stillLockable(ctx, q.Primary); err != nil {
		return m.notHeld(err)
	}
	tell(guardReply{Locked: true})
	limit := time.NewTimer(time.Duration(q.LimitSeconds * float64(time.Second)))
	defer limit.Stop()
	inTime := false
	select {
	case <-gone:
		inTime = true
	case <-limit.C:
	case <-ctx.Done():
	}
	err = m.unlockOwn()
	seconds := time.Since(began).Seconds()
	if err != nil {
		if err := m.letGo(); err != nil {
			return err
		}
		seconds = time.Since(began).Seconds()
	}
	tell(guardReply{Released: true, InTime: inTime, Seconds: seconds})
	return nil
}

// member is a direct connection to the one mongod that is copied.
type member struct {
	client *driver.Client
	admin  *driver.Database
	app    string // names our operations on the server
	// process identifies the run of the mongod; a restarted one is not locked.
	process []byte
}

// connectMember connects to the member that uri names, alone.
func connectMember(ctx context.Context, uri, app string) (*member, error) {
	m := &member{app: app}
	// One connection, open from before the lock: while a member is locked, to
	// log in anew may have to wait.
	opts, err := mongo.ParseURI(uri)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	client, err := driver.Connect(opts.SetDirect(true).SetAppName(m.app).
		SetMaxPoolSize(2).SetServerSelectionTimeout(selectionWait).SetRetryReads(false).SetRetryWrites(false))
	if err != nil {
		return nil, errors.New("seed: the connection string cannot be used")
	}
	m.client, m.admin = client, client.Database("admin")
	hello, err := m.hello(ctx)
	if err != nil {
		m.close()
		return nil, mongo.WithHint(fmt.Errorf("seed: connect to %s: %w", mongo.Redact(uri), err),
			"name one member, as mongodb://host:port")
	}
	m.process = hello.Topology.Process.Value
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

func (m *member) hello(ctx context.Context) (h helloReply, err error) {
	err = m.admin.RunCommand(ctx, bson.D{{Key: "isMaster", Value: 1}}).Decode(&h)
	return h, err
}

// anew reports that another process has answered than the one that was connected to.
func (m *member) anew(h helloReply) bool {
	return len(m.process) > 0 && string(h.Topology.Process.Value) != string(m.process)
}

func (m *member) run(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	return m.admin.RunCommand(ctx, cmd).Raw()
}

// lockable refuses a member that must not be locked, or is already.
func (m *member) lockable(ctx context.Context, primary bool) error {
	if err := m.stillLockable(ctx, primary); err != nil {
		return err
	}
	raw, err := m.run(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}})
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("seed: look for a lock: %w", err),
			"the user needs the role hostManager, or backup and clusterMonitor")
	}
	if locked, _ := raw.Lookup("fsyncLock").BooleanOK(); locked {
		return mongo.WithHint(errors.New("seed: the member is locked already"),
			"another backup runs, or left its lock behind: db.fsyncUnlock()")
	}
	return nil
}

func (m *member) stillLockable(ctx context.Context, primary bool) error {
	h, err := m.hello(ctx)
	if err != nil {
		return fmt.Errorf("seed: ask the member for its state: %w", err)
	}
	if h.Primary && !primary {
		return mongo.WithHint(errors.New("seed: the member is a primary: locked, nothing can be written to the whole set"),
			"name a secondary, best a hidden one; or give both --allow-primary and --yes-block-all-writes")
	}
	return nil
}

// awaitIndexBuilds waits until the member builds no index: a lock then waits for
// the build, and what is replicated waits for the lock.
func (m *member) awaitIndexBuilds(ctx context.Context, gone <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, buildWait, mongo.WithHint(
		fmt.Errorf("seed: the member has been building indexes for %s", buildWait), "seed when no index is being built"))
	defer cancel()
	return until(ctx, 100*time.Millisecond, func() (bool, error) {
		select {
		case <-gone:
			return false, errors.New("seed: the guardian's parent is gone")
		default:
		}
		ops, listed, err := m.operations(ctx, bson.E{Key: "active", Value: true},
			bson.E{Key: "desc", Value: bson.D{{Key: "$regex", Value: "^IndexBuild"}}})
		if err != nil {
			return false, fmt.Errorf("seed: look for index builds: %w", err)
		}
		return !listed || len(ops) == 0, nil
	})
}

// operations are those of the member that a filter finds; listed is false where it lists none.
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

// lockWhenStable takes the lock. A member that has just ended its initial sync
// refuses it until it has a stable timestamp ("Cannot take checkpoints when the
// stable timestamp is less than the initial data timestamp"), which is waited
// for. After an error the member is not locked by us.
func (m *member) lockWhenStable(ctx context.Context, gone <-chan struct{}) error {
	var last error
	wait, cancel := context.WithTimeout(ctx, stableWait)
	defer cancel()
	err := until(wait, 200*time.Millisecond, func() (bool, error) {
		last = m.lock(ctx, gone)
		if last == nil {
			return true, nil
		}
		if mongo.IsCode(last, codeCommandFailed) {
			return false, nil
		}
		last = m.notHeld(last)
		return false, last
	})
	if err != nil && last != nil && wait.Err() != nil {
		return last
	}
	return err
}

// lock takes the lock. Its error leaves it open whether it was taken, unless it
// is codeCommandFailed.
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
		return mongo.Retry(fmt.Sprintf("seed: lock the member: it did not stand still within %s", lockWait), nil,
			"the member has much to do: name one that has less, or seed at another time")
	}
	return mongo.NeedsRole(fmt.Errorf("seed: lock the member: %w", err), "the user needs the role hostManager or backup")
}

// notHeld lets go after a failure that leaves it open whether the lock was taken,
// and returns it. Where that cannot be done nothing is to be tried again.
func (m *member) notHeld(failure error) error {
	if err := m.letGo(); err != nil {
		return fmt.Errorf("%w, after: %v", err, failure) //nolint:errorlint // what passes does not count any more
	}
	return failure
}

// unlockOwn takes away a lock that this server's process granted: nothing of it
// is under way any more, so that there is nothing else to ask for. Where that
// does not work at once, letGo sees to the rest.
func (m *member) unlockOwn() error {
	ctx, cancel := context.WithTimeout(context.Background(), unlockOwnWait)
	defer cancel()
	h, err := m.hello(ctx)
	if err == nil && m.anew(h) {
		return errors.New("seed: the server was started anew")
	}
	if err == nil {
		_, err = m.run(ctx, bson.D{{Key: "fsyncUnlock", Value: 1}})
	}
	return err
}

// letGo unlocks until the server says that it is not locked by us any more. It
// gives up only when the server's process is another one, or when there is none:
// a mongod that is locked listens, so refused connections mean that it ended,
// and the lock with it.
func (m *member) letGo() error {
	var refused time.Time // since when
	for {
		done, err := m.tryUnlock()
		if done {
			return err
		}
		switch {
		case !connectionRefused(err):
			refused = time.Time{}
		case refused.IsZero():
			refused = time.Now()
		case time.Since(refused) > refusedFor:
			return errors.New("seed: the member ended while it was locked")
		}
		time.Sleep(unlockPause) // the guardian has nothing else to do, and nobody to ask
	}
}

func connectionRefused(err error) bool {
	return err != nil && (errors.Is(err, syscall.ECONNREFUSED) || strings.Contains(err.Error(), "connection refused"))
}

// tryUnlock reports whether the lock is gone for certain; the error of one that
// may not be is why.
func (m *member) tryUnlock() (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	h, err := m.hello(ctx)
	if err != nil {
		return false, err
	}
	if m.anew(h) {
		return true, nil
	}
	// A lock command under way may take the lock yet; to unlock helps it end.
	pending, unknown := m.pending(ctx)
	_, err = m.run(ctx, bson.D{{Key: "fsyncUnlock", Value: 1}})
	switch {
	case err == nil, notLocked(err):
		return !pending && unknown == nil, unknown
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return true,
			mongo.WithHint(fmt.Errorf("seed: the member stays locked: %w", err), "run db.fsyncUnlock() as a user who may")
	}
	return false, err
}

func notLocked(err error) bool {
	var reply driver.CommandError
	return mongo.IsCode(err, codeNotLocked) || errors.As(err, &reply) && reply.Message == notLockedText
}

// pending ends a lock command of ours that is still under way. After an error nobody
// knows whether one is.
func (m *member) pending(ctx context.Context) (bool, error) {
	ops, listed, err := m.operations(ctx, bson.E{Key: "appName", Value: m.app},
		bson.E{Key: "command.fsync", Value: bson.D{{Key: "$exists", Value: true}}})
	if err == nil && !listed {
		err = errors.New("the member does not list its operations")
	}
	if err != nil {
		return false, fmt.Errorf("seed: look for the lock command: %w", err)
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
