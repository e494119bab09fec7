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

	"github.com/dustin/go-humanize"
	"go.mongodb.org/mongo-driver/v2/bson"
	driver "go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/precheck"
)

// Plan is what a copy would do, with the checks that may prevent it.
type Plan struct {
	Way    Way           `json:"way"`
	Why    string        `json:"why"`
	Origin Origin        `json:"origin"`
	Files  int           `json:"files"`
	Bytes  int64         `json:"bytes"`
	Checks precheck.List `json:"checks"`

	journal    bool // the directory has one
	lostTables bool // it has tables where a mongod removes them
}

const noJournalHint = "find where the member keeps it; millrace copies the data directory, and what links in it lead to"

func (p *Plan) fail(name, message, hint string) { p.Checks.Add(precheck.Fail, name, message, hint) }
func (p *Plan) warn(name, message, hint string) { p.Checks.Add(precheck.Warn, name, message, hint) }

// SourceOptions name the member to copy.
type SourceOptions struct {
	URI    string // of this one member; empty is a member that is shut down
	DBPath string
	Way    Way // empty chooses
	// AllowPrimary and YesBlockAllWrites both have to be set to lock a primary.
	AllowPrimary, YesBlockAllWrites bool
	Rate                            int64 // limit of the copy in bytes a second, for estimates; 0 is none

	chosen bool // Way worked before: no backup cursor is opened to test it
}

// Inspect checks a member and chooses the way to copy it.
func Inspect(ctx context.Context, o SourceOptions) (*Plan, error) {
	p := &Plan{}
	d, err := openDataDir(o.DBPath)
	if err != nil {
		return nil, err
	}
	if err := p.inspectFiles(d); err != nil {
		return nil, err
	}
	if o.URI == "" {
		if o.Way != "" && o.Way != WayStopped {
			return nil, fmt.Errorf("seed: way %s needs the address of the member", o.Way)
		}
		p.Way, p.Why = WayStopped, "no address of the member was given, so it has to be shut down"
		p.Origin.State = "stopped"
		p.inspectStopped(d)
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

func (p *Plan) inspectFiles(d *dataDir) error {
	raw, err := d.ReadFile(storageFile)
	if err != nil {
		return err
	}
	doc := bson.Raw(raw)
	if doc.Validate() != nil {
		return fmt.Errorf("seed: cannot read %s of %s", storageFile, d.path)
	}
	if engine, _ := doc.Lookup("storage", "engine").StringValueOK(); engine != "wiredTiger" {
		p.fail("storage engine", fmt.Sprintf("the source uses %q", engine), "only WiredTiger's files can be copied")
	}
	p.Origin.Storage = d.storage
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

func (p *Plan) inspectOthers(d *dataDir, all *inventory) {
	there := func(name string) bool { _, err := os.Lstat(d.at(name)); return err == nil }
	if there(keyStore) || there(keyDB) {
		p.fail("encryption", "the source is encrypted at rest", "its keys are not copied; this is not supported")
	}
	if there(newSetMark) {
		p.fail("data directory", "it is an incomplete clone: it has "+newSetMark, "copy another member")
	}
	if there("_repair_incomplete") {
		p.fail("data directory", "its repair is incomplete: it has _repair_incomplete",
			"complete the repair, or copy another member")
	}
	if p.lostTables { // seen with 6.0.5, which then ends at the first read of that database
		p.fail("database _tmp", "its files are in the directory _tmp, which a mongod empties when it starts",
			"rename its collections into another database, and drop it")
	}
	if n := len(all.foreign); n > 0 {
		const named = 5
		more := ""
		if n > named {
			more = fmt.Sprintf(" and %d more", n-named)
		}
		p.warn("other files",
			"not known as the server's, and not copied: "+strings.Join(all.foreign[:min(n, named)], ", ")+more,
			"copy by hand those that the new member needs")
	}
}

func (p *Plan) inspectStopped(d *dataDir) {
	lock, err := lockDirectory(d, false)
	if err != nil {
		p.fail("source state", err.Error(), "shut the mongod down cleanly, or give its address to copy it while it runs")
		return
	}
	defer lock.Close()
	if info, err := lock.Stat(); err == nil && info.Size() > 0 {
		p.warn("source state", "the member was not shut down cleanly", "the copy recovers as the member would")
		if !p.journal {
			p.fail("journal", "there is no journal in the data directory: the copy would end at the last checkpoint",
				noJournalHint)
		}
	}
}

func (p *Plan) inspectServer(ctx context.Context, m *member, o SourceOptions) error {
	h, err := hello(ctx, m.client)
	if err != nil {
		return err
	}
	p.Origin.Host, p.Origin.SetName = h.Me, h.SetName
	switch {
	case h.SetName == "":
		p.Origin.State = "standalone"
		p.fail("source state", "the source is not a member of a replica set", "millrace sync copies from a standalone server")
	case h.Primary:
		p.Origin.State = "PRIMARY"
	case h.Secondary:
		p.Origin.State = "SECONDARY"
	default:
		p.fail("source state", "the source is neither primary nor secondary", "wait until it is, or copy another member")
	}
	status, err := m.run(ctx, bson.D{{Key: "serverStatus", Value: 1}})
	if err != nil {
		return mongo.NeedsRole(fmt.Errorf("seed: cannot read the member's status: %w", err),
			"the user needs the role clusterMonitor")
	}
	p.Origin.Version, _ = status.Lookup("version").StringValueOK()
	if engine, _ := status.Lookup("storageEngine", "name").StringValueOK(); engine != "wiredTiger" {
		p.fail("storage engine", fmt.Sprintf("the source uses %q", engine), "only WiredTiger's files can be copied")
	}
	p.samePlace(status, o.DBPath)
	p.backupRuns(ctx, m, status)
	if !p.journal {
		p.fail("journal", "there is no journal in the data directory", noJournalHint)
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

func (p *Plan) samePlace(status bson.Raw, dir string) {
	pid, ok := status.Lookup("pid").AsInt64OK()
	raw, err := os.ReadFile(filepath.Join(dir, "mongod.lock"))
	if err != nil || !ok {
		p.warn("data directory", "cannot determine whether the directory is the member's", "check that it is")
		return
	}
	if text := strings.TrimSpace(string(raw)); text != strconv.FormatInt(pid, 10) {
		p.fail("data directory",
			fmt.Sprintf("the member's process is %d, the directory belongs to %q", pid, text),
			"name the dbPath of the member whose address is given, and run on its machine (in its container)")
	}
}

func (p *Plan) backupRuns(ctx context.Context, m *member, status bson.Raw) {
	op, err := m.run(ctx, bson.D{{Key: "currentOp", Value: 1}, {Key: "fsync", Value: true}})
	if err != nil {
		p.fail("privileges", "cannot list the member's operations: "+err.Error(),
			"the user needs the role hostManager, or backup and clusterMonitor")
		return
	}
	if locked, _ := op.Lookup("fsyncLock").BooleanOK(); locked {
		p.fail("other backups", "the member is locked", "another backup runs, or left its lock behind: db.fsyncUnlock()")
	}
	if open, _ := status.Lookup("storageEngine", "backupCursorOpen").BooleanOK(); open {
		p.fail("other backups", "a backup cursor is open on the member", "wait for that backup to end")
	}
}

func (p *Plan) inspectOptions(ctx context.Context, m *member) {
	raw, err := m.run(ctx, bson.D{{Key: "getCmdLineOpts", Value: 1}})
	if err != nil {
		return // storage.bson has the rest
	}
	p.Origin.Storage.Compressor, _ = raw.Lookup("parsed", "storage", "wiredTiger", "collectionConfig", "blockCompressor").
		StringValueOK()
	p.Origin.ClusterRole, _ = raw.Lookup("parsed", "sharding", "clusterRole").StringValueOK()
	if on, _ := raw.Lookup("parsed", "security", "enableEncryption").BooleanOK(); on {
		p.fail("encryption", "the source is encrypted at rest", "its keys are not copied; this is not supported")
	}
	config, _ := raw.Lookup("parsed", "storage", "wiredTiger", "engineConfig", "configString").StringValueOK()
	p.inspectEngine(config)
}

func (p *Plan) inspectEngine(config string) {
	config = strings.Join(strings.Fields(config), "")
	if regexp.MustCompile(`(^|,)log=\([^)]*\bpath=`).MatchString(config) {
		p.fail("journal", "the engine's settings keep the journal elsewhere: "+config,
			"replace log=(path=…) by a link in the data directory, which is followed")
	}
	if regexp.MustCompile(`(^|,)direct_io=\(?[^,()]`).MatchString(config) {
		p.fail("direct I/O", "the engine bypasses the page cache: "+config+"; unchanged files cannot be "+
			"determined", "shut the member down and copy it without its address")
	}
}

func (p *Plan) inspectReplication(ctx context.Context, m *member) {
	if st, err := mongo.ReadSetStatus(ctx, m.client); err == nil {
		p.lag(st)
	}
	if c, err := mongo.ReadSetConfig[mongo.SetConfig](ctx, m.client); err == nil {
		p.delay(c)
	}
	oldest, _ := oplogEnd(ctx, m.client, 1) // zero is unknown
	newest, _ := oplogEnd(ctx, m.client, -1)
	p.Origin.Oplog = newest
	if !newest.IsZero() && !oldest.IsZero() {
		p.Origin.WindowSecs = newest.Time().Sub(oldest.Time()).Seconds()
	}
}

func oplogEnd(ctx context.Context, c *driver.Client, direction int) (at mongo.OpTime, err error) {
	err = c.Database("local").Collection("oplog.rs").FindOne(ctx, bson.D{},
		options.FindOne().SetSort(bson.D{{Key: "$natural", Value: direction}}).
			SetProjection(bson.D{{Key: "ts", Value: 1}, {Key: "t", Value: 1}})).Decode(&at)
	return at, err
}

func (p *Plan) lag(st mongo.SetStatus) {
	own := st.Self().AppliedDate
	for _, m := range st.Members {
		p.Origin.LagSecs = max(p.Origin.LagSecs, m.AppliedDate.Sub(own).Seconds())
	}
	if p.Origin.LagSecs > 60 {
		p.warn("lag", fmt.Sprintf("the source is %.0f s behind", p.Origin.LagSecs),
			"the new member will be as far behind; copy another one")
	}
}

func (p *Plan) delay(c mongo.SetConfig) {
	for _, m := range c.Members {
		if d := m.DelaySeconds(); m.Host == p.Origin.Host && d > 0 {
			p.fail("delay", fmt.Sprintf("the source is delayed by %d s", d), "copy a member without delay")
		}
	}
}

func (p *Plan) choose(ctx context.Context, m *member, o SourceOptions) {
	p.Way, p.Why = o.Way, "asked for"
	if o.Way != WayLock && !o.chosen {
		p.tryCursor(ctx, m, o)
	}
	if p.Way == WayCursor {
		p.warn("backup cursor", "millrace's use of $backupCursor is untested on a real server: it follows the "+
			"documentation, and was tested against an imitation",
			"verify the new member (millrace verify), or choose --way fsync-lock")
		return
	}
	if p.Origin.State == "PRIMARY" && (!o.AllowPrimary || !o.YesBlockAllWrites) {
		p.fail("source state",
			"the source is the primary: its lock would block all writes to the set",
			"name a secondary, best a hidden one; or give both --allow-primary and --yes-block-all-writes")
	}
}

// tryCursor opens a backup cursor: nothing else shows whether the server has it and the user may open it.
func (p *Plan) tryCursor(ctx context.Context, m *member, o SourceOptions) {
	cur, err := m.admin.Aggregate(ctx, bson.A{bson.D{{Key: "$backupCursor", Value: bson.D{}}}})
	if err == nil {
		err = cur.Close(ctx)
	}
	busy := cursorIsOpen(err) || cursorIsLocked(err)
	switch {
	case err == nil, busy, mongo.IsCode(err, codeCheckpointTookPlace), mongo.IsCode(err, codeCursorNotNow):
		p.Way, p.Why = WayCursor, "the server has $backupCursor, so that nothing is locked (untested on a real server)"
		if busy {
			p.failBy("other backups", cursorError(err))
		}
	case o.Way == WayCursor:
		p.failBy("backup cursor", cursorError(err))
	case mongo.IsCode(err, codeNoSuchStage), mongo.IsCode(err, codeCommandNotFound),
		mongo.IsCode(err, codeCommandNotSupported):
		p.Way, p.Why = WayLock, "the server has no $backupCursor ("+err.Error()+")"
	default:
		p.Way, p.Why = WayLock, "cannot open a $backupCursor ("+err.Error()+")"
	}
}

// window compares the time that a full oplog covers with the time of the copy.
func (p *Plan) window(ctx context.Context, m *member, rate int64) {
	if p.Origin.WindowSecs <= 0 {
		return
	}
	raw, err := m.client.Database("local").RunCommand(ctx, bson.D{{Key: "collStats", Value: "oplog.rs"}}).Raw()
	if err != nil {
		return // without the privilege there is no estimate
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
		rate = 100 << 20 // a disk or a fast network
	}
	if takes := float64(p.Bytes) / float64(rate); takes > window/2 {
		p.warn("oplog window",
			fmt.Sprintf("the oplog holds about %.0f s of the present writes, the copy takes about %.0f s at %s a second", window,
				takes, humanize.Bytes(uint64(rate))), "make the oplog larger (replSetResizeOplog) or the copy faster; with a lock "+
				"or a backup cursor only the time after it counts")
	}
}
