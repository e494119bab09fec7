package fields

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"math"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/common/types/ref"
	"cel.dev/cel-go/common/types/traits"
	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/bsonraw"
)

type expression struct {
	program   cel.Program
	otherwise otherwise
	reads     [][]string
}

const (
	mostSteps = 100_000 // of an expression and a document, as CEL counts its cost
	mostText  = 10_000  // characters of one
	mostDepth = 60
	mostTold  = 500 // bytes of an error
)

type compiler struct{ env *cel.Env }

func newCompiler() (*compiler, error) {
	env, err := cel.NewEnv(
		cel.Variable("doc", cel.MapType(cel.StringType, cel.DynType)),
		cel.ParserExpressionSizeLimit(mostText),
		cel.ParserRecursionLimit(mostDepth),
		cel.Function("double", cel.Overload("decimal_to_double", []*cel.Type{decimalType()}, cel.DoubleType,
			cel.UnaryBinding(decimalToDouble))),
		cel.Function("string", cel.Overload("object_id_to_string", []*cel.Type{objectIDType()}, cel.StringType,
			cel.UnaryBinding(objectIDToString))),
	)
	return &compiler{env}, err
}

func computeSchema() schema {
	text := schema{"type": "string", "description": "an expression in CEL, such as doc.a + doc.b"}
	return either(text, optionSchema("expr", schema{"expr": text, "otherwise": otherwiseSchema(false)}))
}

func (p *parser) computed(name string, v value, at place) error {
	e := &expression{}
	if v.IsDocument() {
		given, err := optionsOf(v, at, "expr", "otherwise")
		if err != nil {
			return err
		}
		if e.otherwise, err = readOtherwise(given, at, false); err != nil {
			return err
		}
		v = given["expr"]
	}
	if v.Type != bson.TypeString {
		return at.refuse(
			`it needs an expression, such as "doc.a + doc.b", or {"expr": "doc.a + doc.b", "otherwise": "null"}; for conditions write "doc.a > 1 ? doc.b : null"`)
	}
	if p.compile == nil {
		var err error
		if p.compile, err = newCompiler(); err != nil {
			return at.refuse("expressions cannot be read: %v", err)
		}
	}
	if err := p.compile.compile(e, textOf(v), at); err != nil {
		return err
	}
	return p.output(name, maker{kind: makeComputed, expr: e}, at)
}

func (c *compiler) compile(e *expression, text string, at place) error {
	parsed, issues := c.env.Compile(text)
	if err := issues.Err(); err != nil {
		return at.refuse("it is not an expression of CEL over doc: %s", short(err))
	}
	root := ast.NavigateAST(parsed.NativeRep())
	if hasMap(root) {
		return at.refuse(
			"a map in braces has no order, and the result could be another each time; write its fields as outputs of their " +
				"own, such as \"meta.a\"")
	}
	e.reads = readsIn(root)
	var err error
	if e.program, err = c.env.Program(parsed, cel.CostLimit(mostSteps)); err != nil {
		return at.refuse("it is not an expression of CEL over doc: %s", short(err))
	}
	return nil
}

// short is the first of the errors, which can be as long as the expression.
func short(err error) string {
	text := strings.TrimPrefix(err.Error(), "ERROR: <input>:")
	if i := strings.Index(text, "ERROR: "); i > 0 {
		text = text[:i]
	}
	text, _, _ = strings.Cut(text, "\n") // a picture of the place follows
	return strings.TrimSpace(strings.ToValidUTF8(text[:min(len(text), mostTold)], ""))
}

func hasMap(e ast.NavigableExpr) bool {
	return e.Kind() == ast.MapKind || e.Kind() == ast.StructKind || slices.ContainsFunc(e.Children(), hasMap)
}

func readsIn(e ast.NavigableExpr) [][]string {
	if names, ok := namesOf(e); ok {
		return [][]string{names}
	}
	var out [][]string
	for _, c := range e.Children() {
		out = append(out, readsIn(c)...)
	}
	return out
}

// namesOf is the path of doc.a.b and of doc["a"]["b"].
func namesOf(e ast.Expr) ([]string, bool) {
	switch e.Kind() {
	case ast.IdentKind:
		return nil, e.AsIdent() == "doc"
	case ast.SelectKind:
		names, ok := namesOf(e.AsSelect().Operand())
		if e.AsSelect().IsTestOnly() && len(names) > 0 {
			return names, ok // has looks at what is around the field, too
		}
		return append(names, e.AsSelect().FieldName()), ok
	case ast.CallKind:
		call := e.AsCall()
		if call.FunctionName() != operators.Index || len(call.Args()) != 2 || call.Args()[1].Kind() != ast.LiteralKind {
			return nil, false
		}
		name, isText := call.Args()[1].AsLiteral().(types.String)
		names, ok := namesOf(call.Args()[0])
		return append(names, string(name)), ok && isText
	}
	return nil, false
}

func (e *expression) make(dst []byte, name string, doc []byte, path string) ([]byte, error) {
	if !bsonraw.Valid(doc, bsonraw.MaxDepth) {
		return nil, errBadDocument
	}
	at := len(dst)
	var why string
	got, _, err := e.program.Eval(map[string]any{"doc": &document{raw: doc}})
	if err != nil {
		why = whyFailed(err)
	} else {
		dst, why = appendResult(dst, name, got, 0)
	}
	switch {
	case why == "":
		return dst, nil
	case e.otherwise == otherwiseNull:
		return bsonraw.AppendHeader(dst[:at], bson.TypeNull, name), nil
	case e.otherwise == otherwiseDrop:
		return dst[:at], nil
	}
	return nil, &Misfit{path, why}
}

func whyFailed(err error) string {
	for _, known := range []struct{ says, why string }{
		{"no such key", "the expression reads a field that is missing"},
		{"no such overload", "the expression has no operation for the types of its values"},
		{"cost limit", "the expression takes too many steps"},
		{"by zero", "the expression divides by zero"},
		{"overflow", "the expression's numbers are out of range"},
	} {
		if strings.Contains(err.Error(), known.says) {
			return known.why
		}
	}
	return "the expression cannot be computed"
}

// toCEL is a value as expressions see it. Types that CEL lacks pass unchanged.
func toCEL(v value) ref.Val {
	switch v.Type {
	case bson.TypeDouble:
		return types.Double(v.Double())
	case bson.TypeString:
		return types.String(textOf(v))
	case bson.TypeEmbeddedDocument:
		return &document{raw: v.Value}
	case bson.TypeArray:
		return newArray(v)
	case bson.TypeBoolean:
		return types.Bool(v.Value[0] != 0)
	case bson.TypeNull, bson.TypeUndefined:
		return types.NullValue
	case bson.TypeInt32, bson.TypeInt64:
		n, _ := v.Int()
		return types.Int(n)
	case bson.TypeDateTime:
		return types.Timestamp{Time: time.UnixMilli(v.Int64()).UTC()}
	case bson.TypeBinary:
		if v.Value[4] == bson.TypeBinaryGeneric {
			return types.Bytes(v.Value[5:])
		}
	}
	return opaque{v}
}

// document is a CEL map over a document, in its order.
type document struct{ raw []byte }

func (d *document) ConvertToNative(reflect.Type) (any, error) { return notNative() }

// notNative answers what expressions without messages never ask.
func notNative() (any, error) { return nil, errors.New("it has no form in Go") }

func (d *document) ConvertToType(t ref.Type) ref.Val {
	switch t {
	case types.MapType:
		return d
	case types.TypeType:
		return types.MapType
	}
	return types.NewErr("no such overload")
}

func (d *document) Equal(other ref.Val) ref.Val {
	o, ok := other.(*document)
	return types.Bool(ok && bytes.Equal(d.raw, o.raw))
}

func (d *document) Type() ref.Type { return types.MapType }

func (d *document) Value() any { return d.raw }

func (d *document) Contains(key ref.Val) ref.Val {
	_, ok := d.Find(key)
	return types.Bool(ok)
}

func (d *document) Find(key ref.Val) (ref.Val, bool) {
	name, ok := key.(types.String)
	if !ok {
		return nil, false
	}
	e, ok := bsonraw.Field(d.raw, string(name))
	if !ok {
		return nil, false
	}
	return toCEL(e.View), true
}

func (d *document) Get(key ref.Val) ref.Val {
	if v, ok := d.Find(key); ok {
		return v
	}
	return types.NewErr("no such key")
}

func (d *document) Size() ref.Val {
	n := 0
	for range bsonraw.Fields(d.raw) {
		n++
	}
	return types.Int(n)
}

func (d *document) Iterator() traits.Iterator {
	var names []string
	for e := range bsonraw.Fields(d.raw) {
		names = append(names, string(e.Name))
	}
	return types.NewStringList(types.DefaultTypeAdapter, names).Iterator()
}

type array struct {
	traits.Lister
	value value
}

func newArray(v value) array {
	var list []ref.Val
	for e := range bsonraw.Fields(v.Value) {
		list = append(list, toCEL(e.View))
	}
	return array{types.NewRefValList(types.DefaultTypeAdapter, list), v}
}

type opaque struct{ value value }

func decimalType() *types.Type  { return types.NewOpaqueType("decimal") }
func objectIDType() *types.Type { return types.NewOpaqueType("objectId") }

func (o opaque) ConvertToNative(reflect.Type) (any, error) { return notNative() }

func (o opaque) ConvertToType(t ref.Type) ref.Val {
	if t == types.TypeType {
		return o.Type().(*types.Type)
	}
	return types.NewErr("no such overload")
}

func (o opaque) Equal(other ref.Val) ref.Val {
	p, ok := other.(opaque)
	return types.Bool(ok && o.value.Type == p.value.Type && bytes.Equal(o.value.Value, p.value.Value))
}

func (o opaque) Type() ref.Type {
	switch o.value.Type {
	case bson.TypeDecimal128:
		return decimalType()
	case bson.TypeObjectID:
		return objectIDType()
	}
	return types.NewOpaqueType("bson")
}

func (o opaque) Value() any { return o.value.Value }

func decimalToDouble(v ref.Val) ref.Val {
	o, ok := v.(opaque)
	if !ok || o.value.Type != bson.TypeDecimal128 {
		return types.NewErr("no such overload")
	}
	f, err := strconv.ParseFloat(decimal(o.value).String(), 64)
	if err != nil {
		return types.NewErr("overflow")
	}
	return types.Double(f)
}

func objectIDToString(v ref.Val) ref.Val {
	o, ok := v.(opaque)
	if !ok || o.value.Type != bson.TypeObjectID {
		return types.NewErr("no such overload")
	}
	return types.String(hex.EncodeToString(o.value.Value))
}

const (
	noResult    = "the expression's result is of a type that BSON has not"
	resultRange = "the expression's result is out of range"
)

func appendResult(dst []byte, name string, v ref.Val, depth int) ([]byte, string) {
	switch v := v.(type) {
	case types.Null:
		return bsonraw.AppendHeader(dst, bson.TypeNull, name), ""
	case types.Bool:
		return appendBool(bsonraw.AppendHeader(dst, bson.TypeBoolean, name), bool(v)), ""
	case types.Int:
		return appendInt64(bsonraw.AppendHeader(dst, bson.TypeInt64, name), int64(v)), ""
	case types.Uint:
		if v > math.MaxInt64 {
			return dst, resultRange
		}
		return appendInt64(bsonraw.AppendHeader(dst, bson.TypeInt64, name), int64(v)), ""
	case types.Double:
		dst = bsonraw.AppendHeader(dst, bson.TypeDouble, name)
		return binary.LittleEndian.AppendUint64(dst, math.Float64bits(float64(v))), ""
	case types.String:
		return appendText(bsonraw.AppendHeader(dst, bson.TypeString, name), string(v)), ""
	case types.Bytes:
		dst = bsonraw.AppendHeader(dst, bson.TypeBinary, name)
		dst = append(binary.LittleEndian.AppendUint32(dst, uint32(len(v))), bson.TypeBinaryGeneric)
		return append(dst, v...), ""
	case types.Timestamp:
		return appendInt64(bsonraw.AppendHeader(dst, bson.TypeDateTime, name), v.UnixMilli()), ""
	case *document:
		return append(bsonraw.AppendHeader(dst, bson.TypeEmbeddedDocument, name), v.raw...), ""
	case array:
		return append(bsonraw.AppendHeader(dst, v.value.Type, name), v.value.Value...), ""
	case opaque:
		return append(bsonraw.AppendHeader(dst, v.value.Type, name), v.value.Value...), ""
	case traits.Lister:
		return appendList(dst, name, v, depth)
	}
	return dst, noResult
}

func appendList(dst []byte, name string, list traits.Lister, depth int) ([]byte, string) {
	if depth > mostDepth {
		return dst, noResult
	}
	dst, start := bsonraw.OpenDocument(bsonraw.AppendHeader(dst, bson.TypeArray, name))
	i := 0
	for it := list.Iterator(); it.HasNext() == types.True; i++ {
		var why string
		if dst, why = appendResult(dst, strconv.Itoa(i), it.Next(), depth+1); why != "" {
			return dst, why
		}
	}
	return bsonraw.CloseDocument(dst, start), ""
}
