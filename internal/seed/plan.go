package seed

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
)

// Plan says what would be done, and whether anything stands in the way.
type Plan struct {
	Way    Way           `json:"way"`
	Why    string        `json:"why"`
	Origin Origin        `json:"origin"`
	Files  int           `json:"files"`
	Bytes  int64         `json:"bytes"`
	Checks precheck.List `json:"checks"`

	journal    bool // there is one
	lostTables bool // there are some where a mongod removes them
}

const noJournalHint = "see where the member keeps it; millrace copies what is in the data directory, or behind " +
	"links there"

func (p *Plan) add(level precheck.Level, name, message, hint string) {
	p.Checks.Add(level, name, message, hint)
}

// SourceOptions name the member to copy.
type SourceOptions struct {
	// URI is a connection string of this one member; empty is a member that is
	// shut down.
	URI    string
	DBPath string
	Way    Way // empty chooses
	// AllowPrimary and YesBlockAllWrites both have to be set to lock a primary.
	AllowPrimary, YesBlockAllWrites bool
	// Rate is the limit of the copy in bytes a second, for estimates; 0 is none.
	Rate int64

	chosen bool // Way was found to work before: no backup cursor is opened to see
}

// Inspect looks at a member and chooses the way.
func Inspect(ctx context.Context, o SourceOptions) (*Plan, error) {
	p := &Plan{}
	if err := p.inspectFiles(o.DBPath); err != nil {
		return nil, err
	}
	if o.URI == "" {
		if o.Way != "" && o.Way != WayStopped {
			return nil, fmt.Errorf("seed: way %s needs the address of the member", o.Way)
		}
		p.Way, p.Why = WayStopped, "no address of the member was given, so it has to be shut down"
		p.Origin.State = "stopped"
		p.inspectStopped(o.DBPath)
		return p, nil
	}
	if o.Way == WayStopped {
		return nil, mongo.WithHint(errors.New("seed: a stopped member has no address"),
			"leave out its address, or choose another way")
	}
	m, err := connectMember(ctx, o.URI, "millrace-seed")
	if err != nil {
		return nil, err
	}
	defer m.close()
	if err := p.inspectServer(ctx, m, o); err != nil {
		return nil, err
	}
	p.choose(ctx, m, o)
	return p, nil
}

// inspectFiles reads what the data directory says of itself.
func (p *Plan) inspectFiles(dir string) error {
	d, err := openDataDir(dir)
	if err != nil {
		return err
	}
	raw, err := d.ReadFile(storageFile)
	if err != nil {
		return err
	}
	doc := bson.Raw(raw)
	if doc.Validate() != nil {
		return fmt.Errorf("seed: %s of %s cannot be read", storageFile, dir)
	}
	if engine, _ := doc.Lookup("storage", "engine").StringValueOK(); engine != "wiredTiger" {
		p.add(precheck.Fail, "storage engine", fmt.Sprintf("the source uses %q", engine),
			"only WiredTiger's files can be copied")
	}
	p.Origin.Storage.DirectoryPerDB, p.Origin.Storage.DirectoryForIndexes = d.storage.DirectoryPerDB,
		d.storage.DirectoryForIndexes
	all, err := d.list()
	if err != nil {
		return err
	}
	for _, f := range all.files {
		p.Bytes += f.Size
		p.journal = p.journal || inJournal(f.Path)
		p.lostTables = p.lostTables || strings.HasPrefix(f.Path, "_tmp/")
	}
	p.Files = len(all.files)
	p.inspectOthers(d, all)
	return nil
}

// inspectOthers looks at what is not copied.
func (p *Plan) inspectOthers(d *dataDir, all *inventory) {
	there := func(name string) bool { _, err := os.Lstat(d.at(name)); return err == nil }
	if there(keyStore) || there(keyDB) {
		p.add(precheck.Fail, "encryption", "the source is encrypted at rest",
			"its keys are not copied; this is not supported")
	}
	if there(newSetMark) {
		p.add(precheck.Fail, "data directory", "it is a clone that was not completed: it holds "+newSetMark,
			"copy another member")
	}
	if there("_repair_incomplete") {
		p.add(precheck.Fail, "data directory", "a repair of it was not completed: it holds _repair_incomplete",
			"complete the repair, or copy another member")
	}
	if p.lostTables { // seen with 6.0.5, which then ends at the first read of that database
		p.add(precheck.Fail, "database _tmp", "its files are in the directory _tmp, which a mongod empties when it starts",
			"rename its collections into another database, and drop it")
	}
	if all.foreigner > 0 {
		more := ""
		if n := all.foreigner - len(all.foreign); n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		p.add(precheck.Warn, "other files", "not the server's, as far as is known, and not copied: "+strings.Join(all.foreign,
			", ")+more, "copy by hand what the new member needs of them")
	}
}

func (p *Plan) inspectStopped(dir string) {
	d, err := openDataDir(dir)
	if err != nil {
		return // inspectFiles has just opened it
	}
	lock, err := lockDirectory(d, false)
	if err != nil {
		p.add(precheck.Fail, "source state", err.Error(),
			"shut the mongod down cleanly, or give its address to copy it while it runs")
		return
	}
	defer lock.Close()
	if info, err := lock.Stat(); err == nil && info.Size() > 0 {
		p.add(precheck.Warn, "source state", "the member was not shut down cleanly",
			"the copy recovers as the member itself would")
		if !p.journal {
			p.add(precheck.Fail, "journal", "there is no journal in the data directory, without which nothing is known of what "+
				"came after the last checkpoint", noJournalHint)
		}
	}
}

// inspectServer asks the running member.
func (p *Plan) inspectServer(ctx context.Context, m *member, o SourceOptions) error {
	h, err := m.hello(ctx)
	if err != nil {
		return err
	}
	p.Origin.Host, p.Origin.SetName = h.Me, h.SetName
	switch {
	case h.SetName == "":
		p.Origin.State = "standalone"
		p.add(precheck.Fail, "source state", "the source is no member of a replica set",
			"millrace sync copies from a standalone server")
	case h.Primary:
		p.Origin.State = "PRIMARY"
	case h.Secondary:
		p.Origin.State = "SECONDARY"
	default:
		p.add(precheck.Fail, "source state", "the source is neither primary nor secondary",
			"wait until it is, or copy another member")
	}
	status, err := m.run(ctx, bson.D{{Key: "serverStatus", Value: 1}})
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("seed: ask the member for its status: %w", err),
			"the user needs the role clusterMonitor")
	}
	p.Origin.Version, _ = status.Lookup("version").StringValueOK()
	if engine, _ := status.Lookup("storageEngine", "name").StringValueOK(); engine != "wiredTiger" {
		p.add(precheck.Fail, "storage engine", fmt.Sprintf("the source uses %q", engine),
			"only WiredTiger's files can be copied")
	}
	p.samePlace(status, o.DBPath)
	p.backupRuns(ctx, m, status)
	if !p.journal {
		p.add(precheck.Fail, "journal", "there is no journal in the data directory", noJournalHint)
	}
	p.inspectOptions(ctx, m)
	if fcv, err := m.run(ctx,
		bson.D{{Key: "getParameter", Value: 1}, {Key: "featureCompatibilityVersion", Value: 1}}); err == nil {
		p.Origin.FCV, _ = fcv.Lookup("featureCompatibilityVersion", "version").StringValueOK()
	}
	if h.SetName != "" {
		p.inspectReplication(ctx, m)
		p.window(ctx, m, o.Rate)
	}
	return nil
}

// samePlace makes sure that the directory is the one that this mongod uses.
func (p *Plan) samePlace(status bson.Raw, dir string) {
	pid, ok := status.Lookup("pid").AsInt64OK()
	raw, err := os.ReadFile(filepath.Join(dir, "mongod.lock"))
	if err != nil || !ok {
		p.add(precheck.Warn, "data directory", "it cannot be told whether the directory is the member's",
			"make sure that it is")
		return
	}
	if text := strings.TrimSpace(string(raw)); text != strconv.FormatInt(pid, 10) {
		p.add(precheck.Fail, "data directory",
			fmt.Sprintf("the member's process is %d, the directory belongs to %q", pid, text),
			"name the dbPath of the member whose address is given, and run on its machine (in its container)")
	}
}

func (p *Plan) backupRuns(ctx context.Context, m *member, status bson.Raw) {
	op, err := m.run(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}})
	if err != nil {
		p.add(precheck.Fail, "privileges", "the member does not tell what it does: "+err.Error(),
			"the user needs the role hostManager, or backup and clusterMonitor")
		return
	}
	if locked, _ := op.Lookup("fsyncLock").BooleanOK(); locked {
		p.add(precheck.Fail, "other backups", "the member is locked",
			"another backup runs, or left its lock behind: db.fsyncUnlock()")
	}
	if open, _ := status.Lookup("storageEngine", "backupCursorOpen").BooleanOK(); open {
		p.add(precheck.Fail, "other backups", "a backup cursor is open on the member", "wait for that backup to end")
	}
}

func (p *Plan) inspectOptions(ctx context.Context, m *member) {
	raw, err := m.run(ctx, bson.D{{Key: "getCmdLineOpts", Value: 1}})
	if err != nil {
		return // storage.bson said the rest
	}
	p.Origin.Storage.Compressor, _ = raw.Lookup("parsed", "storage", "wiredTiger", "collectionConfig", "blockCompressor").
		StringValueOK()
	p.Origin.ClusterRole, _ = raw.Lookup("parsed", "sharding", "clusterRole").StringValueOK()
	if on, _ := raw.Lookup("parsed", "security", "enableEncryption").BooleanOK(); on {
		p.add(precheck.Fail, "encryption", "the source is encrypted at rest",
			"its keys are not copied; this is not supported")
	}
	config, _ := raw.Lookup("parsed", "storage", "wiredTiger", "engineConfig", "configString").StringValueOK()
	p.inspectEngine(config)
}

// inspectEngine looks at settings of the engine itself, which mongod passes on.
func (p *Plan) inspectEngine(config string) {
	config = strings.Join(strings.Fields(config), "")
	if regexp.MustCompile(`(^|,)log=\([^)]*\bpath=`).MatchString(config) {
		p.add(precheck.Fail, "journal", "the engine's settings keep the journal elsewhere: "+config,
			"replace log=(path=…) by a link in the data directory, which is followed")
	}
	if regexp.MustCompile(`(^|,)direct_io=\(?[^,()]`).MatchString(config) {
		p.add(precheck.Fail, "direct I/O", "the engine writes past the kernel: "+config+"; it cannot be told which files "+
			"are unchanged", "shut the member down and copy it then, without its address")
	}
}

// inspectReplication looks at lag, delay and the oplog's window.
func (p *Plan) inspectReplication(ctx context.Context, m *member) {
	if raw, err := m.run(ctx, bson.D{{Key: "replSetGetStatus", Value: 1}}); err == nil {
		p.lag(raw)
	}
	if raw, err := m.run(ctx, bson.D{{Key: "replSetGetConfig", Value: 1}}); err == nil {
		p.delay(raw)
	}
	oldest, _ := oplogEnd(ctx, m.client, 1) // zero is not known
	newest, _ := oplogEnd(ctx, m.client, -1)
	p.Origin.Oplog = newest
	if newest.IsZero() || oldest.IsZero() {
		return
	}
	p.Origin.WindowSecs = newest.Time().Sub(oldest.Time()).Seconds()
}

// oplogEnd is the oldest (1) or newest (-1) position of a member's oplog.
func oplogEnd(ctx context.Context, c *driver.Client, direction int) (at mongo.OpTime, err error) {
	err = c.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: direction}}).
			SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}})).Decode(&at)
	return at, err
}

type setStatus struct {
	SyncSource string `bson:"syncSourceHost"` // whom it follows
	Optimes    struct {
		Committed mongo.OpTime `bson:"lastCommittedOpTime"`
	} `bson:"optimes"`
	Members []struct {
		Self   bool         `bson:"self"`
		Name   string       `bson:"name"`
		State  string       `bson:"stateStr"`
		Health float64      `bson:"health"` // 0 is unreachable
		Op     mongo.OpTime `bson:"optime"`
		Date   time.Time    `bson:"optimeDate"`
	} `bson:"members"`
}

func (p *Plan) lag(raw bson.Raw) {
	var st setStatus
	if bson.Unmarshal(raw, &st) != nil {
		return
	}
	var newest, own time.Time
	for _, m := range st.Members {
		if m.Self {
			own = m.Date
		}
		if m.Date.After(newest) {
			newest = m.Date
		}
	}
	p.Origin.LagSecs = max(newest.Sub(own).Seconds(), 0)
	if p.Origin.LagSecs > 60 {
		p.add(precheck.Warn, "lag", fmt.Sprintf("the source is %.0f s behind", p.Origin.LagSecs),
			"the new member begins as far behind; copy one that is not")
	}
}

func (p *Plan) delay(raw bson.Raw) {
	var c struct {
		Config struct {
			Members []struct {
				Host  string `bson:"host"`
				Delay int64  `bson:"secondaryDelaySecs"`
				Slave int64  `bson:"slaveDelay"`
			} `bson:"members"`
		} `bson:"config"`
	}
	if bson.Unmarshal(raw, &c) != nil {
		return
	}
	for _, m := range c.Config.Members {
		if d := max(m.Delay, m.Slave); m.Host == p.Origin.Host && d > 0 {
			p.add(precheck.Fail, "delay", fmt.Sprintf("the source is delayed by %d s", d), "copy a member without delay")
		}
	}
}

// choose picks the way and says why.
func (p *Plan) choose(ctx context.Context, m *member, o SourceOptions) {
	p.Way, p.Why = o.Way, "asked for"
	if o.Way != WayLock && !o.chosen {
		p.tryCursor(ctx, m, o)
	}
	if p.Way == WayCursor {
		p.add(precheck.Warn, "backup cursor", "millrace's use of $backupCursor is untested on a real server: it follows the "+
			"documentation, and was tested against an imitation",
			"verify the new member (millrace verify), or choose --way fsync-lock")
		return
	}
	if p.Origin.State == "PRIMARY" && (!o.AllowPrimary || !o.YesBlockAllWrites) {
		p.add(precheck.Fail, "source state",
			"the source is the primary: while it is locked nothing can be written to the whole set",
			"name a secondary, best a hidden one; or give both --allow-primary and --yes-block-all-writes")
	}
}

// tryCursor opens a backup cursor and closes it again: whether a server has it,
// and whether this user may, is told by nothing else.
func (p *Plan) tryCursor(ctx context.Context, m *member, o SourceOptions) {
	cur, err := m.admin.Aggregate(ctx, bson.A{bson.D{{Key: "$backupCursor", Value: bson.D{}}}})
	if err == nil {
		err = cur.Close(ctx)
	}
	has := "the server has $backupCursor, so that nothing is locked"
	switch {
	case err == nil, mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		p.Way, p.Why = WayCursor, has+" (untested on a real server)"
	case cursorIsOpen(err), cursorIsLocked(err):
		p.Way, p.Why = WayCursor, has+" (untested on a real server)"
		told := cursorError(err)
		p.add(precheck.Fail, "other backups", told.Error(), mongo.HintOf(told))
	case o.Way == WayCursor:
		told := cursorError(err)
		p.add(precheck.Fail, "backup cursor", told.Error(), mongo.HintOf(told))
	case mongo.IsCode(err, codeNoSuchStage), mongo.IsCode(err, codeCommandNotFound),
		mongo.IsCode(err, codeCommandNotSupported):
		p.Way, p.Why = WayLock, "the server has no $backupCursor ("+err.Error()+")"
	default:
		p.Way, p.Why = WayLock, "no $backupCursor could be opened ("+err.Error()+")"
	}
}

// assumedRate is the speed of a copy, in bytes a second, where no limit is set:
// what one disk or a fast network carries.
const assumedRate = 100 << 20

// window compares the time that the oplog will hold with the time that the copy
// may take. An oplog that is not full yet holds more than it does now.
func (p *Plan) window(ctx context.Context, m *member, rate int64) {
	if p.Origin.WindowSecs <= 0 {
		return
	}
	raw, err := m.client.Database("local").RunCommand(ctx, bson.D{{Key: "collStats", Value: "oplog.rs"}}).Raw()
	if err != nil {
		return // who may not ask gets no estimate
	}
	size, _ := raw.Lookup("size").AsInt64OK()
	limit, ok := raw.Lookup("maxSize").AsInt64OK()
	if !ok || size <= 0 {
		return
	}
	p.compareWindow(p.Origin.WindowSecs*max(float64(limit)/float64(size), 1), rate)
}

func (p *Plan) compareWindow(window float64, rate int64) {
	if rate <= 0 {
		rate = assumedRate
	}
	if takes := float64(p.Bytes) / float64(rate); takes > window/2 {
		p.add(precheck.Warn, "oplog window",
			fmt.Sprintf("the oplog holds about %.0f s of the present writes, the copy takes about %.0f s at %s a second", window,
				takes, humanize.Bytes(uint64(rate))), "make the oplog larger (replSetResizeOplog) or the copy faster; with a lock "+
				"or a backup cursor only the time after it counts")
	}
}
