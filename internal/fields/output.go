package fields

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type makeKind uint8

const (
	makeConstant makeKind = iota
	makeNamespace
	makeOperation
	makeClusterTime
	makeCopied // of another field
	makeMoved
	makeComputed
)

type maker struct {
	kind     makeKind
	constant value
	from     path
	rule     *valueRule // of what is moved
	expr     *expression
}

// volatile reports a value that a later read of the source cannot reproduce.
func (mk *maker) volatile() bool { return mk.kind == makeOperation || mk.kind == makeClusterTime }

func (mk *maker) mayFail() bool {
	switch mk.kind {
	case makeComputed:
		return mk.expr.otherwise == otherwiseFail
	case makeCopied, makeMoved:
		return len(mk.from.names) > 1 // an array may be on the way
	}
	return false
}

func (w *writer) make(dst []byte, name string, o *output) ([]byte, error) {
	switch mk := &o.make; mk.kind {
	case makeConstant:
		return append(bsonraw.AppendHeader(dst, mk.constant.Type, name), mk.constant.Value...), nil
	case makeNamespace:
		return appendText(bsonraw.AppendHeader(dst, bson.TypeString, name), w.meta.Namespace), nil
	case makeOperation:
		return appendText(bsonraw.AppendHeader(dst, bson.TypeString, name), w.meta.Operation), nil
	case makeClusterTime:
		dst = bsonraw.AppendHeader(dst, bson.TypeTimestamp, name)
		return binary.LittleEndian.AppendUint64(dst, uint64(w.meta.ClusterTime.T)<<32|uint64(w.meta.ClusterTime.I)), nil
	case makeComputed:
		return mk.expr.make(dst, name, w.doc, o.path.text)
	default:
		return w.copied(dst, name, mk)
	}
}

func (w *writer) copied(dst []byte, name string, mk *maker) ([]byte, error) {
	v, err := lookup(w.doc, mk.from)
	if err != nil || v.Type == none {
		return dst, err
	}
	at := len(dst)
	dst = bsonraw.AppendHeader(dst, v.Type, name)
	if mk.rule == nil {
		return append(dst, v.Value...), nil
	}
	dst, typ, err := mk.rule.append(dst, v, mk.from.text)
	if err != nil {
		return nil, err
	}
	if typ == none {
		return dst[:at], nil
	}
	dst[at] = byte(typ)
	return dst, nil
}

func lookup(doc []byte, p path) (value, error) {
	for i, name := range p.names {
		e, ok := bsonraw.Field(doc, name)
		switch {
		case !ok:
			return value{}, nil
		case i == len(p.names)-1:
			return e.View, nil
		case e.Type == bson.TypeArray:
			return value{}, &Misfit{p.text, "the path goes through an array, which has many values or none"}
		case e.Type != bson.TypeEmbeddedDocument:
			return value{}, nil
		}
		doc = e.Value
	}
	return value{}, nil
}

type value = bsonraw.View

func textOf(v value) string { return string(v.Text()) }

func appendText[T string | []byte](dst []byte, text T) []byte {
	dst = binary.LittleEndian.AppendUint32(dst, uint32(len(text)+1))
	dst = append(dst, text...)
	return append(dst, 0)
}

func appendBool(dst []byte, yes bool) []byte {
	if yes {
		return append(dst, 1)
	}
	return append(dst, 0)
}

func appendInt64(dst []byte, n int64) []byte {
	return binary.LittleEndian.AppendUint64(dst, uint64(n))
}
