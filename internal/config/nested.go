package config

import (
	"encoding/json"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/millrace/millrace/internal/stream"
)

// ruleForm is how the rules of a setting are written as a mapping: each below its pattern.
type ruleForm struct {
	// read gives a rule as a flag has it, or the node that stands where none can.
	read    func(ast.Node) (text string, wrong ast.Node, ok bool)
	how     string // to write them
	pattern schema // of the keys; nil is a pattern of namespaces
	schema  schema // of a rule
}

// ruleForms are those of the settings that may be written so.
func ruleForms() map[string]ruleForm {
	word := func(n ast.Node) (string, ast.Node, bool) {
		one, ok := scalar(n)
		return one, n, ok
	}
	name := func(n ast.Node) (string, ast.Node, bool) {
		one, wrong, ok := word(n)
		return escaped(one), wrong, ok
	}
	words := func(n ast.Node) (string, ast.Node, bool) {
		if one, ok := scalar(n); ok {
			return one, nil, true
		}
		all, lines := list(n)
		return strings.Join(all, ","), worst(n), lines != nil
	}
	document := func(n ast.Node) (string, ast.Node, bool) {
		if _, ok := mapping(n); !ok {
			return "", n, false
		}
		return jsonOf(n)
	}
	operation := schema{"enum": append(stream.OpNames(), "none")}
	field := schema{"type": "string", "pattern": `^[^.$;]+$`, "not": schema{"const": "_id"}}
	return map[string]ruleForm{
		"filter":      {document, "write for example shop.orders: {status: open}, as find takes it", nil, refTo("filter")},
		"fields":      {document, "write for example shop.orders: {drop: [card]}", nil, refTo("fields")},
		"skip":        {words, "write for example shop.orders: [delete, drop]", nil, either(operation, schema{"type": "string", "pattern": ","}, schema{"type": "array", "minItems": 1, "items": operation})},
		"soft-delete": {word, "write for example shop.orders: deletedAt", nil, field},
		"rename":      {name, "write for example shop: store", schema{"minLength": 1}, schema{"type": "string", "minLength": 1}},
	}
}

// escaped is a name or a pattern as it stands on a side of a flag's =.
func escaped(name string) string { return strings.NewReplacer(`\`, `\\`, "=", `\=`).Replace(name) }

// ruleSets reads rules that are written as a mapping, in its order.
func (r *fileReader) ruleSets(key string, form ruleForm, values []*ast.MappingValueNode) (out []string, lines []int, ok bool) {
	ok = true
	for _, kv := range values {
		at := line(kv.Key.GetToken())
		pattern, plain := scalar(kv.Key)
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
	if values, ok := mapping(n); ok {
		parts := make([]string, len(values))
		for i, kv := range values {
			name, ok := scalar(kv.Key)
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
		if text, _ := scalar(n); json.Valid([]byte(text)) {
			return text, nil, true
		}
		return "", n, false
	}
	if text, ok := scalar(n); ok {
		return quoted(text), nil, true
	}
	return "", n, false
}

func quoted(text string) string {
	b, _ := json.Marshal(text) // a string has a form in JSON
	return string(b)
}
