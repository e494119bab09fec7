package fields

import (
	"encoding/binary"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

// makeKind is where the value of an output comes from.
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

// maker makes the value of an output.
type maker struct {
	kind     makeKind
	constant value
	from     path
	rule     *valueRule // of what is moved
	expr     *expression
}

// volatile says that a later look at the source cannot tell the value.
func (mk *maker) volatile() bool { return mk.kind == makeOperation || mk.kind == makeClusterTime }

// mayFail says that there may be documents of which the value cannot be made.
func (mk *maker) mayFail() bool {
	switch mk.kind {
	case makeComputed:
		return mk.expr.otherwise == otherwiseFail
	case makeCopied, makeMoved:
		return len(mk.from.names) > 1 // an array may be on the way
	}
	return false
}

// make writes an output, or nothing where it has no value.
func (w *writer) make(dst []byte, name string, o *output) ([]byte, error) {
	switch mk := &o.make; mk.kind {
	case makeConstant:
		return append(appendHeader(dst, mk.constant.typ, name), mk.constant.data...), nil
	case makeNamespace:
		return appendText(appendHeader(dst, bson.TypeString, name), w.meta.Namespace), nil
	case makeOperation:
		return appendText(appendHeader(dst, bson.TypeString, name), w.meta.Operation), nil
	case makeClusterTime:
		dst = appendHeader(dst, bson.TypeTimestamp, name)
		return binary.LittleEndian.AppendUint64(dst, uint64(w.meta.ClusterTime.T)<<32|uint64(w.meta.ClusterTime.I)), nil
	case makeComputed:
		return mk.expr.make(dst, name, w.doc, o.path.text)
	default:
		return w.copied(dst, name, mk)
	}
}

// copied writes the value that a path of the source has.
func (w *writer) copied(dst []byte, name string, mk *maker) ([]byte, error) {
	v, err := lookup(w.doc, mk.from)
	if err != nil || v.typ == none {
		return dst, err
	}
	at := len(dst)
	dst = appendHeader(dst, v.typ, name)
	if mk.rule == nil {
		return append(dst, v.data...), nil
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

// lookup is the value that a path leads to, of type none where there is none.
func lookup(doc []byte, p path) (value, error) {
	for i, name := range p.names {
		e, ok := bsonraw.Field(doc, name)
		switch {
		case !ok:
			return value{}, nil
		case i == len(p.names)-1:
			return valueOf(e), nil
		case e.Type == bson.TypeArray:
			return value{}, &Misfit{p.text, "the path goes through an array, which has many values or none"}
		case e.Type != bson.TypeEmbeddedDocument:
			return value{}, nil
		}
		doc = e.Value
	}
	return value{}, nil
}
