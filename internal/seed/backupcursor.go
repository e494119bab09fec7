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
	// cursorAlive is the time between two getMore commands: servers close a cursor after ten minutes without one.
	cursorAlive      = time.Minute
	cursorOpenWait   = 2 * time.Minute // bounds retries while checkpoints prevent a cursor
	cursorExtendWait = 5 * time.Minute // bounds an extension, which waits for the set's majority
	cursorCloseWait  = 15 * time.Second
)

// BackupCursor pins the files of a member that works, by $backupCursor of MongoDB Enterprise and Percona Server in its
// documented format. It was never run against a real server.
type BackupCursor struct {
	URI   string
	Alive time.Duration // between two getMore commands; default one minute
	Log   *slog.Logger
}

// backupCursor is an open cursor. The member goes on writing, but only where the listed state has nothing. The commands
// carry no session: servers keep a session's cursor half an hour after its client was killed, others ten minutes.
type backupCursor struct {
	pool     *wire.Pool
	log      *slog.Logger
	id       int64
	coll     string
	backup   bson.RawValue // its id; zero if the server has none
	dbpath   string
	oplogEnd mongo.OpTime // when it was opened
	files    []File       // to copy; a negative size is not known

	lost       chan struct{} // closed when the server closed the cursor
	stop, done chan struct{}
	release    func() error // its error says that the files were not pinned all the time
}

func (b *BackupCursor) open(ctx context.Context) (*backupCursor, error) {
	opts, err := mongo.ParseURI(b.URI)
	if err != nil {
		return nil, fmt.Errorf("seed: %w", err)
	}
	pool, err := wire.Open(opts.SetDirect(true).SetAppName("millrace-seed").SetServerSelectionTimeout(selectionWait))
	if err != nil {
		return nil, errBadURI
	}
	c := &backupCursor{pool: pool, log: cmp.Or(b.Log, slog.New(slog.DiscardHandler)),
		lost: make(chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	if err := c.open(ctx); err != nil {
		closing, cancel := context.WithTimeout(context.WithoutCancel(ctx), cursorCloseWait)
		defer cancel()
		if c.id != 0 {
			_ = c.kill(closing) // the first error counts
		}
		_ = pool.Close(closing)
		return nil, err
	}
	c.release = sync.OnceValue(c.end)
	go c.keepAlive(cmp.Or(max(b.Alive, 0), cursorAlive))
	return c, nil
}

func (c *backupCursor) run(ctx context.Context, cmd bson.D) (bson.Raw, error) {
	conn, err := c.pool.Checkout(ctx, wire.ByReadPreference(readpref.Nearest()))
	if err != nil {
		return nil, err
	}
	defer conn.Release()
	body, err := conn.Run(ctx, "admin", cmd)
	return bson.Raw(body), err
}

func (c *backupCursor) ask(ctx context.Context, cmd bson.D) (r cursorReply, err error) {
	raw, err := c.run(ctx, cmd)
	if err == nil {
		if err = bson.Unmarshal(raw, &r); err != nil {
			err = fmt.Errorf("cannot read the reply to %s: %w", cmd[0].Key, err)
		}
	}
	return r, err
}

func (c *backupCursor) open(ctx context.Context) error {
	var last error
	wait, cancel := context.WithTimeout(ctx, cursorOpenWait)
	defer cancel()
	err := pace.Until(wait, time.Second, func() (bool, error) {
		reply, err := c.ask(ctx, stageCommand("$backupCursor", bson.D{}))
		if mongo.IsCode(err, codeCheckpointTookPlace) || mongo.IsCode(err, codeCursorNotNow) {
			last = err
			c.log.Info("the server cannot open a backup cursor now; retrying", "error", err)
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

type cursorReply struct {
	Cursor struct {
		ID    int64      `bson:"id"`
		NS    string     `bson:"ns"`
		First []bson.Raw `bson:"firstBatch"`
		Next  []bson.Raw `bson:"nextBatch"`
	} `bson:"cursor"`
}

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
		var err error
		if batch, err = c.more(ctx); err != nil {
			return err
		}
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

// listed reads the metadata or a file. Any field may be missing.
func (c *backupCursor) listed(doc bson.Raw) error {
	if meta, ok := doc.Lookup("metadata").DocumentOK(); ok {
		if id, err := meta.LookupErr("backupId"); err == nil {
			c.backup = id
		}
		c.dbpath, _ = meta.Lookup("dbpath").StringValueOK()
		if end, ok := meta.Lookup("oplogEnd").DocumentOK(); ok {
			_ = bson.Unmarshal(end, &c.oplogEnd) // only a hint for the extension
		}
		return nil
	}
	f, err := c.file(doc)
	if err == nil {
		c.files = append(c.files, f)
	}
	return err
}

// file returns a file, by its name below the server's dbPath.
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
var errCursorGone = fmt.Errorf("%w: the server closed the backup cursor", errNoRound)

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
		case err != nil: // kill reports whether it stayed open
			c.log.Warn("the getMore of the backup cursor failed", "error", err)
		}
	}
}

// extend returns journal files that bring the copy up to the returned position; none if the server cannot.
func (c *backupCursor) extend(ctx context.Context) ([]File, mongo.OpTime, error) {
	if c.backup.IsZero() {
		return nil, c.oplogEnd, nil
	}
	ctx, cancel := context.WithTimeout(ctx, cursorExtendWait)
	defer cancel()
	committed, _, err := c.positions(ctx)
	if err != nil {
		return nil, c.oplogEnd, err
	}
	to := mongo.MaxOpTime(c.oplogEnd, committed)
	if to.IsZero() {
		return nil, to, nil
	}
	reply, err := c.ask(ctx,
		stageCommand("$backupCursorExtend", bson.D{{Key: "backupId", Value: c.backup}, {Key: "timestamp", Value: to.TS}}))
	switch {
	case mongo.IsCode(err, codeNoSuchStage):
		c.log.Warn("the server cannot extend a backup cursor; the new member has to catch up from the oplog")
		return nil, c.oplogEnd, nil
	case err != nil:
		return nil, to, mongo.WithHint(fmt.Errorf("seed: cannot extend the backup cursor to %s: %w", to, err),
			"run it again: it uses what is there")
	}
	files, err := c.extension(ctx, reply)
	return files, to, err
}

func (c *backupCursor) extension(ctx context.Context, r cursorReply) ([]File, error) {
	var files []File
	for {
		for _, doc := range slices.Concat(r.Cursor.First, r.Cursor.Next) {
			f, err := c.file(doc)
			if err != nil {
				return nil, fmt.Errorf("seed: cannot extend the backup cursor: %w", err)
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
			return nil, fmt.Errorf("seed: cannot extend the backup cursor: %w", err)
		}
	}
}

func (c *backupCursor) behind(ctx context.Context, at mongo.OpTime) (time.Duration, error) {
	_, own, err := c.positions(ctx)
	if err != nil {
		return 0, err
	}
	return max(own.Time().Sub(at.Time()), 0), nil
}

// positions returns what the member knows to be committed by a majority, and its own position.
func (c *backupCursor) positions(ctx context.Context) (committed, own mongo.OpTime, err error) {
	raw, err := c.run(ctx, bson.D{{Key: "replSetGetStatus", Value: int32(1)}})
	if err != nil {
		return committed, own, mongo.NeedsRole(fmt.Errorf("seed: cannot read the member's status: %w", err),
			"the user needs the role clusterMonitor")
	}
	var st mongo.SetStatus
	if err := bson.Unmarshal(raw, &st); err != nil {
		return committed, own, fmt.Errorf("seed: cannot read the member's status: %w", err)
	}
	return st.OpTimes.Committed, st.Self().Applied, nil
}

func (c *backupCursor) end() error {
	close(c.stop)
	<-c.done
	ctx, cancel := context.WithTimeout(context.Background(), cursorCloseWait)
	defer cancel()
	err := c.kill(ctx)
	_ = c.pool.Close(ctx)
	return err
}

// kill closes the cursor. It fails if the server closed it earlier: only this reply shows that.
func (c *backupCursor) kill(ctx context.Context) error {
	raw, err := c.run(ctx, bson.D{{Key: "killCursors", Value: c.coll}, {Key: "cursors", Value: bson.A{c.id}}})
	if err != nil {
		return mongo.WithHint(fmt.Errorf("seed: cannot close the backup cursor: %w", err),
			"the server closes it by itself within ten minutes")
	}
	var r struct {
		Killed []int64 `bson:"cursorsKilled"`
	}
	if err := bson.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("seed: cannot read the reply to the close of the backup cursor: %w", err)
	}
	if !slices.Contains(r.Killed, c.id) {
		return errCursorGone
	}
	return nil
}

// Replies to $backupCursor. MongoDB's error list calls 50915, BackupCursorOpenConflictWithCheckpoint, retriable; the
// others have no name, so that their text counts as well.
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

func cursorError(err error) error {
	if err == nil {
		return nil
	}
	hint := "use --way fsync-lock"
	switch {
	case cursorIsOpen(err):
		hint = "another backup runs on this member: wait for it to end, or copy another member"
	case cursorIsLocked(err):
		hint = "the member is locked by fsyncLock: another backup runs, or left its lock behind (db.fsyncUnlock())"
	case mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		hint = "checkpoints prevent it, or the member cannot make one now: try again later, or use --way fsync-lock"
	case mongo.IsCode(err, mongo.CodeUnauthorized):
		hint = "give the user a role that may run $backupCursor (see the server's documentation), or use --way fsync-lock"
	}
	return mongo.WithHint(fmt.Errorf("seed: cannot open a backup cursor: %w", err), hint)
}

func cursorIsOpen(err error) bool {
	return mongo.IsCode(err, codeCursorIsOpen) || err != nil &&
		strings.Contains(err.Error(), "existing backup cursor must be closed")
}

func cursorIsLocked(err error) bool {
	return mongo.IsCode(err, codeCursorLocked) || err != nil && strings.Contains(strings.ToLower(err.Error()), "fsynclock")
}
