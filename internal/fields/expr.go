package fields

import (
	"slices"
	"strings"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/ast"
	"cel.dev/cel-go/common/operators"
	"cel.dev/cel-go/common/types"
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
