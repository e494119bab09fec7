package seed

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo/readpref"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/pace"
	"github.com/millrace/millrace/internal/wire"
)

const (
	// cursorAlive is the time between two getMore commands: servers close a
	// cursor that nobody asked for ten minutes.
	cursorAlive = time.Minute
	// cursorOpenWait is how long a cursor is tried to be opened while
	// checkpoints get in the way.
	cursorOpenWait = 2 * time.Minute
	// cursorExtendWait bounds an extension, which waits until the set has
	// taken over what it is to reach.
	cursorExtendWait = 5 * time.Minute
	// cursorCloseWait bounds the attempt to close.
	cursorCloseWait = 15 * time.Second
)

// BackupCursor is a Pinner: $backupCursor of MongoDB Enterprise and Percona
// Server, by its documented format. It was never run against a real one.
type BackupCursor struct {
	URI string
	// Alive is the time between two signs of life; default one minute.
	Alive time.Duration
	Log   *slog.Logger
}

// backupCursor is an open one. Its commands carry no session: a cursor of a
// session outlives a client that was killed by half an hour, others by ten
// minutes.
type backupCursor struct {
	pool   *wire.Pool
	log    *slog.Logger
	id     int64
	coll   string
	backup bson.RawValue // zero if the server told none
	dbpath string
	end    mongo.OpTime // of the oplog when it was opened
	files  []File

	lost, stop, done chan struct{}
	release          sync.Once
	result           error
}

// Pin opens a cursor.
func (b *BackupCursor) Pin(ctx context.Context) (Pin, error) {
	opts, err := mongo.ParseURI(b.URI)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	pool, err := wire.Open(opts.SetDirect(true).SetAppName("millrace-seed").SetServerSelectionTimeout(selectionWait))
	if err != nil {
		return nil, errors.New("seed: the connection string cannot be used")
	}
	c := &backupCursor{pool: pool, log: logOr(b.Log),
		lost: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	if err := c.open(ctx); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), cursorCloseWait)
		defer cancel()
		if c.id != 0 {
			_ = c.kill(closing) // what went wrong is more to the point
		}
		_ = pool.Close(closing)
		return nil, err
	}
	go c.keepAlive(cmp.Or(max(b.Alive, 0), cursorAlive))
	return c, nil
}

// Files implements Pin.
func (c *backupCursor) Files() []File { return c.files }

// Lost implements Pin.
func (c *backupCursor) Lost() <-chan struct{} { return c.lost }

func (c *backupCursor) run(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	conn, err := c.pool.Checkout(ctx, wire.ByReadPreference(readpref.Nearest()))
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	body, err := conn.Run(ctx, "admin", cmd)
	return bson.Raw(body), err
}

// ask runs a command that replies with a cursor.
func (c *backupCursor) ask(ctx context.Context, cmd bson.D) (r cursorReply, err error) {
	raw, err := c.run(ctx, cmd)
	if err == nil {
		if err = bson.Unmarshal(raw, &r); err != nil {
			err = fmt.Errorf("the reply to %s cannot be read: %w", cmd[0].Key, err)
		}
	}
	return r, err
}

func (c *backupCursor) open(ctx context.Context) error {
	var last error
	wait, cancel := context.WithTimeout(ctx, cursorOpenWait)
	defer cancel()
	err := until(wait, time.Second, func() (bool, error) {
		reply, err := c.ask(ctx, stageCommand("$backupCursor", bson.D{}))
		if mongo.IsCode(err, codeCheckpointTookPlace) || mongo.IsCode(err, codeCursorNotNow) {
			last = err
			c.log.Info("the server cannot open a backup cursor just now, trying again", "error", err)
			return false, nil
		}
		if err != nil {
			return false, err
		}
		return true, c.readList(ctx, reply)
	})
	if err != nil && last != nil && wait.Err() != nil && ctx.Err() == nil {
		err = last
	}
	return cursorError(err)
}

func stageCommand(stage string, args bson.D) bson.D {
	return bson.D{{Key: "aggregate", Value: int32(1)}, {Key: "pipeline", Value: bson.A{bson.D{{Key: stage, Value: args}}}},
		{Key: "cursor", Value: bson.D{}}}
}

// cursorReply is a reply of a cursor.
type cursorReply struct {
	Cursor struct {
		ID    int64      `bson:"id"`
		NS    string     `bson:"ns"`
		First []bson.Raw `bson:"firstBatch"`
		Next  []bson.Raw `bson:"nextBatch"`
	} `bson:"cursor"`
}

// readList reads metadata and names until the server has no more to tell. The
// cursor stays open then: that is what pins the files.
func (c *backupCursor) readList(ctx context.Context, r cursorReply) error {
	c.id = r.Cursor.ID
	c.coll = strings.TrimPrefix(r.Cursor.NS, "admin.")
	for batch := r.Cursor.First; len(batch) > 0; {
		for _, doc := range batch {
			if err := c.listed(doc); err != nil {
				return err
			}
		}
		if c.id == 0 || len(c.files) > maxFiles {
			break
		}
		next, err := c.more(ctx)
		if err != nil {
			return err
		}
		batch = next
	}
	if c.id == 0 {
		return errors.New("the server closed it together with its list")
	}
	if len(c.files) == 0 || len(c.files) > maxFiles {
		return fmt.Errorf("it lists %d files", len(c.files))
	}
	return nil
}

func (c *backupCursor) more(ctx context.Context) ([]bson.Raw, error) {
	r, err := c.ask(ctx, bson.D{{Key: "getMore", Value: c.id}, {Key: "collection", Value: c.coll}})
	if err == nil && r.Cursor.ID != c.id {
		err = errCursorGone
	}
	return r.Cursor.Next, err
}

// listed takes one document of the list: the metadata, or a file. Every field
// may be missing.
func (c *backupCursor) listed(doc bson.Raw) error {
	if meta, ok := doc.Lookup("metadata").DocumentOK(); ok {
		if id, err := meta.LookupErr("backupId"); err == nil {
			c.backup = id
		}
		c.dbpath, _ = meta.Lookup("dbpath").StringValueOK()
		if end, ok := meta.Lookup("oplogEnd").DocumentOK(); ok {
			_ = bson.Unmarshal(end, &c.end) // only a hint where to extend to
		}
		return nil
	}
	f, err := c.file(doc)
	if err == nil {
		c.files = append(c.files, f)
	}
	return err
}

// file makes a name relative to the server's dbPath.
func (c *backupCursor) file(doc bson.Raw) (File, error) {
	name, _ := doc.Lookup("filename").StringValueOK()
	f := File{Path: path.Clean(name), Size: -1}
	if size, ok := doc.Lookup("fileSize").AsInt64OK(); ok {
		f.Size = size
	}
	if dir := path.Clean(c.dbpath); c.dbpath != "" && dir != "." {
		f.Path = strings.TrimPrefix(f.Path, strings.TrimSuffix(dir, "/")+"/")
	}
	if name == "" || path.IsAbs(f.Path) {
		return f, fmt.Errorf("it names %q, which is not in %q", name, c.dbpath)
	}
	return f, nil
}

// errCursorGone makes pullers begin another round with what they have.
var errCursorGone = fmt.Errorf("%w: the server closed the backup cursor",
	errNoRound) //nolint:gochecknoglobals // a sentinel

// keepAlive asks for more, of which there is none, so that the server does not
// give the cursor up.
func (c *backupCursor) keepAlive(every time.Duration) {
	defer close(c.done)
	ctx, cancel := endingWith(context.Background(), c.stop, nil)
	defer cancel()
	for pace.Pause(ctx, every) == nil {
		_, err := c.more(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case errors.Is(err, errCursorGone) || mongo.IsCode(err, codeCursorNotFound):
			close(c.lost)
			return
		case err != nil: // the end reports whether it stayed open
			c.log.Warn("the backup cursor gives no sign of life", "error", err)
		}
	}
}

// Extend implements Pin.
func (c *backupCursor) Extend(ctx context.Context) ([]File, mongo.OpTime, error) {
	if c.backup.IsZero() {
		return nil, c.end, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cursorExtendWait)
	defer cancel()
	st, err := c.positions(ctx)
	if err != nil {
		return nil, c.end, err
	}
	to := st.committed
	if to.Before(c.end) {
		to = c.end
	}
	if to.IsZero() {
		return nil, to, nil
	}
	reply, err := c.ask(ctx,
		stageCommand("$backupCursorExtend", bson.D{{Key: "backupId", Value: c.backup}, {Key: "timestamp", Value: to.TS}}))
	switch {
	case mongo.IsCode(err, codeNoSuchStage):
		c.log.Warn("the server cannot extend a backup cursor; the new member has to catch up from the oplog")
		return nil, c.end, nil
	case err != nil:
		return nil, to, mongo.WithHint(fmt.Errorf("seed: extend the backup cursor to %s: %w", to, err),
			"run it again: what is there will be used")
	}
	files, err := c.extension(ctx, reply)
	return files, to, err
}

// extension reads the list of an extension, whose cursor ends with it.
func (c *backupCursor) extension(ctx context.Context, r cursorReply) ([]File, error) {
	var files []File
	for {
		for _, doc := range slices.Concat(r.Cursor.First, r.Cursor.Next) {
			f, err := c.file(doc)
			if err != nil {
				return nil, fmt.Errorf("seed: extend the backup cursor: %w", err)
			}
			files = append(files, f)
		}
		coll := strings.TrimPrefix(r.Cursor.NS, "admin.")
		if r.Cursor.ID == 0 {
			return files, nil
		}
		if len(r.Cursor.First)+len(r.Cursor.Next) == 0 || len(files) > maxFiles { // it waits for more
			_, err := c.run(ctx, bson.D{{Key: "killCursors", Value: coll}, {Key: "cursors", Value: bson.A{r.Cursor.ID}}})
			return files, err
		}
		var err error
		r, err = c.ask(ctx, bson.D{{Key: "getMore", Value: r.Cursor.ID}, {Key: "collection", Value: coll}})
		if err != nil {
			return nil, fmt.Errorf("seed: extend the backup cursor: %w", err)
		}
	}
}

// Behind implements Pin.
func (c *backupCursor) Behind(ctx context.Context, at mongo.OpTime) (time.Duration, error) {
	st, err := c.positions(ctx)
	if err != nil {
		return 0, err
	}
	return max(st.own.Time().Sub(at.Time()), 0), nil
}

type positions struct{ committed, own mongo.OpTime }

// positions are the member's newest one, and the newest that no failover takes
// back as far as the member knows.
func (c *backupCursor) positions(ctx context.Context) (positions, error) {
	raw, err := c.run(ctx, bson.D{{Key: "replSetGetStatus", Value: int32(1)}})
	if err != nil {
		return positions{},
			mongo.NeedsRole(fmt.Errorf("seed: ask the member how far it is: %w", err), "the user needs the role clusterMonitor")
	}
	var st setStatus
	if err := bson.Unmarshal(raw, &st); err != nil {
		return positions{}, fmt.Errorf("seed: the member's status cannot be read: %w", err)
	}
	p := positions{committed: st.Optimes.Committed}
	for _, m := range st.Members {
		if m.Self {
			p.own = m.Op
		}
	}
	return p, nil
}

// Release implements Pin.
func (c *backupCursor) Release() error {
	c.release.Do(func() {
		close(c.stop)
		<-c.done
		ctx, cancel := context.WithTimeout(context.Background(), cursorCloseWait)
		defer cancel()
		c.result = c.kill(ctx)
		_ = c.pool.Close(ctx)
	})
	return c.result
}

// kill closes the cursor. A server that does not know it any more did not pin
// the files until now, for which there is no other sign.
func (c *backupCursor) kill(ctx context.Context) error {
	raw, err := c.run(ctx, bson.D{{Key: "killCursors", Value: c.coll}, {Key: "cursors", Value: bson.A{c.id}}})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: close the backup cursor: %w", err),
			"the server closes it by itself within ten minutes")
	}
	var r struct {
		Killed []int64 `bson:"cursorsKilled"`
	}
	if err := bson.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("seed: the reply to the closing of the backup cursor cannot be read: %w", err)
	}
	if !slices.Contains(r.Killed, c.id) {
		return errCursorGone
	}
	return nil
}

// What servers reply to $backupCursor. MongoDB's error list names 50915
// BackupCursorOpenConflictWithCheckpoint and calls it retriable; the others
// have no name, so that their text counts as well.
const (
	codeNoSuchStage         = 40324
	codeCommandNotFound     = 59
	codeCommandNotSupported = 115
	codeCursorNotFound      = 43
	codeCheckpointTookPlace = 50915
	codeCursorNotNow        = 50917
	codeCursorLocked        = 50885
	codeCursorIsOpen        = 50886
)

// cursorError adds what can be done about a cursor that does not open.
func cursorError(err error) error {
	if err == nil {
		return nil
	}
	wrapped := fmt.Errorf("seed: open a backup cursor: %w", err)
	switch {
	case cursorIsOpen(err):
		return mongo.WithHint(wrapped, "another backup runs on this member: wait for it to end, or copy another member")
	case cursorIsLocked(err):
		return mongo.WithHint(wrapped,
			"the member is locked by fsyncLock: another backup runs, or left its lock behind (db.fsyncUnlock())")
	case mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		return mongo.WithHint(wrapped,
			"checkpoints kept getting in the way, or the member cannot make one now: try again later, or use --way fsync-lock")
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		return mongo.WithHint(wrapped,
			"give the user a role that may run $backupCursor (see the server's documentation), or use --way fsync-lock")
	}
	return mongo.WithHint(wrapped, "use --way fsync-lock")
}

func cursorIsOpen(err error) bool {
	return mongo.IsCode(err, codeCursorIsOpen) || err != nil &&
		strings.Contains(err.Error(), "existing backup cursor must be closed")
}

func cursorIsLocked(err error) bool {
	return mongo.IsCode(err, codeCursorLocked) || err != nil && strings.Contains(strings.ToLower(err.Error()), "fsynclock")
}
