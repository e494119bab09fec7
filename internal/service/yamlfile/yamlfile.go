// Package yamlfile reads small YAML files of known keys. It reports errors with line and remedy, and knows nothing
// of what the files are about.
package yamlfile

import (
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/goccy/go-yaml/ast"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/suggest"
)

// MaxFile bounds a file, in bytes.
const MaxFile = 1 << 20

// Reader reads a file and collects its problems, without values that may be secrets.
type Reader struct {
	File     string
	Resolve  config.Resolver
	Problems config.Problems
}

// Fail adds a problem at a node, nil for the entire file, with its remedy.
func (r *Reader) Fail(n ast.Node, setting, what, how string) {
	line := 0
	if n != nil {
		line = config.Line(n)
	}
	r.Problems = append(r.Problems, config.ProblemAt(r.File, line, setting, what, how))
}

// Load reads the file of a setting, up to one byte more than MaxFile.
func Load(setting, file string) ([]byte, error) {
	f, err := os.Open(file) //nolint:gosec // the operator names it
	if err != nil {
		return nil, config.Problems{{Setting: setting, Where: "file " + file, What: "cannot be read: " + err.Error(),
			How: "give the path of a YAML file"}}
	}
	defer func() { _ = f.Close() }()
	raw, err := io.ReadAll(io.LimitReader(f, MaxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read the file of --%s: %w", setting, err)
	}
	return raw, nil
}

// Whole reads a file that is a mapping of known keys. Its error is a config.Problems.
func (r *Reader) Whole(raw []byte, how string, read func(Section), known ...string) error {
	body, problems := config.YAML(r.File, raw[:min(len(raw), MaxFile)], how)
	switch {
	case len(raw) > MaxFile:
		r.Fail(nil, "", fmt.Sprintf("is larger than %d bytes", MaxFile), "check the path")
	case len(problems) > 0:
		r.Problems = append(r.Problems, problems...)
	case body == nil:
		r.Fail(nil, "", "has no settings", how)
	default:
		if s, ok := r.Section(body, "", how, known...); ok {
			read(s)
		}
	}
	if len(r.Problems) > 0 {
		return r.Problems
	}
	return nil
}

// Section is a mapping with known keys.
type Section struct {
	*Reader
	// Node and Name are those of the section in problems.
	Node ast.Node
	Name string
	// Values has the settings by key.
	Values map[string]ast.Node
}

// Section reads a mapping.
func (r *Reader) Section(n ast.Node, name, how string, known ...string) (Section, bool) {
	s := Section{Reader: r, Node: n, Name: name, Values: map[string]ast.Node{}}
	list, ok := config.Mapping(n)
	if !ok {
		r.Fail(n, name, "is not a mapping of keys to values", how)
		return s, false
	}
	if len(list) > 0 {
		s.Node = list[0].Key
	}
	for _, v := range list {
		key := v.Key.String()
		switch best := suggest.Name(key, known); {
		case !slices.Contains(known, key) && best != "":
			r.Fail(v.Key, s.At(key), "is unknown", "did you mean "+best+"?")
		case !slices.Contains(known, key):
			r.Fail(v.Key, s.At(key), "is unknown", "use "+strings.Join(known, ", "))
		case s.Values[key] != nil:
			r.Fail(v.Key, s.At(key), "is set twice", "leave one of them out")
		default:
			s.Values[key] = v.Value
		}
	}
	return s, true
}

// At returns the name of a setting of the section.
func (s Section) At(key string) string {
	if s.Name == "" {
		return key
	}
	return s.Name + "." + key
}

func (s Section) where(key string) ast.Node {
	if n := s.Values[key]; n != nil {
		return n
	}
	return s.Node
}

// Bad adds a problem of a setting.
func (s Section) Bad(key, what, how string) { s.Fail(s.where(key), s.At(key), what, how) }

// Text returns a single value, "" if there is none.
func (s Section) Text(key string) string {
	n := s.Values[key]
	if n == nil {
		return ""
	}
	text, ok := config.Scalar(n)
	if !ok {
		s.Bad(key, "is not a single value", "write a text")
	}
	return text
}

// Texts returns a list of values, none if it is left out.
func (s Section) Texts(key, how string) (out []string) {
	n := s.Values[key]
	if n == nil {
		return nil
	}
	list := s.Items(key, how)
	if _, ok := n.(*ast.SequenceNode); ok && len(list) == 0 {
		s.Bad(key, "is an empty list", how)
	}
	for _, v := range list {
		text, ok := config.Scalar(v)
		if !ok || text == "" {
			s.Fail(v, s.At(key), "has an item that is not a text", how)
			continue
		}
		out = append(out, text)
	}
	return out
}

// Items returns the items of a list, none if it is left out.
func (s Section) Items(key, how string) []ast.Node {
	n := s.Values[key]
	if n == nil {
		return nil
	}
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		s.Bad(key, "is not a list", how)
		return nil
	}
	return list.Values
}

// Patterns returns the patterns of job names below the key jobs.
func (s Section) Patterns() []string {
	list := s.Texts("jobs", "write patterns of names, as in [shop-*], or leave it out for all jobs")
	for _, p := range list {
		if _, err := path.Match(p, ""); err != nil {
			s.Bad("jobs", fmt.Sprintf("%.40q is not a pattern of names", p), "use * and ?, as in shop-*")
		}
	}
	return list
}

// Duration sets into to a duration of at least 0. It keeps into if the setting is left out.
func (s Section) Duration(key string, into *time.Duration) {
	text := s.Text(key)
	if text == "" {
		return
	}
	d, err := time.ParseDuration(text)
	if err != nil || d < 0 {
		s.Bad(key, fmt.Sprintf("%.40q is not a duration", text), "use a duration such as 30s, 10m or 2h")
		return
	}
	*into = d
}

// Secret returns what a reference stands for, "" if it is left out. Problems do not repeat other texts.
func (s Section) Secret(key string) string {
	text := s.Text(key)
	switch {
	case text == "":
		return ""
	case !config.IsReference(text):
		s.Bad(key, "holds the secret itself",
			"write env:NAME for the variable MILLRACE_SECRET_NAME of serve, or file:NAME for a file of --secrets-dir")
		return ""
	}
	return s.Resolved(key, text)
}

// Resolved returns what a reference stands for.
func (s Section) Resolved(key, reference string) string {
	value, err := s.Resolve("", reference)
	if value = strings.TrimSpace(value); err != nil || value == "" {
		what := fmt.Sprintf("%.100s cannot be read", reference)
		if err != nil {
			what += ": " + err.Error()
		}
		s.Bad(key, what, "set the variable MILLRACE_SECRET_NAME of serve, or write the file in its --secrets-dir")
		return ""
	}
	return value
}
