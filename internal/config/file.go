package config

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
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
	doc, ok := r.parse(raw)
	if !ok || doc == nil {
		return nil, r.problems
	}
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

func (c commandFlags) anyKnows(key string) bool {
	for _, names := range c {
		if slices.Contains(names, key) {
			return true
		}
	}
	return false
}

func (r *fileReader) fail(line int, key, what, how string) {
	where := "file " + filepath.Clean(r.path)
	if line > 0 {
		where = fmt.Sprintf("%s line %d", where, line)
	}
	r.problems = append(r.problems, Problem{Setting: key, Where: where, What: what, How: how})
}

// parse returns the single mapping of the file, nil for an empty one.
func (r *fileReader) parse(raw []byte) (doc *ast.MappingNode, ok bool) {
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
	switch n := body.(type) {
	case nil:
		return nil, true
	case *ast.MappingNode:
		return n, true
	case *ast.MappingValueNode:
		return &ast.MappingNode{Values: []*ast.MappingValueNode{n}}, true
	}
	r.fail(line(body), "", "is not a mapping", "write one `name: value` a line")
	return nil, false
}

// syntaxError takes line and message from a parser's error, but not the
// excerpt of the file, which may hold a password.
func syntaxError(err error) (int, string) {
	var e yaml.Error
	if errors.As(err, &e) && e.GetToken() != nil && e.GetToken().Position != nil {
		what := "is not YAML"
		if m := e.GetMessage(); !strings.ContainsAny(m, "@/") {
			what += ": " + m
		}
		return e.GetToken().Position.Line, what
	}
	return 0, "is not YAML"
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// top splits the file into general settings and those of the command's own
// section; other sections are checked but not used.
func (r *fileReader) top(doc *ast.MappingNode) (general, section []entry) {
	for _, kv := range doc.Values {
		key, ok := r.key(kv)
		if !ok {
			continue
		}
		if names, is := r.sets[key]; is && (mapping(kv.Value) || !r.sets.anyKnows(key)) {
			entries := r.section(key, kv, names)
			if key == r.command {
				section = entries
			}
			continue
		}
		if !r.sets.anyKnows(key) {
			r.unknown(kv, key, r.allKeys())
			continue
		}
		if e, ok := r.entry(key, kv); ok && slices.Contains(r.sets[r.command], key) {
			general = append(general, e)
		}
	}
	return general, section
}

func (r *fileReader) section(command string, kv *ast.MappingValueNode, names []string) []entry {
	var values []*ast.MappingValueNode
	switch n := kv.Value.(type) {
	case *ast.MappingNode:
		values = n.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{n}
	case *ast.NullNode, nil:
		return nil
	default:
		r.fail(line(kv.Key), command, "is the section of a command", "write its settings below it, indented")
		return nil
	}
	var out []entry
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

// mapping tells the section of the verify command from sync's setting of the
// same name.
func mapping(n ast.Node) bool {
	switch n.(type) {
	case *ast.MappingNode, *ast.MappingValueNode:
		return true
	}
	return false
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

func (r *fileReader) allKeys() []string {
	var out []string
	for command, names := range r.sets {
		out = append(append(out, command), names...)
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// entry reads a value: a scalar, a list of scalars, or for rename a mapping.
func (r *fileReader) entry(key string, kv *ast.MappingValueNode) (entry, bool) {
	e := entry{key: key, line: line(kv.Key)}
	if key == flagConfig {
		r.fail(e.line, key, "cannot be set in a file", "give it as a flag")
		return e, false
	}
	var ok bool
	if key == "rename" {
		e.values, ok = pairs(kv.Value)
	}
	if !ok {
		e.values, ok = list(kv.Value)
	}
	if !ok {
		if s, is := scalar(kv.Value); is {
			e.values, ok = []string{s}, true
			if isListKey(key) {
				e.values = splitList(s)
			}
		}
	}
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

func list(n ast.Node) ([]string, bool) {
	seq, ok := n.(*ast.SequenceNode)
	if !ok {
		return nil, false
	}
	out := make([]string, 0, len(seq.Values))
	for _, v := range seq.Values {
		s, ok := scalar(v)
		if !ok {
			return nil, false
		}
		out = append(out, s)
	}
	return out, true
}

// pairs reads `rename: {from: to}`.
func pairs(n ast.Node) ([]string, bool) {
	var values []*ast.MappingValueNode
	switch m := n.(type) {
	case *ast.MappingNode:
		values = m.Values
	case *ast.MappingValueNode:
		values = []*ast.MappingValueNode{m}
	default:
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
	if len(s) > 40 {
		return fmt.Sprintf("%q…", s[:40])
	}
	return fmt.Sprintf("%q", s)
}
