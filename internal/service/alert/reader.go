package alert

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/near"
)

// reader reads the file of alerts, and gathers what is wrong with it. It tells of no
// value that may be a secret.
type reader struct {
	file     string
	resolve  config.Resolver
	problems config.Problems
}

func (r *reader) fail(n ast.Node, setting, what, how string) {
	where := "file " + r.file
	if at := line(n); at > 0 {
		where = fmt.Sprintf("%s line %d", where, at)
	}
	r.problems = append(r.problems, config.Problem{Setting: setting, Where: where, What: what, How: how})
}

func line(n ast.Node) int {
	if n == nil || n.GetToken() == nil || n.GetToken().Position == nil {
		return 0
	}
	return n.GetToken().Position.Line
}

// root is the mapping that the file is, nil where it is none.
func (r *reader) root(raw []byte, how string) ast.Node {
	// The parser indexes its tokens unchecked: what it cannot cope with must end nothing.
	defer func() {
		if recover() != nil {
			r.fail(nil, "", "is not YAML", how)
		}
	}()
	parsed, err := parser.ParseBytes(raw, 0)
	if err != nil {
		what, where := "is not YAML", "file "+r.file
		if e, ok := errors.AsType[yaml.Error](err); ok {
			what += ": " + e.GetMessage()
			if t := e.GetToken(); t != nil && t.Position != nil {
				where = fmt.Sprintf("%s line %d", where, t.Position.Line)
			}
		}
		r.problems = append(r.problems, config.Problem{Where: where, What: what, How: how})
		return nil
	}
	if len(parsed.Docs) != 1 || parsed.Docs[0].Body == nil {
		r.fail(nil, "", "has no settings", how)
		return nil
	}
	return parsed.Docs[0].Body
}

// section is a mapping of the file whose keys are known.
type section struct {
	*reader
	node   ast.Node
	name   string // for problems
	values map[string]ast.Node
}

// section reads a mapping.
func (r *reader) section(n ast.Node, name, how string, known ...string) (section, bool) {
	s := section{reader: r, node: n, name: name, values: map[string]ast.Node{}}
	var list []*ast.MappingValueNode
	switch n := n.(type) {
	case *ast.MappingNode:
		if list = n.Values; len(list) > 0 {
			s.node = list[0].Key
		}
	case *ast.MappingValueNode:
		list = []*ast.MappingValueNode{n}
		s.node = n.Key
	default:
		r.fail(n, name, "is no mapping", how)
		return s, false
	}
	for _, v := range list {
		key := v.Key.String()
		switch best := near.Name(key, known); {
		case !contains(known, key) && best != "":
			r.fail(v.Key, s.at(key), "is unknown", "did you mean "+best+"?")
		case !contains(known, key):
			r.fail(v.Key, s.at(key), "is unknown", "use "+strings.Join(known, ", "))
		case s.values[key] != nil:
			r.fail(v.Key, s.at(key), "is there twice", "leave one of them out")
		default:
			s.values[key] = v.Value
		}
	}
	return s, true
}

func contains(list []string, s string) bool {
	for _, one := range list {
		if one == s {
			return true
		}
	}
	return false
}

// at is the name of a setting of the section.
func (s section) at(key string) string {
	if s.name == "" {
		return key
	}
	return s.name + "." + key
}

// where is the node of a setting, or else of the section.
func (s section) where(key string) ast.Node {
	if n := s.values[key]; n != nil {
		return n
	}
	return s.node
}

func (s section) bad(key, what, how string) { s.fail(s.where(key), s.at(key), what, how) }

// text is a single value, "" where there is none.
func (s section) text(key string) string {
	n := s.values[key]
	if n == nil {
		return ""
	}
	text, ok := scalar(n)
	if !ok {
		s.bad(key, "is no single value", "write a text")
	}
	return text
}

func scalar(n ast.Node) (string, bool) {
	switch v := n.(type) {
	case *ast.StringNode:
		return v.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return strings.TrimSpace(n.GetToken().Value), true
	}
	return "", false
}

// texts are a list of values, none where it is left out.
func (s section) texts(key, how string) (out []string) {
	n := s.values[key]
	if n == nil {
		return nil
	}
	list, ok := n.(*ast.SequenceNode)
	if !ok || len(list.Values) == 0 {
		s.bad(key, "is no list", how)
		return nil
	}
	for _, v := range list.Values {
		text, ok := scalar(v)
		if !ok || text == "" {
			s.fail(v, s.at(key), "has an item that is no text", how)
			continue
		}
		out = append(out, text)
	}
	return out
}

// duration is a time that is not negative, or the one that is there already.
func (s section) duration(key string, into *time.Duration) {
	text := s.text(key)
	if text == "" {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		s.bad(key, fmt.Sprintf("%.40q is no time", text), "use a duration such as 30s, 10m or 2h")
		return
	}
	*into = d
}

// secret is what a reference stands for, "" where it is left out. What is no reference
// is told to be one, and is not repeated.
func (s section) secret(key string) string {
	text := s.text(key)
	switch {
	case text == "":
		return ""
	case !config.IsReference(text):
		s.bad(key, "holds the secret itself", "write env:NAME for the variable MILLRACE_SECRET_NAME of serve, or file:NAME for a file of --secrets-dir")
		return ""
	}
	return s.resolved(key, text)
}

func (s section) resolved(key, reference string) string {
	value, err := s.resolve(reference)
	if value = strings.TrimSpace(value); err != nil || value == "" {
		what := fmt.Sprintf("%.100s cannot be had", reference)
		if err != nil {
			what += ": " + err.Error()
		}
		s.bad(key, what, "give it to serve")
		return ""
	}
	return value
}
