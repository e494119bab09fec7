package write

import (
	"slices"
	"strconv"

	"go.mongodb.org/mongo-driver/v2/x/bsonx/bsoncore"

	"github.com/millrace/millrace/internal/delta"
	"github.com/millrace/millrace/internal/docwrite"
	"github.com/millrace/millrace/internal/sink/mongo/fold"
	"github.com/millrace/millrace/internal/stream"
)

// statement is one operation as a command carries it.
type statement struct {
	op      *fold.Op
	doc     []byte // an update's modifiers or the query of a grouped delete, nil for op.Doc
	where   []byte
	guarded bool // it holds only for a document without the fields it inserts
	suspect bool // the document may have a timestamp that the server replaces
}

// size is roughly the statement's size in a command.
func (s *statement) size() int {
	n := max(len(s.doc), len(s.op.Doc))
	if s.guarded {
		n *= 2
	}
	return n + len(s.op.ID.Data) + 32
}

func (s *statement) append(dst []byte, command string, t *fold.Target) []byte {
	switch command {
	case "insert":
		start := len(dst)
		dst = append(dst, s.op.Doc...)
		s.suspect = delta.MayHoldEmptyTimestamp(dst[start:]) // while it is in the processor's cache
		return dst
	case "update":
		return s.appendUpdate(dst, t)
	}
	i, dst := bsoncore.AppendDocumentStart(dst)
	limit := int32(1)
	if s.doc != nil {
		limit = 0
		dst = bsoncore.AppendDocumentElement(dst, "q", s.doc)
	} else {
		dst = s.appendQuery(dst, t)
	}
	dst = bsoncore.AppendInt32Element(dst, "limit", limit)
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func (s *statement) appendUpdate(dst []byte, t *fold.Target) []byte {
	i, dst := bsoncore.AppendDocumentStart(dst)
	dst = s.appendQuery(dst, t)
	upsert := s.op.Kind == stream.Put || s.op.Upsert
	if s.op.Kind == stream.Update {
		dst = bsoncore.AppendDocumentElement(dst, "u", s.doc)
	} else {
		start := len(dst)
		dst = bsoncore.AppendDocumentElement(dst, "u", s.op.Doc)
		s.suspect = delta.MayHoldEmptyTimestamp(dst[start+len("\x03u\x00"):])
		if key := t.Key; !key.IsZero() { // it may have been elsewhere
			dst, upsert = key.AppendCollation(dst), true
		}
	}
	if upsert {
		dst = bsoncore.AppendBooleanElement(dst, "upsert", true)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, i)
	return dst
}

func (s *statement) appendQuery(dst []byte, t *fold.Target) []byte {
	qi, dst := bsoncore.AppendDocumentElementStart(dst, "q")
	dst = bsoncore.AppendValueElement(dst, "_id", s.op.ID)
	switch key := t.Key; {
	case key.IsZero():
	case s.whole():
		dst = key.AppendEquals(dst, s.op.Doc)
	case s.where != nil:
		dst = key.AppendKnown(dst, s.where)
	}
	if s.guarded {
		dst = delta.AppendGuard(dst, s.op.Delta)
	}
	if s.op.Wall != 0 {
		dst = t.Expiry.AppendLive(dst, s.op.Wall)
	}
	dst, _ = bsoncore.AppendDocumentEnd(dst, qi)
	return dst
}

func (s *statement) whole() bool { return s.op.Kind != stream.Update && s.op.Kind != stream.Delete }

// split returns the statements that are so, and the others.
func split(list []statement, is func(*statement) bool) (yes, no []statement) {
	for i := range list {
		if is(&list[i]) {
			yes = append(yes, list[i])
		} else {
			no = append(no, list[i])
		}
	}
	return yes, no
}

// plan holds a batch's statements by command until it is reset.
type plan struct {
	deletes, spared, updates, guarded, rewrites, inserts []statement

	buf []byte // what was translated
}

// bufferKept bounds the buffer kept for the next batch.
const bufferKept = 16 << 20

func (p *plan) reset() {
	for _, list := range []*[]statement{&p.deletes, &p.spared, &p.updates, &p.guarded, &p.rewrites, &p.inserts} {
		clear(*list)
		*list = (*list)[:0]
	}
	if p.buf = p.buf[:0]; cap(p.buf) > bufferKept {
		p.buf = nil
	}
}

// fill translates updates and sorts operations by command. key is the collection's shard key.
func (p *plan) fill(ops []fold.Op, key docwrite.Key) {
	size := 0
	for i := range ops {
		size += len(ops[i].Delta.Raw())
	}
	p.buf = slices.Grow(p.buf, size)
	for i := range ops {
		o := &ops[i]
		keyed := o.Kind == stream.Update && o.Wall == 0 && !key.IsZero()
		if keyed && (o.Upsert || key.Touched(o.Delta)) {
			p.rewrites = append(p.rewrites, statement{op: o}) // for it may belong elsewhere then
		} else {
			p.add(o)
		}
	}
}

func (p *plan) add(o *fold.Op) {
	if o.Wall != 0 {
		s := statement{op: o}
		if o.Kind == stream.Update {
			s, _ = p.translate(o) // a guard that fails has met a mark
		}
		p.spared = append(p.spared, s)
		return
	}
	switch o.Kind {
	case stream.Delete:
		p.deletes = append(p.deletes, statement{op: o})
	case stream.Insert:
		p.inserts = append(p.inserts, statement{op: o})
	case stream.Update:
		switch s, form := p.translate(o); {
		case form == delta.Classic:
			p.updates = append(p.updates, s)
		case form == delta.Guarded && !o.Upsert: // a guard that fails would insert
			p.guarded = append(p.guarded, s)
		default:
			p.rewrites = append(p.rewrites, statement{op: o})
		}
	default:
		p.updates = append(p.updates, statement{op: o})
	}
}

// translate appends an update's statement to buf.
func (p *plan) translate(o *fold.Op) (statement, delta.Form) {
	start := len(p.buf)
	out, form := delta.AppendStatement(p.buf, o.Delta)
	s := statement{op: o, doc: out[start:len(out):len(out)], guarded: form == delta.Guarded}
	if form != delta.None && s.tooLarge() {
		p.buf = out[:start]
		return statement{op: o}, delta.None
	}
	p.buf = out
	return s, form
}

// tooLarge reports that no server takes the update's statement, which has all field paths and the _id.
func (s *statement) tooLarge() bool {
	size := len(s.doc) + len(s.op.ID.Data) + 64
	if s.guarded && 8*size > docwrite.MaxStatement { // a condition may be longer than what it guards
		size += len(delta.AppendGuard(nil, s.op.Delta))
	}
	return size > docwrite.MaxStatement
}

// groupDeletes and groupBytes bound a grouped delete, in documents and bytes of _ids.
const (
	groupDeletes = 100
	groupBytes   = 1 << 20
)

// grouped combines deletes, which halves their cost. _ids that mean something else in a $in stay alone.
func (p *plan) grouped(deletes []statement) (out []statement) {
	alone := 0
	for i := range deletes {
		if !plainID(deletes[i].op.ID) {
			deletes[alone], deletes[i] = deletes[i], deletes[alone]
			alone++
		}
	}
	out = append(out, deletes[:alone]...)
	for plain := deletes[alone:]; len(plain) > 0; {
		n, _ := fitting(plain, groupDeletes, groupBytes)
		s := plain[0]
		if n > 1 {
			s.doc = p.appendIn(plain[:n])
		}
		out, plain = append(out, s), plain[n:]
	}
	return out
}

func (p *plan) appendIn(group []statement) []byte {
	start := len(p.buf)
	q, dst := bsoncore.AppendDocumentStart(p.buf)
	id, dst := bsoncore.AppendDocumentElementStart(dst, "_id")
	in, dst := bsoncore.AppendArrayElementStart(dst, "$in")
	for i := range group {
		dst = bsoncore.AppendValueElement(dst, strconv.Itoa(i), group[i].op.ID)
	}
	dst, _ = bsoncore.AppendArrayEnd(dst, in)
	dst, _ = bsoncore.AppendDocumentEnd(dst, id)
	dst, _ = bsoncore.AppendDocumentEnd(dst, q)
	p.buf = dst
	return dst[start:len(dst):len(dst)]
}

// plainID reports an _id that means itself in a $in.
func plainID(id bsoncore.Value) bool {
	switch id.Type {
	case bsoncore.TypeDouble, bsoncore.TypeString, bsoncore.TypeBinary, bsoncore.TypeObjectID, bsoncore.TypeBoolean,
		bsoncore.TypeDateTime, bsoncore.TypeInt32, bsoncore.TypeTimestamp, bsoncore.TypeInt64, bsoncore.TypeDecimal128:
		return true
	}
	return false
}
