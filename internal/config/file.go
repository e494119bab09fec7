package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/spf13/pflag"
)

// maxFile bounds a configuration file; a larger one is a wrong path.
const maxFile = 256 << 10

// entry is one setting found in a file.
type entry struct {
	key    string
	values []string
	line   int
}

// parseFile reads the settings of command from a YAML file: a mapping whose
// keys are flag names, or names of commands that hold such a mapping. A
// section's own setting wins over a general one. Keys that only other commands
// know are passed over, keys that none knows are problems.
func parseFile(path string, raw []byte, command string) ([]entry, Problems) {
	r := fileReader{path: path, command: command, sets: sortedSets()}
	if len(raw) > maxFile {
		r.fail(0, "", fmt.Sprintf("is %d bytes long, more than the %d of any configuration", len(raw), maxFile), "check the path")
		return nil, r.problems
	}
	doc, _ := r.parse(raw)
	general, section := r.top(doc)
	for _, e := range general {
		if !slices.ContainsFunc(section, func(s entry) bool { return s.key == e.key }) {
			section = append(section, e)
		}
	}
	return section, r.problems
}

type fileReader struct {
	path, command string
	sets          commandFlags
	problems      Problems
}

// commandFlags lists the flag names of each command.
type commandFlags map[string][]string

func sortedSets() commandFlags {
	out := commandFlags{}
	for command, fs := range flagSets() {
		out[command] = flagNames(fs)
	}
	return out
}

// flagNames lists the flags of a set in alphabetical order.
func flagNames(fs *pflag.FlagSet) []string {
	var out []string
	fs.VisitAll(func(f *pflag.Flag) { out = append(out, f.Name) })
	return out
}

func (c commandFlags) anyKnows(key string) bool { return slices.Contains(c.all(false), key) }

// all lists the settings, and the commands if asked for, in alphabetical order.
func (c commandFlags) all(commands bool) (out []string) {
	for command, names := range c {
		if out = append(out, names...); commands {
			out = append(out, command)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

func (r *fileReader) fail(line int, key, what, how string) {
	where := "file " + filepath.Clean(r.path)
	if line > 0 {
		where = fmt.Sprintf("%s line %d", where, line)
	}
	r.problems = append(r.problems, Problem{Setting: key, Where: where, What: what, How: how})
}

// parse returns the single mapping of the file, nil for an empty one.
func (r *fileReader) parse(raw []byte) (doc []*ast.MappingValueNode, ok bool) {
	// The parser indexes its tokens unchecked: a file it cannot cope with must
	// not end the program.
	defer func() {
		if recover() != nil {
			r.fail(0, "", "is not YAML", "write one `name: value` a line")
			doc, ok = nil, false
		}
	}()
	file, err := parser.ParseBytes(raw, 0)
	if err != nil {
		line, what := syntaxError(err)
		r.fail(line, "", what, "write one `name: value` a line")
		return nil, false
	}
	var body ast.Node
	for _, d := range file.Docs {
		if d.Body == nil || d.Body.Type() == ast.NullType || d.Body.Type() == ast.CommentType {
			continue
		}
		if body != nil {
			r.fail(line(d.Body), "", "starts a second document", "keep all settings in one")
			return nil, false
		}
		body = d.Body
	}
	if body == nil {
		return nil, true
	}
	if doc, ok = mapping(body); !ok {
		r.fail(line(body), "", "is not a mapping", "write one `name: value` a line")
	}
	return doc, ok
}

// mapping gives the pairs of a mapping; one of a single pair is another node.
func mapping(n ast.Node) ([]*ast.MappingValueNode, bool) {
	switch n := n.(type) {
	case *ast.MappingNode:
		return n.Values, true
	case *ast.MappingValueNode:
		return []*ast.MappingValueNode{n}, true
	}
	return nil, false
}

// syntaxError takes line and message from a parser's error, but not the
// excerpt of the file, which may hold a password.
func syntaxError(err error) (int, string) {
	var e yaml.Error
	if !errors.As(err, &e) {
		return 0, "is not YAML"
	}
	if m := e.GetMessage(); !strings.ContainsAny(m, "@/") {
		return lineOf(e.GetToken()), "is not YAML: " + m
	}
	return lineOf(e.GetToken()), "is not YAML"
}

func line(n ast.Node) int {
	if n == nil {
		return 0
	}
	return lineOf(n.GetToken())
}

func lineOf(t *token.Token) int {
	if t == nil || t.Position == nil {
		return 0
	}
	return t.Position.Line
}

// top splits the file into general settings and those of the command's own
// section; other sections are checked but not used.
func (r *fileReader) top(doc []*ast.MappingValueNode) (general, section []entry) {
	for _, kv := range doc {
		key, ok := r.key(kv)
		if !ok {
			continue
		}
		// The section of the verify command has the name of a setting of sync.
		values, nested := mapping(kv.Value)
		if names, is := r.sets[key]; is && (nested || !r.sets.anyKnows(key)) {
			if _, empty := kv.Value.(*ast.NullNode); !nested && !empty && kv.Value != nil {
				r.fail(line(kv.Key), key, "is the section of a command", "write its settings below it, indented")
			}
			entries := r.section(values, names)
			if key == r.command {
				section = entries
			}
			continue
		}
		if !r.sets.anyKnows(key) {
			r.unknown(kv, key, r.sets.all(true))
			continue
		}
		if e, ok := r.entry(key, kv); ok && slices.Contains(r.sets[r.command], key) {
			general = append(general, e)
		}
	}
	return general, section
}

func (r *fileReader) section(values []*ast.MappingValueNode, names []string) (out []entry) {
	for _, kv := range values {
		key, ok := r.key(kv)
		if !ok {
			continue
		}
		if !slices.Contains(names, key) {
			r.unknown(kv, key, names)
			continue
		}
		if e, ok := r.entry(key, kv); ok {
			out = append(out, e)
		}
	}
	return out
}

func (r *fileReader) key(kv *ast.MappingValueNode) (string, bool) {
	if s, ok := scalar(kv.Key); ok && s != "" {
		return s, true
	}
	r.fail(line(kv.Key), "", "has a key that is not a plain name", "use the names of flags")
	return "", false
}

func (r *fileReader) unknown(kv *ast.MappingValueNode, key string, known []string) {
	how := "see the command's --help for the names"
	if near := nearest(key, known); near != "" {
		how = "did you mean " + near + "?"
	}
	r.fail(line(kv.Key), shorten(key), "is not a setting", how)
}

// entry reads a value: a scalar, a list of scalars, or for rename a mapping.
func (r *fileReader) entry(key string, kv *ast.MappingValueNode) (entry, bool) {
	e := entry{key: key, line: line(kv.Key)}
	if key == flagConfig {
		r.fail(e.line, key, "cannot be set in a file", "give it as a flag")
		return e, false
	}
	values, ok := pairs(key, kv.Value)
	if !ok {
		values, ok = list(kv.Value)
	}
	if one, is := scalar(kv.Value); is {
		if values, ok = []string{one}, true; isListKey(key) {
			values = splitList(one)
		}
	}
	e.values = values
	if !ok {
		r.fail(e.line, key, "has a value of the wrong shape", "write a single value or a list of values; quote what contains special characters")
	}
	return e, ok
}

func isListKey(key string) bool { return key == "include" || key == "exclude" || key == "rename" }

func splitList(s string) []string {
	var out []string
	for item := range strings.SplitSeq(s, ",") {
		if item = strings.TrimSpace(item); item != "" {
			out = append(out, item)
		}
	}
	return out
}

// scalar gives the text of a plain value as it is written, without YAML's
// notions of numbers and times: 6.0 stays 6.0.
func scalar(n ast.Node) (string, bool) {
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

func list(n ast.Node) (out []string, ok bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, false
	}
	for _, v := range seq.Values {
		s, is := scalar(v)
		out, ok = append(out, s), ok && is
	}
	return out, ok
}

// pairs reads `rename: {from: to}`.
func pairs(key string, n ast.Node) ([]string, bool) {
	values, ok := mapping(n)
	if !ok || key != "rename" {
		return nil, false
	}
	escapes := strings.NewReplacer(`\`, `\\`, "=", `\=`)
	var out []string
	for _, kv := range values {
		from, ok1 := scalar(kv.Key)
		to, ok2 := scalar(kv.Value)
		if !ok1 || !ok2 {
			return nil, false
		}
		out = append(out, escapes.Replace(from)+"="+escapes.Replace(to))
	}
	return out, true
}

// nearest finds the known name that key most likely means, or "".
func nearest(key string, known []string) string {
	best, distance := "", len(key)/3+1
	for _, name := range known {
		if d := editDistance(key, name, distance); d <= distance && (best == "" || d < distance) {
			best, distance = name, d
		}
	}
	return best
}

// editDistance is Levenshtein's; anything above limit may be reported as
// limit+1.
func editDistance(a, b string, limit int) int {
	if len(a)-len(b) > limit || len(b)-len(a) > limit {
		return limit + 1
	}
	prev := make([]int, 0, len(b)+1)
	for j := range len(b) + 1 {
		prev = append(prev, j)
	}
	for i := range len(a) {
		cur := append(make([]int, 0, len(prev)), i+1)
		for j := range len(b) {
			cost := 1
			if a[i] == b[j] {
				cost = 0
			}
			cur = append(cur, min(prev[j]+cost, prev[j+1]+1, cur[j]+1))
		}
		prev = cur
	}
	return prev[len(b)]
}

func shorten(s string) string {
	if len(s) <= 40 {
		return strconv.Quote(s)
	}
	return strconv.Quote(s[:40]) + "…"
}
