package wire

import (
	"bytes"
	"compress/zlib"
	"context"
	"encoding/binary"
	"errors"
	"runtime"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/millrace/millrace/internal/bsonraw"
	"github.com/millrace/millrace/test/kit"
)

// frame puts a header before a reply's rest.
func frame(op wiremessage.OpCode, rest ...[]byte) []byte {
	b := make([]byte, 16)
	for _, r := range rest {
		b = append(b, r...)
	}
	binary.LittleEndian.PutUint32(b, uint32(len(b)))
	binary.LittleEndian.PutUint32(b[12:], uint32(op))
	return b
}

// opMsg is a reply with one body section.
func opMsg(flags uint32, body []byte) []byte {
	return frame(wiremessage.OpMsg, binary.LittleEndian.AppendUint32(nil, flags), []byte{0}, body)
}

// packed is an OP_COMPRESSED reply that claims to unpack to size bytes.
func packed(compressor wiremessage.CompressorID, size uint32, payload []byte) []byte {
	head := binary.LittleEndian.AppendUint32(nil, uint32(wiremessage.OpMsg))
	head = append(binary.LittleEndian.AppendUint32(head, size), byte(compressor))
	return frame(wiremessage.OpCompressed, head, payload)
}

func zlibbed(t testing.TB, data []byte) []byte {
	var b bytes.Buffer
	w := zlib.NewWriter(&b)
	_, err := w.Write(data)
	if err := errors.Join(err, w.Close()); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func zstandard(t testing.TB, data []byte) []byte {
	w, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	return w.EncodeAll(data, nil)
}

// replies are whole ones of every kind.
func replies(t testing.TB) [][]byte {
	doc := bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: "y"}}
	cursor := func(field string) []byte {
		return kit.Raw(bson.D{{Key: "cursor", Value: bson.D{{Key: field, Value: bson.A{doc, doc}},
			{Key: "id", Value: int64(77)},
			{Key: "ns", Value: "d.c"}, {Key: "postBatchResumeToken", Value: bson.D{{Key: "$recordId", Value: int64(2)}}}}},
			{Key: "ok", Value: 1.0}})
	}
	write := kit.Raw(bson.D{{Key: "n", Value: 3}, {Key: "nModified", Value: 2}, {Key: "writeErrors", Value: bson.A{
		bson.D{{Key: "index", Value: 1}, {Key: "code", Value: 11000}, {Key: "errmsg", Value: "E11000"},
			{Key: "keyPattern", Value: bson.D{{Key: "_id", Value: 1}}}}}},
		{Key: "writeConcernError", Value: bson.D{{Key: "code", Value: 64}}},
		{Key: "opTime", Value: bson.D{{Key: "t", Value: int64(4)}}}, {Key: "ok", Value: 1.0}})
	failed := kit.Raw(bson.D{{Key: "ok", Value: 0.0}, {Key: "code", Value: 43}, {Key: "codeName", Value: "CursorNotFound"},
		{Key: "errmsg", Value: "gone"},
		{Key: "errorLabels", Value: bson.A{"RetryableWriteError"}}})
	rest := opMsg(0, write)[16:]
	return [][]byte{
		opMsg(0, cursor("firstBatch")), opMsg(0, cursor("nextBatch")), opMsg(0, write), opMsg(0, failed), opMsg(2, write),
		packed(wiremessage.CompressorNoOp, uint32(len(rest)), rest),
		packed(wiremessage.CompressorZLib, uint32(len(rest)), zlibbed(t, rest)),
		packed(wiremessage.CompressorZstd, uint32(len(rest)), zstandard(t, rest)),
		packed(wiremessage.CompressorSnappy, uint32(len(rest)), rest),
		frame(wiremessage.OpReply, make([]byte, 20), write),
	}
}

// readAll does with a reply whatever the package can do.
func readAll(wm []byte) error {
	var u unpacker
	body, err := u.reply(wm)
	if err != nil {
		return err
	}
	err = (&Conn{}).commandError(body)
	for _, e := range ParseWriteResult(body).Errors {
		e.OnIDIndex()
	}
	for _, field := range []string{"firstBatch", "nextBatch"} {
		cur := &Cursor{conn: &Conn{}}
		b, perr := cur.parse(body, field)
		if perr != nil {
			err = errors.Join(err, perr)
			continue
		}
		err = errors.Join(err, b.Each(func(doc []byte) error {
			bsonraw.Field(doc, "_id")
			return nil
		}))
	}
	return err
}

// FuzzReply: no reply makes the reader panic.
func FuzzReply(f *testing.F) {
	for _, r := range replies(f) {
		f.Add(r)
		f.Add(r[:len(r)/2])
	}
	f.Fuzz(func(_ *testing.T, wm []byte) {
		_ = readAll(wm)
		if len(wm) >= 16 { // and past the first check
			wm = bytes.Clone(wm)
			binary.LittleEndian.PutUint32(wm, uint32(len(wm)))
			_ = readAll(wm)
		}
	})
}

// Every cut and every changed byte of a reply is an error or another reply.
func TestDamagedReplies(t *testing.T) {
	for n, whole := range replies(t) {
		for i := range whole {
			if err := readAll(whole[:i]); err == nil {
				t.Errorf("reply %d cut at %d is taken for a whole one", n, i)
			}
			for _, v := range []byte{0, 1, 0x7f, 0x80, 0xff} {
				changed := bytes.Clone(whole)
				changed[i] = v
				_ = readAll(changed)
			}
		}
	}
}

// A reply cannot make us allocate more than a server may send, whatever it
// claims, and the error says what is wrong.
func TestRepliesThatClaimTooMuch(t *testing.T) {
	rest := opMsg(0, kit.Raw(bson.D{{Key: "ok", Value: 1.0}}))[16:]
	hugeHeader := opMsg(0, kit.Raw(bson.D{{Key: "ok", Value: 1.0}}))
	binary.LittleEndian.PutUint32(hugeHeader, 1<<31-1)
	negative := bytes.Clone(hugeHeader)
	binary.LittleEndian.PutUint32(negative, 0xFFFFFFFF)
	hugeBody := bytes.Clone(opMsg(0, kit.Raw(bson.D{{Key: "ok", Value: 1.0}})))
	binary.LittleEndian.PutUint32(hugeBody[21:], 1<<31-1)
	bomb := make([]byte, 2*maxReply)
	var u unpacker
	for name, c := range map[string]struct {
		wm   []byte
		want string
	}{
		"length of 2 GB":  {hugeHeader, "malformed reply header"},
		"negative length": {negative, "malformed reply header"},
		"body of 2 GB":    {hugeBody, "truncated reply body"},
		"checksum that nobody asked": {opMsg(uint32(wiremessage.ChecksumPresent),
			kit.Raw(bson.D{{Key: "ok", Value: 1.0}})), "flags"},
		"unpacks to 2 GB": {packed(wiremessage.CompressorZLib, 1<<31-1, zlibbed(t, rest)),
			"malformed compressed reply"},
		"unpacks to less than nothing": {packed(wiremessage.CompressorZLib, 1<<31, zlibbed(t, rest)),
			"malformed compressed reply"},
		"unpacks to less than claimed": {packed(wiremessage.CompressorZLib, uint32(len(rest)+1), zlibbed(t, rest)),
			"decompress reply"},
		"snappy of 2 GB": {packed(wiremessage.CompressorSnappy, 100, []byte{0xff, 0xff, 0xff, 0xff, 0x07}),
			"decompress reply"},
		"zstd of more than claimed": {packed(wiremessage.CompressorZstd, uint32(len(rest)), zstandard(t, bomb)),
			"decompress reply"},
		"zstd of less than claimed": {packed(wiremessage.CompressorZstd, uint32(len(rest)+1), zstandard(t, rest)),
			"decompress reply"},
		"uncompressed, another size": {packed(wiremessage.CompressorNoOp, uint32(len(rest)+1), rest), "decompress reply"},
		"zlib of more than claimed": {packed(wiremessage.CompressorZLib, uint32(len(rest)), zlibbed(t, bomb[:1<<20])),
			"truncated reply body"},
		"compressor nobody knows": {packed(99, uint32(len(rest)), rest), "decompress reply"},
		"a string of 2 GB": {opMsg(0, []byte("\x0d\x00\x00\x00\x02\x00\xff\xff\xff\x7f\x00\x00\x00")),
			"malformed reply body"},
		"an answer to the old protocol": {frame(wiremessage.OpReply, make([]byte, 20)), "opcode 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := u.reply(c.wm)
			runtime.ReadMemStats(&after)
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error %v, want %q", err, c.want)
			}
			if used := after.TotalAlloc - before.TotalAlloc; used > maxReply+16<<20 {
				t.Errorf("%d MB were allocated", used>>20)
			}
		})
	}
	for _, wm := range replies(t)[:8] {
		if _, err := u.reply(wm); err != nil {
			t.Error(err)
		}
	}
}

// A released connection answers, however it is used.
func TestReleasedConn(t *testing.T) {
	c := &Conn{}
	c.Release()
	if _, err := c.Command(context.Background(), "d",
		bsoncore.Document(kit.Raw(bson.D{{Key: "ping", Value: 1}}))); !errors.Is(err, errClosed) {
		t.Error(err)
	}
}
