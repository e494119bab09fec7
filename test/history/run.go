package history

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
)

const (
	// commandTimeout turns a server that hangs into an error that names the step.
	commandTimeout = 2 * time.Minute
	// abortTimeout is for a server that is gone.
	abortTimeout = 5 * time.Second
	// held is how long a step is waited for that may have to wait for an open
	// transaction, before the next ones are started.
	held = 30 * time.Millisecond
	// stuck is how long nothing moves before open transactions are aborted.
	stuck = 300 * time.Millisecond
)

// Runner runs steps on a source. It belongs to one goroutine; Stats may be
// asked by others.
type Runner struct {
	Client   *mongo.Client
	Database string
	// Hook does the steps that are not for the source. Without it they are
	// left out.
	Hook func(context.Context, Step) error
	// Tolerate reports which errors do not end the run, besides those that are
	// a server's answer to a step. Nil is none.
	Tolerate func(error) bool

	mu      sync.Mutex
	writers map[int]*writer
	busy    int
	moved   chan struct{} // closed and replaced when a step is over
	err     error
	stats   Stats
}

// Stats count what was done.
type Stats struct {
	Done int64
	// Refused counts those of Done that the server refused, by its code.
	Refused map[int]int64
	// Left counts the steps of transactions that were over already.
	Left int64
}

// Refusals is the number of steps that the server refused.
func (s Stats) Refusals() (n int64) {
	for _, m := range s.Refused {
		n += m
	}
	return n
}

// writer runs its steps in their order.
type writer struct {
	queue   []Step
	running bool
	txn     int // 0: none is open
	session *mongo.Session
	at      bson.Timestamp // when it was prepared
	over    int            // the last transaction that ended
}

// Stats is a snapshot.
func (r *Runner) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := r.stats
	s.Refused = map[int]int64{}
	for k, v := range r.stats.Refused {
		s.Refused[k] = v
	}
	return s
}

// Ordered runs the steps one after the other. One that has to wait for an open
// transaction is overtaken by steps of other writers.
func (r *Runner) Ordered(ctx context.Context, steps []Step) error {
	for _, s := range steps {
		if r.local(s.Do) {
			r.enqueue(ctx, s)
			r.await(ctx, func() bool { return r.busy == 0 }, func() bool { return r.open() > 0 })
		} else if err := r.hook(ctx, s); err != nil {
			return err
		}
		if r.failed() != nil {
			break
		}
	}
	return r.settle(ctx)
}

// Free runs the steps of each writer in their order, all writers side by side.
func (r *Runner) Free(ctx context.Context, steps []Step) error {
	for len(steps) > 0 {
		n := slices.IndexFunc(steps, func(s Step) bool { return !r.local(s.Do) })
		if n < 0 {
			n = len(steps)
		}
		r.enqueue(ctx, steps[:n]...)
		if err := r.settle(ctx); err != nil {
			return err
		}
		steps = steps[n:]
		if len(steps) == 0 {
			break
		}
		if err := r.hook(ctx, steps[0]); err != nil {
			return err
		}
		steps = steps[1:]
	}
	return nil
}

// Close aborts what is open and waits for the writers.
func (r *Runner) Close(ctx context.Context) error {
	r.abortIdle(ctx)
	err := r.settle(ctx)
	r.abortIdle(ctx)
	return err
}

func (r *Runner) local(do Action) bool { return do != Target && do != Restart }

func (r *Runner) hook(ctx context.Context, s Step) error {
	if r.Hook == nil {
		return nil
	}
	return r.Hook(ctx, s)
}

func (r *Runner) failed() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// open counts the transactions that are open. The caller holds mu.
func (r *Runner) open() (n int) {
	for _, w := range r.writers {
		if w.txn != 0 {
			n++
		}
	}
	return n
}

// enqueue hands steps to their writers.
func (r *Runner) enqueue(ctx context.Context, steps ...Step) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.init()
	for _, s := range steps {
		w := r.writers[s.Writer]
		if w == nil {
			w = &writer{}
			r.writers[s.Writer] = w
		}
		w.queue = append(w.queue, s)
		r.busy++
	}
	for _, w := range r.writers {
		if !w.running && len(w.queue) > 0 {
			w.running = true
			go r.work(ctx, w)
		}
	}
}

// init makes what steps need. The caller holds mu.
func (r *Runner) init() {
	if r.writers == nil {
		r.writers, r.moved, r.stats.Refused = map[int]*writer{}, make(chan struct{}), map[int]int64{}
	}
}

// work runs a writer's queue until it is empty. The runner waits for it: while
// anything is queued, it is busy.
func (r *Runner) work(ctx context.Context, w *writer) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for len(w.queue) > 0 {
		s, failed := w.queue[0], r.err != nil
		w.queue = w.queue[1:]
		r.mu.Unlock()
		var left bool
		var err error
		if !failed {
			left, err = r.step(ctx, w, s)
		}
		r.mu.Lock()
		r.count(s, left, err)
		r.busy--
		close(r.moved)
		r.moved = make(chan struct{})
	}
	w.running = false
}

// count books a step's end.
func (r *Runner) count(s Step, left bool, err error) {
	var refused mongo.ServerError
	switch {
	case left:
		r.stats.Left++
	case err == nil:
		r.stats.Done++
	case errors.As(err, &refused) && !mongo.IsNetworkError(err):
		r.stats.Done++
		code := 0
		if codes := refused.ErrorCodes(); len(codes) > 0 {
			code = codes[0]
		}
		r.stats.Refused[code]++
	case r.Tolerate != nil && r.Tolerate(err):
	case r.err == nil:
		r.err = fmt.Errorf("step %.300s: %w", s, err)
	}
}

// await waits until done, or for a short while only if brief.
func (r *Runner) await(ctx context.Context, done, brief func() bool) {
	timer := time.NewTimer(held)
	defer timer.Stop()
	for {
		r.mu.Lock()
		over, short, moved := done(), brief(), r.moved
		r.mu.Unlock()
		if over {
			return
		}
		after := timer.C
		if !short {
			after = nil
		}
		select {
		case <-moved:
		case <-after:
			return
		case <-ctx.Done():
			return
		}
	}
}

// settle waits until no writer has anything to do. Where nothing moves because
// of an open transaction whose writer has no step left, it is aborted.
func (r *Runner) settle(ctx context.Context) error {
	for {
		r.mu.Lock()
		busy, moved, err := r.busy, r.moved, r.err
		r.mu.Unlock()
		if busy == 0 {
			return err
		}
		select { // a writer ends with its command, also when ctx is over
		case <-moved:
		case <-time.After(stuck):
			r.abortIdle(ctx)
		}
	}
}

// abortIdle aborts the transactions of writers that have nothing to do.
func (r *Runner) abortIdle(ctx context.Context) {
	r.mu.Lock()
	var idle []*writer
	for _, w := range r.writers {
		if !w.running && w.txn != 0 {
			idle = append(idle, w)
		}
	}
	r.mu.Unlock()
	for _, w := range idle {
		r.abort(ctx, w)
	}
}

// abort ends the writer's transaction, if the server lets it.
func (r *Runner) abort(ctx context.Context, w *writer) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abortTimeout)
	defer cancel()
	_, _ = r.end(ctx, w, Abort)
}

// step runs one step. left reports that its transaction was over.
func (r *Runner) step(ctx context.Context, w *writer, s Step) (left bool, err error) {
	ctx, cancel := context.WithTimeout(ctx, commandTimeout)
	defer cancel()
	if s.Txn != 0 && s.Txn == w.over {
		return true, nil
	}
	if s.Txn != w.txn && w.txn != 0 { // its end is not in the history
		if _, err := r.end(ctx, w, Abort); err != nil {
			return false, err
		}
	}
	switch s.Do {
	case Commit, Abort:
		return r.end(ctx, w, s.Do)
	case Prepare:
		return r.prepare(ctx, w)
	}
	if s.Txn != 0 && w.txn == 0 {
		if err := r.begin(w, s.Txn); err != nil {
			return false, err
		}
	}
	if w.session != nil {
		ctx = mongo.NewSessionContext(ctx, w.session)
	}
	if s.Do == Fill {
		err = fill(ctx, r.Client.Database(Name(r.Database, s.DB)), s.Cmd)
	} else {
		err = Command(ctx, r.Client, r.Database, s)
	}
	if err != nil && w.txn != 0 { // the server has aborted it
		r.abort(ctx, w)
	}
	return false, err
}

func (r *Runner) begin(w *writer, txn int) error {
	session, err := r.Client.StartSession()
	if err == nil {
		err = session.StartTransaction()
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	w.session, w.txn = session, txn
	return err
}

// end ends the writer's transaction.
func (r *Runner) end(ctx context.Context, w *writer, how Action) (left bool, err error) {
	if w.session == nil {
		return true, nil
	}
	switch {
	case how == Commit && !w.at.IsZero(): // the driver would send a plain one
		err = r.Client.Database("admin").RunCommand(mongo.NewSessionContext(ctx, w.session),
			bson.D{{Key: "commitTransaction", Value: 1}, {Key: "commitTimestamp", Value: w.at}}).Err()
	case how == Commit:
		err = w.session.CommitTransaction(ctx)
	default:
		err = w.session.AbortTransaction(ctx)
	}
	w.session.EndSession(context.WithoutCancel(ctx))
	r.mu.Lock()
	defer r.mu.Unlock()
	w.over, w.txn, w.session, w.at = w.txn, 0, nil, bson.Timestamp{}
	return false, err
}

// prepare makes the writer's transaction one that only a Commit or Abort ends.
func (r *Runner) prepare(ctx context.Context, w *writer) (left bool, err error) {
	if w.session == nil || !w.at.IsZero() {
		return true, nil
	}
	var reply struct {
		At bson.Timestamp `bson:"prepareTimestamp"`
	}
	err = r.Client.Database("admin").RunCommand(mongo.NewSessionContext(ctx, w.session),
		bson.D{{Key: "prepareTransaction", Value: 1}, {Key: "writeConcern", Value: bson.D{{Key: "w", Value: "majority"}}}}).
		Decode(&reply)
	if err != nil {
		r.abort(ctx, w) // the server has
		return false, err
	}
	w.at = reply.At
	return false, nil
}

// Name is the name of a step's database.
func Name(base, db string) string {
	if db == "" {
		return base
	}
	return base + "-" + db
}

// Command runs a step's command. Errors of single writes are errors.
func Command(ctx context.Context, client *mongo.Client, base string, s Step) error {
	_, err := Reply(ctx, client, base, s)
	return err
}

// Reply runs a step's command as Command does and returns the answer.
func Reply(ctx context.Context, client *mongo.Client, base string, s Step) (bson.Raw, error) {
	cmd, db, err := s.resolve(base)
	if err != nil {
		return nil, err
	}
	reply, err := client.Database(db).RunCommand(ctx, cmd).Raw()
	if err != nil {
		return reply, err
	}
	if v, lookupErr := reply.LookupErr("writeErrors", "0", "code"); lookupErr == nil {
		return reply, mongo.CommandError{Code: v.Int32(), Message: reply.Lookup("writeErrors").String()}
	}
	return reply, nil
}

// resolve puts the names of databases into the command.
func (s Step) resolve(base string) (cmd any, db string, err error) {
	first, err := s.Cmd.IndexErr(0)
	if err != nil {
		return nil, "", fmt.Errorf("step without a command: %w", err)
	}
	db = Name(base, s.DB)
	k := first.Key()
	if k != "renameCollection" && k != "aggregate" && k != "applyOps" {
		return s.Cmd, db, nil
	}
	var d bson.D
	if err := bson.Unmarshal(s.Cmd, &d); err != nil {
		return nil, "", err
	}
	if k != "aggregate" {
		db = "admin"
	}
	return withNames(d, base), db, nil
}

// withNames replaces "DB" at the beginning of the namespaces of renames and
// applyOps, and of the databases of stages that write.
func withNames(x any, base string) any {
	switch x := x.(type) {
	case bson.D:
		for i, e := range x {
			name, isString := e.Value.(string)
			if isString && strings.HasPrefix(name, "DB") &&
				slices.Contains([]string{"renameCollection", "to", "db", "ns"}, e.Key) {
				x[i].Value = base + name[2:]
			} else {
				x[i].Value = withNames(e.Value, base)
			}
		}
	case bson.A:
		for i := range x {
			x[i] = withNames(x[i], base)
		}
	}
	return x
}

// fill inserts the documents of a Filling.
func fill(ctx context.Context, db *mongo.Database, cmd bson.Raw) error {
	var f Filling
	if err := bson.Unmarshal(cmd, &f); err != nil {
		return err
	}
	pad := strings.Repeat("x", f.Pad)
	each := max(1, min(1000, 10<<20/(f.Pad+200)))
	for lo := f.From; lo < f.To; lo += each {
		var docs bson.A
		for i := lo; i < min(lo+each, f.To); i++ {
			docs = append(docs, bson.D{{Key: "_id", Value: i}, {Key: "n", Value: i % 50}, {Key: "k", Value: i},
				{Key: "by", Value: 0},
				{Key: "v", Value: bson.A{1, 2, 3}},
				{Key: "o", Value: bson.D{{Key: "a", Value: i}, {Key: "b", Value: bson.A{bson.D{{Key: "a", Value: 1}}}}}},
				{Key: "pad", Value: pad}})
		}
		r, err := db.RunCommand(ctx, bson.D{{Key: "insert", Value: f.Coll}, {Key: "documents", Value: docs},
			{Key: "ordered", Value: false}}).Raw()
		if err != nil {
			return err
		}
		if v, lookupErr := r.LookupErr("writeErrors", "0", "code"); lookupErr == nil {
			return mongo.CommandError{Code: v.Int32(), Message: "fill"}
		}
	}
	return nil
}
