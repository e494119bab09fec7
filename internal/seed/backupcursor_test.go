package seed

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/test/kit"
)

// Everything here runs against an imitation of the documented format; see stub.

func pinningAgent(t *testing.T, s *stub, dir string, o AgentOptions) *Agent {
	t.Helper()
	o.Way, o.Cursor = WayCursor, &BackupCursor{URI: s.uri(), Alive: 10 * time.Millisecond}
	return fakeAgent(t, dir, o)
}

// engine makes the fake member's directory one that Inspect accepts.
func engine(t *testing.T, dir string) {
	t.Helper()
	raw, err := bson.Marshal(bson.D{{Key: "storage", Value: bson.D{{Key: "engine", Value: "wiredTiger"}}}})
	must(t, err)
	must(t, os.WriteFile(filepath.Join(dir, storageFile), raw, 0o600))
}

func appendTo(t *testing.T, dir, name, text string) {
	t.Helper()
	f, err := os.OpenFile(filepath.Join(dir, name), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	must(t, err)
	_, err = f.WriteString(text)
	must(t, errors.Join(err, f.Close()))
}

func content(t *testing.T, dir, name string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	must(t, err)
	return b
}

// A member that goes on writing is copied up to the listed sizes, with the
// journal that the extensions name, and nothing that came later.
func TestBackupCursorIsCopied(t *testing.T) {
	dir := fakeMember(t)
	s := newStub(t, dir)
	want := content(t, dir, "db/collection-1.wt")
	must(t, os.WriteFile(filepath.Join(dir, "WiredTiger.turtle"), []byte("of a later checkpoint"), 0o600))
	s.own.T += 100
	s.extend = func(n int, to bson.Timestamp) []string {
		if to.T != s.own.T {
			t.Errorf("extended to %v, the member is at %v", to, s.own)
		}
		appendTo(t, dir, "journal/WiredTigerLog.0000000002", strings.Repeat("entry ", n*60_000))
		if n == 1 {
			s.own.T += 100 // meanwhile
		}
		return []string{"journal/WiredTigerLog.0000000002"}
	}
	a := pinningAgent(t, s, dir, AgentOptions{MaxBehind: 10 * time.Second})
	m, err := a.Join(t.Context())
	must(t, err)
	if !s.isOpen() || m.Way != WayCursor || len(m.Files) != 6 {
		t.Fatalf("%+v", m)
	}
	appendTo(t, dir, "db/collection-1.wt", "a checkpoint later")
	appendTo(t, dir, "after.wt", "a collection later")
	to := filepath.Join(t.TempDir(), "to")
	o := serve(t, a, "a token of some length", nil)
	kit.Until(t, "the cursor is kept alive", func() bool { return s.count("getMore") > 3 })
	same := &joinedSource{client(t, o), func() { must(t, a.Leave(t.Context(), m.Round, m.Puller)) }}
	report, err := Pull(t.Context(), same, PullOptions{DBPath: to})
	must(t, err)
	if s.isOpen() || s.count("$backupCursorExtend") != 2 {
		t.Errorf("open %v, %d extensions", s.isOpen(), s.count("$backupCursorExtend"))
	}
	if !bytes.Equal(content(t, to, "db/collection-1.wt"), want) {
		t.Error("the collection is not as it was listed")
	}
	for _, name := range []string{"index-2.wt", "empty.wt", storageFile, "journal/WiredTigerLog.0000000001",
		"journal/WiredTigerLog.0000000002"} {
		if !bytes.Equal(content(t, to, name), content(t, dir, name)) {
			t.Errorf("%s differs", name)
		}
	}
	for _, name := range []string{"after.wt", "WiredTiger.turtle"} {
		if _, err := os.Stat(filepath.Join(to, name)); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if report.Files != 7 || report.LockSeconds != 0 || report.AgainBytes == 0 {
		t.Errorf("%+v", report)
	}
}

// joinedSource reports that its puller has joined.
type joinedSource struct {
	Source
	joined func()
}

func (s *joinedSource) Join(ctx context.Context) (*Manifest, error) {
	m, err := s.Source.Join(ctx)
	s.joined()
	return m, err
}

// Every field but the names may be missing.
func TestBackupCursorWithBareFields(t *testing.T) {
	dir := fakeMember(t)
	s := newStub(t, dir)
	s.bare = true
	to := filepath.Join(t.TempDir(), "to")
	_, err := Pull(t.Context(), pinningAgent(t, s, dir, AgentOptions{}), PullOptions{DBPath: to})
	must(t, err)
	sameFiles(t, dir, to)
	if s.isOpen() || s.count("$backupCursorExtend") != 0 {
		t.Errorf("open %v, %d extensions without an id", s.isOpen(), s.count("$backupCursorExtend"))
	}
}

// A server that closes the cursor meanwhile pinned nothing: the round is begun
// again, with what is there.
func TestBackupCursorIsLost(t *testing.T) {
	dir := fakeMember(t)
	s := newStub(t, dir)
	lost := false
	s.on = func(command string) {
		if command == "$backupCursorExtend" && !lost {
			lost = true
			s.closeCursor()
			s.mu.Lock()
			s.fail["$backupCursorExtend"],
				s.once = ok(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)},
				{Key: "ns", Value: "admin.$cmd.aggregate"}, {Key: "firstBatch", Value: bson.A{}}}}), true
			s.mu.Unlock()
		}
	}
	to := filepath.Join(t.TempDir(), "to")
	_, err := Pull(t.Context(), pinningAgent(t, s, dir, AgentOptions{}), PullOptions{DBPath: to})
	must(t, err)
	sameFiles(t, dir, to)
	if n := s.count("$backupCursor"); n != 2 || s.isOpen() {
		t.Errorf("%d cursors, open %v", n, s.isOpen())
	}
}

// A cursor that is gone is noticed by the sign of life, and ends the round: what
// is read after that would be worth nothing.
func TestLostBackupCursorEndsTheRound(t *testing.T) {
	dir := fakeMember(t)
	s := newStub(t, dir)
	a := pinningAgent(t, s, dir, AgentOptions{})
	m, err := a.Join(t.Context())
	must(t, err)
	s.closeCursor()
	q := ReadRequest{Round: m.Round, Puller: m.Puller, Path: "index-2.wt", Have: make([]Sum, 1)}
	kit.Until(t, "the round ends", func() bool {
		return errors.Is(a.Read(t.Context(), q, func(Block) error { return nil }), errNoRound)
	})
	again, err := a.Join(t.Context())
	must(t, err)
	if again.Round == m.Round || !s.isOpen() {
		t.Errorf("round %s, open %v", again.Round, s.isOpen())
	}
}

// Whatever becomes of the pullers, the cursor is closed.
func TestBackupCursorIsClosed(t *testing.T) {
	dir := fakeMember(t)
	for name, end := range map[string]func(*Agent, *Manifest){
		"the puller leaves":       func(a *Agent, m *Manifest) { must(t, a.Leave(t.Context(), m.Round, m.Puller)) },
		"the agent ends":          func(a *Agent, _ *Manifest) { must(t, a.Close()) },
		"the puller says nothing": func(*Agent, *Manifest) {},
	} {
		s := newStub(t, dir)
		idle := time.Hour
		if strings.Contains(name, "nothing") {
			idle = 50 * time.Millisecond
		}
		a, err := NewAgent(AgentOptions{DBPath: dir, SpoolDir: t.TempDir(), Way: WayCursor,
			Cursor: &BackupCursor{URI: s.uri()}, Idle: idle})
		must(t, err)
		m, err := a.Join(t.Context())
		must(t, err)
		end(a, m)
		kit.Until(t, name, func() bool { return !s.isOpen() })
		_ = a.Close()
	}
}

// An error during the copy closes it too, and a file that is too short is one.
func TestShortFileUnderBackupCursor(t *testing.T) {
	dir := fakeMember(t)
	s := newStub(t, dir)
	s.on = func(command string) {
		if command == "getMore" {
			_ = os.Truncate(filepath.Join(dir, "index-2.wt"), 10)
		}
	}
	a := pinningAgent(t, s, dir, AgentOptions{})
	_, err := Pull(t.Context(), a, PullOptions{DBPath: filepath.Join(t.TempDir(), "to")})
	if err == nil || !strings.Contains(err.Error(), "index-2.wt") {
		t.Error(err)
	}
	kit.Until(t, "the cursor is closed", func() bool { return !s.isOpen() })
}

func TestBackupCursorErrors(t *testing.T) {
	dir := fakeMember(t)
	pin := func(s *stub) error {
		p, err := (&BackupCursor{URI: s.uri()}).open(t.Context())
		if err == nil {
			err = p.release()
		}
		return err
	}
	for _, code := range []int32{codeCheckpointTookPlace, codeCursorNotNow} { // tried again
		s := newStub(t, dir)
		s.fail["$backupCursor"], s.once = failure(code, "BackupCursorOpenConflictWithCheckpoint",
			"A checkpoint took place while opening a backup cursor."), true
		must(t, pin(s))
		if s.count("$backupCursor") != 2 || s.isOpen() {
			t.Errorf("%d: %d attempts", code, s.count("$backupCursor"))
		}
	}
	for want, f := range map[string]bson.D{
		"another backup runs": failure(50886, "Location50886",
			"The existing backup cursor must be closed before $backupCursor can succeed."),
		"fsyncUnlock": failure(50885, "Location50885", "The node is currently fsyncLocked."),
		"a role that": failure(13, "Unauthorized", "not authorized"),
		"fsync-lock":  failure(codeNoSuchStage, "Location40324", "Unrecognized pipeline stage name: '$backupCursor'"),
	} {
		s := newStub(t, dir)
		s.fail["$backupCursor"] = f
		if err := pin(s); err == nil || !strings.Contains(mongo.HintOf(err), want) {
			t.Errorf("%s: %v, %s", want, err, mongo.HintOf(err))
		}
	}
	s := newStub(t, dir)
	s.fail["$backupCursor"] = failure(codeCheckpointTookPlace, "", "always")
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := (&BackupCursor{URI: s.uri()}).open(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Error(err)
	}
	for _, name := range []string{"/elsewhere/x.wt", "/data/db/../x.wt", "/data/db/secret.pem", "/data/db/missing.wt",
		""} {
		s := newStub(t, dir)
		s.files = []bson.D{{{Key: "filename", Value: name}, {Key: "fileSize", Value: int64(1)}}}
		if _, err := pinningAgent(t, s, dir, AgentOptions{}).Join(t.Context()); err == nil || s.isOpen() {
			t.Errorf("%q: %v, open %v", name, err, s.isOpen())
		}
	}
}

// The plan takes the cursor where there is one, and says why where there is none.
func TestPlanChoosesBackupCursor(t *testing.T) {
	dir := fakeMember(t)
	engine(t, dir)
	for _, c := range []struct {
		name    string
		asked   Way
		reply   bson.D
		want    Way
		why     string
		refused bool
	}{
		{name: "has it", want: WayCursor, why: "untested on a real server"},
		{name: "a checkpoint", reply: failure(codeCheckpointTookPlace, "", "A checkpoint took place"), want: WayCursor,
			why: "untested"},
		{name: "has none", reply: failure(codeNoSuchStage, "", "Unrecognized pipeline stage name"), want: WayLock,
			why: "the server has no $backupCursor"},
		{name: "may not", reply: failure(13, "Unauthorized", "not authorized"), want: WayLock, why: "not authorized"},
		{name: "open already", reply: failure(50886, "", "The existing backup cursor must be closed"), want: WayCursor,
			refused: true},
		{name: "asked for, has none", asked: WayCursor, reply: failure(codeNoSuchStage, "", "Unrecognized"), want: WayCursor,
			refused: true},
		{name: "lock asked for", asked: WayLock, want: WayLock, why: "asked for"},
	} {
		s := newStub(t, dir)
		if c.reply != nil {
			s.fail["$backupCursor"] = c.reply
		}
		p, err := Inspect(t.Context(), SourceOptions{URI: s.uri(), DBPath: dir, Way: c.asked})
		must(t, err)
		if p.Way != c.want || !strings.Contains(p.Why, c.why) || (p.Checks.Err() != nil) != c.refused || s.isOpen() {
			t.Errorf("%s: way %s (%s), %v, open %v", c.name, p.Way, p.Why, p.Checks.Err(), s.isOpen())
		}
		if p.Checks.Err() != nil && mongo.HintOf(p.Checks.Err()) == "" {
			t.Errorf("%s: no hint", c.name)
		}
	}
}

// The whole way, as the command goes it.
func TestBackupCursorAsTheCommandDoes(t *testing.T) {
	dir := fakeMember(t)
	engine(t, dir)
	s := newStub(t, dir)
	a := openAgent(t, ServeOptions{SourceOptions: SourceOptions{URI: s.uri(), DBPath: dir}, MaxBehind: time.Second})
	to := filepath.Join(t.TempDir(), "to")
	res, err := Run(t.Context(), a, Options{Pull: PullOptions{DBPath: to}})
	must(t, err)
	sameFiles(t, dir, to)
	if res.Way != WayCursor || s.isOpen() {
		t.Errorf("%+v", res)
	}
}
