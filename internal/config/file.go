package config

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/millrace/millrace/internal/stream"
	"github.com/millrace/millrace/internal/suggest"
)

// maxFile bounds a configuration file; a larger one is a wrong path.
const maxFile = 256 << 10

// maxNesting bounds the nesting of a file: the parser's memory grows with its square.
const maxNesting = 1000

// checkNesting returns an error if brackets, and items within items, are nested deeper than
// maxNesting. It counts those inside of texts too.
func checkNesting(raw []byte) error {
	deepest, brackets, items := 0, 0, 0
	for i, c := range raw {
		switch {
		case c == '[' || c == '{':
			brackets++
		case c == ']' || c == '}':
			brackets = max(0, brackets-1)
		case (c == '-' || c == '?') && i+1 < len(raw) && (raw[i+1] == ' ' || raw[i+1] == '\t'):
			items++
		case c == '\n':
			items = 0
		}
		deepest = max(deepest, brackets+items)
	}
	if deepest > maxNesting {
		return fmt.Errorf("is nested more than %d deep", maxNesting)
	}
	return nil
}

// The parser's time grows with the square of these. All documents but one must be empty.
const (
	maxDocuments = 10
	maxKeys      = 10_000
)

// checkCounts counts lines that may begin a document or have a key.
func checkCounts(raw []byte) error {
	more := func(lines string, most int) bool {
		return len(regexp.MustCompile(`(?:^|[\r\n])`+lines).FindAllIndex(raw, most+1)) > most
	}
	switch {
	case more(`(?:---|\.\.\.)`, maxDocuments):
		return fmt.Errorf("has more than %d documents", maxDocuments)
	case more(`[^:?\r\n]*[:?]`, maxKeys):
		return fmt.Errorf("has more than %d lines with keys", maxKeys)
	}
	return nil
}

type entry struct {
	key    string
	values []string
	line   int
	lines  []int // of the items of a list, or of a mapping of rules
}

// parseFile reads the settings of command from a YAML file: a mapping whose keys are flag names,
// or command names with such a mapping. Settings of a section come first and win. Keys of other
// commands are ignored, unknown keys are problems.
func parseFile(path string, raw []byte, command string) ([]entry, Problems) {
	r := fileReader{path: path, command: command, sets: settingNames()}
	if len(raw) > maxFile {
		r.fail(0, "", fmt.Sprintf("is %d bytes long, more than the %d of any configuration", len(raw), maxFile),
			"check the path")
		return nil, r.problems
	}
	r.read(r.parse(raw), "")
	return append(r.section, r.general...), r.problems
}

type fileReader struct {
	path, command    string
	sets             map[string][]string // setting names by command
	section, general []entry
	problems         Problems
}

func (r *fileReader) fail(line int, key, what, how string) {
	r.problems = append(r.problems, ProblemAt(r.path, line, key, what, how))
}

// ProblemAt is a problem of a file; line 0 is the entire file.
func ProblemAt(path string, line int, setting, what, how string) Problem {
	where := "file " + filepath.Clean(path)
	if line > 0 {
		where = fmt.Sprintf("%s line %d", where, line)
	}
	return Problem{Setting: setting, Where: where, What: what, How: how}
}

func (r *fileReader) parse(raw []byte) []*ast.MappingValueNode {
	const how = "write one `name: value` a line"
	body, problems := YAML(r.path, raw, how)
	r.problems = append(r.problems, problems...)
	doc, ok := Mapping(body)
	if !ok && body != nil {
		r.fail(Line(body), "", "is not a mapping", how)
	}
	return doc
}

// YAML returns the single document of a file, nil for an empty one. how is the remedy of problems.
func YAML(path string, raw []byte, how string) (body ast.Node, problems Problems) {
	fail := func(line int, what, how string) Problems { return Problems{ProblemAt(path, line, "", what, how)} }
	// The parser indexes its tokens unchecked: a file it cannot cope with must not end the program.
	defer func() {
		if recover() != nil {
			body, problems = nil, fail(0, "is not YAML", how)
		}
	}()
	for _, check := range []func([]byte) error{checkNesting, checkCounts} {
		if err := check(raw); err != nil {
			return nil, fail(0, err.Error(), how)
		}
	}
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		at, what := syntaxError(err)
		return nil, fail(at, what, remedy(what, how))
	}
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.NullType || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			return nil, fail(Line(d.Body), "starts a second document", "keep all settings in one")
		}
		body = d.Body
	}
	return body, nil
}

// Mapping gives the pairs of a mapping; one of a single pair is another node.
func Mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// syntaxError returns line and message of a parser's error without its excerpt, which may have a password.
func syntaxError(err error) (int, string) {
	var e yaml.Error
	if !errors.As(err, &e) {
		return 0, "is not YAML"
	}
	if m := e.GetMessage(); !strings.ContainsAny(m, "@/") {
		return Line(e), "is not YAML: " + m
	}
	return Line(e), "is not YAML"
}

func remedy(what, otherwise string) string {
	switch {
	case strings.Contains(what, "already defined"):
		return "write it once"
	case strings.Contains(what, "tab character"), strings.Contains(what, "\t"):
		return "indent with spaces"
	}
	return otherwise
}

// Line returns the line of a node, 0 if it is unknown.
func Line(n interface{ GetToken() *token.Token }) int {
	if n == nil {
		return 0
	}
	t := n.GetToken()
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}

// maxProblems bounds the problems of a file. Each unknown name is compared with all known ones.
const maxProblems = 100

// read reads the pairs of a command's section, or of the entire file if section is "". Sections of
// other commands are checked and not used.
func (r *fileReader) read(pairs []*ast.MappingValueNode, section string) {
	known := r.sets[section]
	if section == "" {
		known = slices.Concat(slices.Collect(maps.Values(r.sets))...)
	}
	for _, kv := range pairs {
		if n := len(r.problems); n == maxProblems {
			r.fail(Line(kv.Key), "", "has more problems than these", "correct them, and try again")
		}
		if len(r.problems) > maxProblems {
			return
		}
		key, ok := Scalar(kv.Key)
		nested, isMapping := Mapping(kv.Value)
		isSetting := slices.Contains(known, key)
		_, isCommand := r.sets[key]
		switch {
		case !ok || key == "":
			r.fail(Line(kv.Key), "", "has a key that is not a plain name", "use the names of flags")
		case section == "" && isCommand && (isMapping || !isSetting): // verify is a setting of sync, too
			if _, empty := kv.Value.(*ast.NullNode); !isMapping && !empty && kv.Value != nil {
				r.fail(Line(kv.Key), key, "is the section of a command", "write its settings below it, indented")
			}
			r.read(nested, key)
		case !isSetting && section == "":
			r.unknown(kv, key, append(known, slices.Collect(maps.Keys(r.sets))...))
		case !isSetting:
			r.unknown(kv, key, known)
		default:
			r.entry(key, kv, section)
		}
	}
}

func (r *fileReader) unknown(kv *ast.MappingValueNode, key string, known []string) {
	how := "see the command's --help for the names"
	if best := suggest.Name(key, known); best != "" {
		how = "did you mean " + best + "?"
	}
	r.fail(Line(kv.Key), shorten(key), "is not a setting", how)
}

// entry reads a value: a scalar, a list of scalars, or for rules a mapping.
func (r *fileReader) entry(key string, kv *ast.MappingValueNode, section string) {
	e := entry{key: key, line: Line(kv.Key)}
	if key == flagConfig {
		r.fail(e.line, key, "cannot be set in a file", "give it as a flag")
		return
	}
	form, rules := ruleForms()[key]
	pairs, isMapping := Mapping(kv.Value)
	one, ok := Scalar(kv.Value)
	switch {
	case ok && slices.Contains([]string{"include", "exclude", "rename", "history"}, key):
		e.values = splitList(one)
	case ok:
		e.values = []string{one}
	case rules && isMapping:
		if e.values, e.lines, ok = r.ruleSets(key, form, pairs); !ok {
			return
		}
	default:
		if e.values, e.lines = list(kv.Value); e.lines == nil {
			r.shape(key, e.line, worst(kv.Value),
				cmp.Or(form.how, "write a single value or a list of values; quote what contains special characters"))
			return
		}
	}
	switch {
	case section == r.command:
		r.section = append(r.section, e)
	case section == "" && slices.Contains(r.sets[r.command], key):
		r.general = append(r.general, e)
	}
}

func worst(n ast.Node) ast.Node {
	if seq, ok := n.(*ast.SequenceNode); ok {
		for _, v := range seq.Values {
			if _, ok := Scalar(v); !ok {
				return v
			}
		}
	}
	return n
}

// shape adds the problem of a node whose kind is not allowed, below a line.
func (r *fileReader) shape(key string, below int, n ast.Node, how string) {
	at, what := below, "has a value of the wrong shape"
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode, *ast.MergeKeyNode:
		what, how = "has an anchor, an alias or a tag of YAML", "write the value itself"
	case *ast.NullNode, nil:
		n, what = nil, "has no value" // nor a line
	case *ast.MappingNode, *ast.MappingValueNode:
		what = "has a mapping where none can stand"
	case *ast.SequenceNode:
		what = "has a list where none can stand"
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode:
		what, how = "has a number that JSON has not", "write it in decimal digits, or quote it if it is text"
	}
	if n != nil && Line(n) > 0 {
		at = Line(n)
	}
	r.fail(at, key, what, how)
}

func splitList(s string) []string {
	var out []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// Scalar returns the text of a plain value as it is written, so 6.0 is not 6.
func Scalar(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.LiteralNode:
		return strings.TrimRight(v.Value.Value, "\n"), true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return strings.TrimSpace(n.GetToken().Value), true
	}
	return "", false
}

func list(n ast.Node) (out []string, lines []int) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, nil
	}
	lines = []int{}
	for _, v := range seq.Values {
		s, is := Scalar(v)
		if !is {
			return nil, nil
		}
		out, lines = append(out, s), append(lines, Line(v))
	}
	return out, lines
}

func shorten(s string) string {
	if len(s) <= 40 {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:40]) + "…"
}

// ruleForm is how the rules of a setting are written as a mapping: each below its pattern.
type ruleForm struct {
	// read gives a rule as a flag has it, or the node that stands where none can.
	read    func(ast.Node) (text string, wrong ast.Node, ok bool)
	how     string // to write them
	pattern schema // of the keys; nil is a pattern of namespaces
	schema  schema // of a rule
}

func ruleForms() map[string]ruleForm {
	word := func(n ast.Node) (string, ast.Node, bool) {
		one, ok := Scalar(n)
		return one, n, ok
	}
	name := func(n ast.Node) (string, ast.Node, bool) {
		one, wrong, ok := word(n)
		return escaped(one), wrong, ok
	}
	words := func(n ast.Node) (string, ast.Node, bool) {
		if one, ok := Scalar(n); ok {
			return one, nil, true
		}
		all, lines := list(n)
		return strings.Join(all, ","), worst(n), lines != nil
	}
	document := func(n ast.Node) (string, ast.Node, bool) {
		if _, ok := Mapping(n); !ok {
			return "", n, false
		}
		return jsonOf(n)
	}
	operation := schema{"enum": append(stream.OpNames(), "none")}
	field := schema{"type": "string", "pattern": `^[^.$;]+$`, "not": schema{"const": "_id"}}
	return map[string]ruleForm{
		"filter": {document, "write for example shop.orders: {status: open}, as find takes it", nil, refTo("filter")},
		"fields": {document, "write for example shop.orders: {drop: [card]}", nil, refTo("fields")},
		"skip": {words, "write for example shop.orders: [delete, drop]", nil, either(operation,
			schema{"type": "string", "pattern": ","}, schema{"type": "array", "minItems": 1, "items": operation})},
		"soft-delete": {word, "write for example shop.orders: deletedAt", nil, field},
		"rename": {name, "write for example shop: store", schema{"minLength": 1},
			schema{"type": "string", "minLength": 1}},
	}
}

// escaped is a name or a pattern as it stands on a side of a flag's =.
func escaped(name string) string { return strings.NewReplacer(`\`, `\\`, "=", `\=`).Replace(name) }

// ruleSets reads rules that are written as a mapping, in its order.
func (r *fileReader) ruleSets(key string, form ruleForm, values []*ast.MappingValueNode) (out []string, lines []int,
	ok bool) {
	ok = true
	for _, kv := range values {
		at := Line(kv.Key)
		pattern, plain := Scalar(kv.Key)
		if !plain {
			r.shape(key, at, kv.Key, form.how)
			return nil, nil, false
		}
		rule, wrong, ok1 := form.read(kv.Value)
		if !ok1 {
			r.shape(key, at, wrong, form.how)
			ok = false
		}
		out, lines = append(out, escaped(pattern)+"="+rule), append(lines, at)
	}
	return out, lines, ok
}

// jsonOf writes a value as JSON, in the order of the file, or gives the node of what has none.
func jsonOf(n ast.Node) (string, ast.Node, bool) {
	if values, ok := Mapping(n); ok {
		parts := make([]string, len(values))
		for i, kv := range values {
			name, ok := Scalar(kv.Key)
			if !ok {
				return "", kv.Key, false
			}
			value, wrong, ok := jsonOf(kv.Value)
			if !ok {
				return "", wrong, false
			}
			parts[i] = quoted(name) + ":" + value
		}
		return "{" + strings.Join(parts, ",") + "}", nil, true
	}
	switch v := n.(type) {
	case *ast.SequenceNode:
		parts := make([]string, len(v.Values))
		for i, one := range v.Values {
			text, wrong, ok := jsonOf(one)
			if !ok {
				return "", wrong, false
			}
			parts[i] = text
		}
		return "[" + strings.Join(parts, ",") + "]", nil, true
	case *ast.NullNode:
		return "null", nil, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		if text, _ := Scalar(n); json.Valid([]byte(text)) {
			return text, nil, true
		}
		return "", n, false
	}
	if text, ok := Scalar(n); ok {
		return quoted(text), nil, true
	}
	return "", n, false
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string has a form in JSON
	return string(b)
}
