package config

import (
	"encoding/json"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// ruleSets reads rules that are written as a mapping, in its order: `filter` and `fields`
// as patterns with documents, `skip` and
// `soft-delete` as patterns with words.
func ruleSets(key string, n ast.Node) (out []string, ok bool) {
	values, ok := mapping(n)
	if !ok || key != "filter" && key != "fields" && key != "skip" && key != "soft-delete" {
		return nil, false
	}
	escapes := strings.NewReplacer(`\`, `\\`, "=", `\=`)
	for _, kv := range values {
		pattern, ok := scalar(kv.Key)
		if !ok {
			return nil, false
		}
		var rule string
		if key == "skip" || key == "soft-delete" {
			rule, ok = operations(kv.Value)
		} else {
			rule, ok = jsonOf(kv.Value)
		}
		if !ok {
			return nil, false
		}
		out = append(out, escapes.Replace(pattern)+"="+rule)
	}
	return out, true
}

func operations(n ast.Node) (string, bool) {
	if one, ok := scalar(n); ok {
		return one, true
	}
	all, ok := list(n)
	return strings.Join(all, ","), ok
}

// jsonOf writes a value as JSON, in the order of the file.
func jsonOf(n ast.Node) (string, bool) {
	if values, ok := mapping(n); ok {
		var parts []string
		for _, kv := range values {
			name, ok := scalar(kv.Key)
			value, is := jsonOf(kv.Value)
			if !ok || !is {
				return "", false
			}
			parts = append(parts, quoted(name)+":"+value)
		}
		return "{" + strings.Join(parts, ",") + "}", true
	}
	switch v := n.(type) {
	case *ast.SequenceNode:
		var parts []string
		for _, one := range v.Values {
			text, ok := jsonOf(one)
			if !ok {
				return "", false
			}
			parts = append(parts, text)
		}
		return "[" + strings.Join(parts, ",") + "]", true
	case *ast.NullNode:
		return "null", true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		text, _ := scalar(n)
		return text, json.Valid([]byte(text))
	}
	text, ok := scalar(n)
	return quoted(text), ok
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string has a form in JSON
	return string(b)
}
