package bsonraw

import (
	"bytes"
	"encoding/binary"
	"testing"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"
)

// samples are one value of each type.
func samples() map[bson.Type][]byte {
	doc := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "x", 1))
	return map[bson.Type][]byte{
		bson.TypeDouble: make([]byte, 8), bson.TypeString: bsoncore.AppendString(nil, "häß"),
		bson.TypeEmbeddedDocument: doc,
		bson.TypeArray:            doc,
		bson.TypeBinary:           bsoncore.AppendBinary(nil, 2, []byte("abc")), bson.TypeUndefined: nil,
		bson.TypeObjectID: make([]byte, 12),
		bson.TypeBoolean:  {1}, bson.TypeDateTime: make([]byte, 8), bson.TypeNull: nil,
		bson.TypeRegex:      bsoncore.AppendRegex(nil, "^a", "im"),
		bson.TypeDBPointer:  bsoncore.AppendDBPointer(nil, "d.c", bson.ObjectID{}),
		bson.TypeJavaScript: bsoncore.AppendString(nil, ""),
		bson.TypeSymbol:     bsoncore.AppendString(nil, "s"), bson.TypeCodeWithScope: bsoncore.AppendCodeWithScope(nil, "",
			bsoncore.BuildDocument(nil, nil)),
		bson.TypeInt32: make([]byte, 4), bson.TypeTimestamp: make([]byte, 8), bson.TypeInt64: make([]byte, 8),
		bson.TypeDecimal128: make([]byte, 16), bson.TypeMinKey: nil, bson.TypeMaxKey: nil,
	}
}

// A value has its size whatever follows it, and none when a byte is missing.
func TestValueSize(t *testing.T) {
	all := samples()
	for typ, v := range all {
		if n, ok := ValueSize(typ, append(v[:len(v):len(v)], 0xff, 0)); !ok || n != len(v) {
			t.Errorf("%s: %d, %v, want %d", typ, n, ok, len(v))
		}
		for i := range v {
			if n, ok := ValueSize(typ, v[:i]); ok {
				t.Errorf("%s cut at %d of %d has %d bytes", typ, i, len(v), n)
			}
		}
	}
	for typ := range 256 {
		_, want := all[bson.Type(typ)]
		if _, ok := ValueSize(bson.Type(typ), make([]byte, 100)); ok && !want {
			t.Errorf("type %#x is not one", typ)
		}
	}
	for _, length := range []string{"\xff\xff\xff\xff", "\x00\x00\x00\x80", "\xff\xff\xff\x7f", "\x00\x00\x00\x00"} {
		for _, typ := range []bson.Type{bson.TypeString, bson.TypeEmbeddedDocument, bson.TypeArray, bson.TypeDBPointer,
			bson.TypeCodeWithScope} {
			if n, ok := ValueSize(typ, []byte(length+"0123456789abcdefghij")); ok {
				t.Errorf("%s of length %x has %d bytes", typ, length, n)
			}
		}
	}
}

func TestBody(t *testing.T) {
	for s, want := range map[string]bool{
		"": false, "\x05\x00\x00\x00": false, "\x05\x00\x00\x00\x00": true, "\x05\x00\x00\x00\x01": false,
		"\x06\x00\x00\x00\x00": false,
		"\x05\x00\x00\x80\x00": false, "\x08\x00\x00\x00\x0aa\x00\x00": true,
	} {
		if b, ok := Body([]byte(s)); ok != want || ok && len(b) != len(s)-5 {
			t.Errorf("%q: %q, %v", s, b, ok)
		}
	}
}

func TestFieldAndValid(t *testing.T) {
	inner := bsoncore.BuildDocument(nil, bsoncore.AppendInt32Element(nil, "x", 1))
	doc := bsoncore.BuildDocument(nil, bsoncore.AppendStringElement(nil, "a", "b"),
		bsoncore.AppendDocumentElement(nil, "d", inner), bsoncore.AppendNullElement(nil, "a"))
	if e, ok := Field(doc, "a"); !ok || e.Type != bson.TypeString || len(e.Value) != 6 {
		t.Errorf("%+v, %v", e, ok)
	}
	if _, ok := Field(doc, "x"); ok {
		t.Error("a field of an inner document is found")
	}
	bad := []byte("\x0d\x00\x00\x00\x02\x00\xff\xff\xff\x7f\x00\x00\x00") // a string of 2 GB
	if _, ok := Field(bad, ""); ok || Valid(bad, 1) || Valid(bad, MaxDepth) {
		t.Error("a string of 2 GB has room")
	}
	around := bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "d", bad))
	if !Valid(doc, 1) || !Valid(doc, MaxDepth) || !Valid(around, 1) || Valid(around, 2) || Valid(around, MaxDepth) {
		t.Error("a depth counts wrongly")
	}
	deep := inner
	for range MaxDepth {
		deep = bsoncore.BuildDocument(nil, bsoncore.AppendDocumentElement(nil, "a", deep))
	}
	if Valid(deep, MaxDepth) || !Valid(deep, MaxDepth-1) {
		t.Error("a document nested too deeply is valid, or one is judged below its depth")
	}
}

// FuzzValid: the driver gets along with what is valid.
func FuzzValid(f *testing.F) {
	var all []byte
	for typ, v := range samples() {
		all = bsoncore.AppendValueElement(all, typ.String(), bsoncore.Value{Type: bsoncore.Type(typ), Data: v})
	}
	f.Add(bsoncore.BuildDocument(nil, all))
	f.Add([]byte("\x0d\x00\x00\x00\x02\x00\xff\xff\xff\x7f\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if b = bytes.Clone(b); len(b) > 4 { // past the first check
			binary.LittleEndian.PutUint32(b, uint32(len(b)))
			b[len(b)-1] = 0
		}
		Field(b, "x")
		if !Valid(b, MaxDepth) {
			return
		}
		var walk func(doc bson.Raw)
		walk = func(doc bson.Raw) {
			els, err := doc.Elements()
			if err != nil {
				t.Errorf("%x: %v", doc, err)
			}
			for _, e := range els {
				if d, ok := e.Value().DocumentOK(); ok {
					walk(d)
				}
			}
			_ = doc.Lookup("x", "y")
		}
		walk(b)
	})
}

// FuzzValueSize: a size never exceeds the bytes that there are, depends on
// nothing behind the value, and is what the driver finds too.
func FuzzValueSize(f *testing.F) {
	for typ, v := range samples() {
		f.Add(byte(typ), append(v[:len(v):len(v)], 7))
	}
	f.Fuzz(func(t *testing.T, typ byte, b []byte) {
		n, ok := ValueSize(bson.Type(typ), b)
		if !ok {
			return
		}
		if n < 0 || n > len(b) {
			t.Fatalf("type %#x: %d of %d bytes", typ, n, len(b))
		}
		if again, ok := ValueSize(bson.Type(typ), b[:n]); !ok || again != n {
			t.Errorf("type %#x: %d bytes, without the rest %d, %v", typ, n, again, ok)
		}
		if v, rest, ok := bsoncore.ReadValue(b[:n], bsoncore.Type(typ)); ok && (len(v.Data) != n || len(rest) != 0) {
			t.Errorf("type %#x: %d bytes, the driver says %d", typ, n, len(v.Data))
		}
	})
}

// The name of an element is found wherever it ends, and not past the bytes.
func TestNameLen(t *testing.T) {
	for n := range 20 {
		name := bytes.Repeat([]byte{'a'}, n)
		if got := NameLen(append(append([]byte{}, name...), 0, 'b')); got != n {
			t.Errorf("%d bytes: %d", n, got)
		}
		if got := NameLen(name); got != -1 {
			t.Errorf("%d bytes without an end: %d", n, got)
		}
	}
}

// Next cuts off one element after the other, and nothing of what is malformed.
func TestNext(t *testing.T) {
	rest := bsoncore.AppendStringElement(bsoncore.AppendInt32Element(nil, "", 1), "long name of a field", "x")
	var names []string
	for len(rest) > 0 {
		e, r, ok := Next(rest)
		if !ok {
			t.Fatalf("no element in %x", rest)
		}
		names, rest = append(names, string(e.Name)), r
	}
	if len(names) != 2 || names[0] != "" || names[1] != "long name of a field" {
		t.Errorf("%q", names)
	}
	for _, bad := range []string{"", "\x10", "\x10a", "\x10a\x00\x01\x02\x03", "\xeea\x00\x01"} {
		if _, _, ok := Next([]byte(bad)); ok {
			t.Errorf("%q has an element", bad)
		}
	}
}

func benchDocument() []byte {
	var elements []byte
	for _, name := range []string{"_id", "customer", "amount", "at", "paid", "state", "note"} {
		elements = bsoncore.AppendStringElement(elements, name, "twenty bytes of text")
	}
	return bsoncore.BuildDocument(nil, elements)
}

func BenchmarkField(b *testing.B) {
	doc := benchDocument()
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := Field(doc, "note"); !ok {
			b.Fatal("not found")
		}
	}
}

func BenchmarkValid(b *testing.B) {
	doc := benchDocument()
	b.ReportAllocs()
	for b.Loop() {
		if !Valid(doc, MaxDepth) {
			b.Fatal("not valid")
		}
	}
}
