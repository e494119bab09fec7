package seed

import (
	"encoding/binary"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// stub imitates a server that has $backupCursor, by its documented format: no
// real one was at hand. It speaks OP_MSG, and OP_QUERY for the driver's first
// command.
type stub struct {
	t        *testing.T
	addr     string
	listener net.Listener

	mu     sync.Mutex
	dbpath string // as the server calls it
	files  []bson.D
	bare   bool                                    // fields that may be missing are missing
	fail   map[string]bson.D                       // what a command replies with: by name of the command or stage
	once   bool                                    // and only one time
	extend func(n int, to bson.Timestamp) []string // names what the nth extension lists
	own    bson.Timestamp                          // the member's newest position
	open   int64                                   // the cursor; 0 is none
	opened int64
	seen   map[string]int
	on     func(command string) // called before each
}

const stubTime = 1_700_000_000

func newStub(t *testing.T, dir string) *stub {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	s := &stub{t: t, addr: l.Addr().String(), listener: l, dbpath: "/data/db", fail: map[string]bson.D{},
		seen: map[string]int{},
		own:  bson.Timestamp{T: stubTime, I: 7}}
	list := func(name string) {
		info, err := os.Stat(filepath.Join(dir, name))
		must(t, err)
		s.files = append(s.files,
			bson.D{{Key: "filename", Value: s.dbpath + "/" + name}, {Key: "fileSize", Value: info.Size()}})
	}
	for _, name := range []string{"WiredTiger.wt", "empty.wt", "db/collection-1.wt", "index-2.wt",
		"journal/WiredTigerLog.0000000001"} {
		list(name)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() { defer conn.Close(); s.serve(conn) })
			t.Cleanup(func() { conn.Close() })
		}
	})
	t.Cleanup(wg.Wait)
	t.Cleanup(func() { l.Close() })
	return s
}

func (s *stub) uri() string { return "mongodb://" + s.addr + "/" }

func (s *stub) serve(conn net.Conn) {
	for {
		head := make([]byte, 16)
		if _, err := io.ReadFull(conn, head); err != nil {
			return
		}
		body := make([]byte, binary.LittleEndian.Uint32(head)-16)
		if _, err := io.ReadFull(conn, body); err != nil {
			return
		}
		const opReply, opQuery, opMsg = 1, 2004, 2013
		out := make([]byte, 16)
		copy(out[8:], head[4:8]) // responseTo
		var doc bson.Raw
		if binary.LittleEndian.Uint32(head[12:]) == opQuery {
			name := 4 + strings.IndexByte(string(body[4:]), 0) + 1
			doc = bson.Raw(body[name+8:])
			binary.LittleEndian.PutUint32(out[12:], opReply)
			out = append(out, make([]byte, 16)...)
			out = binary.LittleEndian.AppendUint32(out, 1)
		} else {
			doc = bson.Raw(body[5:])
			binary.LittleEndian.PutUint32(out[12:], opMsg)
			out = append(out, 0, 0, 0, 0, 0)
		}
		reply, err := bson.Marshal(s.answer(doc))
		if err != nil {
			s.t.Error(err)
			return
		}
		out = append(out, reply...)
		binary.LittleEndian.PutUint32(out, uint32(len(out)))
		if _, err := conn.Write(out); err != nil {
			return
		}
	}
}

func ok(fields ...bson.E) bson.D { return append(bson.D(fields), bson.E{Key: "ok", Value: 1.0}) }

func failure(code int32, name, text string) bson.D {
	return bson.D{{Key: "ok", Value: 0.0}, {Key: "errmsg", Value: text}, {Key: "code", Value: code},
		{Key: "codeName", Value: name}}
}

func (s *stub) count(command string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen[command]
}

func (s *stub) isOpen() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open != 0
}

func (s *stub) closeCursor() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.open = 0
}

func (s *stub) answer(cmd bson.Raw) bson.D {
	first, err := cmd.IndexErr(0)
	if err != nil {
		return failure(59, "CommandNotFound", "none")
	}
	name, stage := first.Key(), bson.RawElement(nil)
	if name == "aggregate" {
		stage, _ = cmd.Lookup("pipeline", "0").Document().IndexErr(0)
		name = stage.Key()
	}
	if s.on != nil {
		s.on(name)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[name]++
	if f := s.fail[name]; f != nil {
		if s.once {
			delete(s.fail, name)
		}
		return f
	}
	switch name {
	case "isMaster", "ismaster", "hello":
		return ok(bson.E{Key: "ismaster", Value: false}, bson.E{Key: "secondary", Value: true},
			bson.E{Key: "setName", Value: "rs"}, bson.E{Key: "me", Value: s.addr}, bson.E{Key: "hosts", Value: bson.A{s.addr}},
			bson.E{Key: "maxWireVersion", Value: 17}, bson.E{Key: "minWireVersion", Value: 0},
			bson.E{Key: "maxBsonObjectSize", Value: 16 << 20}, bson.E{Key: "maxMessageSizeBytes", Value: 48000000},
			bson.E{Key: "maxWriteBatchSize", Value: 100000})
	case "serverStatus":
		return ok(bson.E{Key: "version", Value: "6.0.6-5"}, bson.E{Key: "storageEngine",
			Value: bson.D{{Key: "name", Value: "wiredTiger"}, {Key: "backupCursorOpen", Value: s.open != 0}}})
	case "replSetGetStatus":
		pos := bson.D{{Key: "ts", Value: s.own}, {Key: "t", Value: int64(1)}}
		date := time.Unix(int64(s.own.T), 0)
		return ok(bson.E{Key: "optimes", Value: bson.D{{Key: "lastCommittedOpTime", Value: pos}}},
			bson.E{Key: "members", Value: bson.A{bson.D{{Key: "self", Value: true}, {Key: "name", Value: s.addr},
				{Key: "stateStr", Value: "SECONDARY"}, {Key: "optime", Value: pos}, {Key: "optimeDate", Value: date}}}})
	case "$backupCursor":
		return s.backupCursor()
	case "$backupCursorExtend":
		return s.backupCursorExtend(stage.Value().Document())
	case "getMore":
		if id := cmd.Lookup("getMore").Int64(); s.open == 0 || id != s.open {
			return failure(43, "CursorNotFound", "cursor id not found")
		}
		n := min(2, len(s.files))
		return ok(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: s.open}, {Key: "ns", Value: "admin.$cmd.aggregate"},
			{Key: "nextBatch", Value: s.batch(n, s.seen["getMore"] == 1)}}})
	case "killCursors":
		killed, missing := bson.A{}, bson.A{}
		for _, v := range must1(cmd.Lookup("cursors").Array().Values()) {
			if v.Int64() == s.open {
				killed = append(killed, s.open)
				s.open = 0
			} else {
				missing = append(missing, v.Int64())
			}
		}
		return ok(bson.E{Key: "cursorsKilled", Value: killed}, bson.E{Key: "cursorsNotFound", Value: missing})
	case "currentOp", "getCmdLineOpts", "getParameter", "replSetGetConfig", "endSessions", "ping":
		return ok()
	case "find":
		return ok(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "local.oplog.rs"},
			{Key: "firstBatch", Value: bson.A{}}}})
	}
	return failure(59, "CommandNotFound", "no such command: "+name)
}

func must1[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// batch is what is left of the list after the first batch, once.
func (s *stub) batch(from int, rest bool) bson.A {
	out := bson.A{}
	if !rest {
		return out
	}
	for _, f := range s.files[from:] {
		out = append(out, s.entry(f))
	}
	return out
}

func (s *stub) entry(f bson.D) bson.D {
	if s.bare {
		return f[:1]
	}
	return f
}

func (s *stub) backupCursor() bson.D {
	if s.open != 0 {
		return failure(50886, "Location50886", "The existing backup cursor must be closed before $backupCursor can succeed.")
	}
	s.opened++
	s.open = 1000 + s.opened
	s.seen["getMore"] = 0
	end := bson.D{{Key: "ts", Value: bson.Timestamp{T: stubTime, I: 1}}, {Key: "t", Value: int64(1)}}
	meta := bson.D{{Key: "backupId", Value: bson.Binary{Subtype: 4, Data: []byte("0123456789abcdef")}},
		{Key: "dbpath", Value: s.dbpath}}
	if !s.bare {
		meta = append(meta, bson.E{Key: "oplogStart", Value: end}, bson.E{Key: "oplogEnd", Value: end},
			bson.E{Key: "checkpointTimestamp", Value: bson.Timestamp{T: stubTime - 60, I: 1}},
			bson.E{Key: "disableIncrementalBackup", Value: false}, bson.E{Key: "incrementalBackup", Value: false},
			bson.E{Key: "blockSize", Value: int64(16)})
	} else {
		meta = meta[1:] // no extension then
	}
	first := bson.A{bson.D{{Key: "metadata", Value: meta}}}
	for _, f := range s.files[:min(2, len(s.files))] {
		first = append(first, s.entry(f))
	}
	return ok(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: s.open}, {Key: "ns", Value: "admin.$cmd.aggregate"},
		{Key: "firstBatch", Value: first}}})
}

func (s *stub) backupCursorExtend(args bson.Raw) bson.D {
	if s.open == 0 {
		return failure(50887, "Location50887", "Cannot extend backup cursor, no backup cursor is open")
	}
	if _, data, ok := args.Lookup("backupId").BinaryOK(); !ok || string(data) != "0123456789abcdef" {
		return failure(50887, "Location50887", "another backup's id")
	}
	t, i, _ := args.Lookup("timestamp").TimestampOK()
	list := bson.A{}
	if s.extend != nil {
		for _, name := range s.extend(s.seen["$backupCursorExtend"], bson.Timestamp{T: t, I: i}) {
			list = append(list, bson.D{{Key: "filename", Value: s.dbpath + "/" + name}})
		}
	}
	return ok(bson.E{Key: "cursor", Value: bson.D{{Key: "id", Value: int64(0)}, {Key: "ns", Value: "admin.$cmd.aggregate"},
		{Key: "firstBatch", Value: list}}})
}
