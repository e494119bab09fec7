package wire

import (
	"bytes"
	"errors"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/mongo/driver/wiremessage"

	"github.com/millrace/millrace/test/kit"
)

// A message has the header, the body with $db, and the sequence that was built;
// what was taken off again is not in it, and Reset leaves nothing behind.
func TestMessage(t *testing.T) {
	var m Message
	body := kit.Raw(bson.D{{Key: "insert", Value: "c"}})
	docs := [][]byte{kit.Raw(bson.D{{Key: "_id", Value: 1}}), kit.Raw(bson.D{{Key: "_id", Value: 2}})}
	for range 2 {
		m.Reset("d", []byte(body), false)
		m.StartSequence("documents")
		m.Grow(1 << 10)
		m.AppendDocument(docs[0])
		before := m.Len()
		m.AppendDocument(body)
		m.Unbuild(before)
		m.BuildDocument(func(dst []byte) []byte { return append(dst, docs[1]...) })
		if m.Docs() != 2 {
			t.Errorf("%d documents", m.Docs())
		}
		wm := m.finish(7)
		length, id, _, op, rest, ok := wiremessage.ReadHeader(wm)
		if !ok || int(length) != len(wm) || id != 7 || op != wiremessage.OpMsg {
			t.Fatalf("header: %d, %d, %v, %v", length, id, op, ok)
		}
		_, rest, _ = wiremessage.ReadMsgFlags(rest)
		_, rest, _ = wiremessage.ReadMsgSectionType(rest)
		cmd, rest, ok := wiremessage.ReadMsgSectionSingleDocument(rest)
		if db, _ := cmd.Lookup("$db").StringValueOK(); !ok || db != "d" {
			t.Errorf("command %s", cmd)
		}
		_, rest, _ = wiremessage.ReadMsgSectionType(rest)
		name, seq, rest, ok := wiremessage.ReadMsgSectionDocumentSequence(rest)
		if !ok || name != "documents" || len(seq) != 2 || !bytes.Equal(seq[1], docs[1]) || len(rest) != 0 {
			t.Errorf("sequence %q of %d, %d bytes left", name, len(seq), len(rest))
		}
	}
	m.Reset("d", []byte(body), true)
	if !bytes.Contains(m.finish(1), []byte("secondaryPreferred")) || m.Docs() != 0 {
		t.Error("no read preference for a secondary, or documents of the message before")
	}
}

// A batch gives its documents in order, and errors for what is none.
func TestBatch(t *testing.T) {
	doc := kit.Raw(bson.D{{Key: "_id", Value: 1}})
	element := append([]byte{3, 0}, doc...)
	n := 0
	b := BatchOf(bytes.Repeat(element, 3))
	if err := b.Each(func(got []byte) error {
		if n++; !bytes.Equal(got, doc) {
			t.Errorf("document %x", got)
		}
		return nil
	}); err != nil || n != 3 || b.Empty() || b.Size != 3*len(element) {
		t.Errorf("%d documents, %v", n, err)
	}
	stop := errors.New("stop")
	if err := b.Each(func([]byte) error { return stop }); !errors.Is(err, stop) {
		t.Errorf("%v", err)
	}
	for name, bad := range map[string][]byte{
		"another type": {2, 0, 5, 0, 0, 0, 0}, "cut": element[:len(element)-1],
		"key without end":    {3, 'a', 'a', 'a', 'a', 'a', 'a'},
		"too short a length": {3, 0, 4, 0, 0, 0, 0}, "longer than the batch": {3, 0, 99, 0, 0, 0, 0},
	} {
		if err := BatchOf(bad).Each(func([]byte) error { return nil }); err == nil {
			t.Errorf("%s is taken for a batch", name)
		}
	}
}

// A pool's guard is asked before anything is sent.
func TestGuard(t *testing.T) {
	p := &Pool{}
	if err := p.Allowed(); err != nil {
		t.Error(err)
	}
	refused := errors.New("refused")
	p.SetGuard(func() error { return refused })
	if err := p.Allowed(); !errors.Is(err, refused) {
		t.Errorf("%v", err)
	}
}

// A duplicate key is one of _id only if that is the whole key.
func TestOnIDIndex(t *testing.T) {
	for _, c := range []struct {
		code    int32
		pattern bson.D
		want    bool
	}{
		{11000, bson.D{{Key: "_id", Value: 1}}, true}, {11000, bson.D{{Key: "a", Value: 1}}, false},
		{11000, bson.D{{Key: "_id", Value: 1}, {Key: "a", Value: 1}}, false}, {121, bson.D{{Key: "_id", Value: 1}}, false},
	} {
		e := WriteError{Code: c.code, Raw: kit.Raw(bson.D{{Key: "keyPattern", Value: c.pattern}})}
		if e.OnIDIndex() != c.want {
			t.Errorf("%d %v: %v", c.code, c.pattern, !c.want)
		}
	}
	if (WriteError{Code: 11000, Raw: kit.Raw(bson.D{})}).OnIDIndex() {
		t.Error("without a pattern")
	}
}

func BenchmarkReply(b *testing.B) {
	wm := replies(b)[0]
	var u unpacker
	b.SetBytes(int64(len(wm)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := u.reply(wm); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkMessage(b *testing.B) {
	var m Message
	body, doc := kit.Raw(bson.D{{Key: "insert", Value: "c"}}),
		kit.Raw(bson.D{{Key: "_id", Value: 1}, {Key: "x", Value: make([]byte, 1000)}})
	b.ReportAllocs()
	for b.Loop() {
		m.Reset("d", []byte(body), false)
		m.StartSequence("documents")
		for range 100 {
			m.AppendDocument(doc)
		}
		m.finish(1)
	}
}
