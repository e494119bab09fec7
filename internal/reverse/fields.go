package reverse

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/fields"
	"github.com/millrace/millrace/internal/transform"
)

// what says what becomes of documents because of the sections of rules for fields that have no
// inverse. It also names them.
func what() map[string]string {
	return map[string]string{
		"keep":    "documents that are replaced on the new cluster lose the other fields on the old one",
		"drop":    "documents that are replaced on the new cluster lose these fields on the old one",
		"move":    "the fields come back in another order, and empty documents may stay where they were",
		"set":     "changes of these fields on the new cluster do not come back",
		"from":    "changes of these fields on the new cluster do not come back",
		"compute": "changes of these fields on the new cluster do not come back",
		"convert": "changed values come back in the new type",
		"mask":    "documents that are replaced on the new cluster come back with masked values",
	}
}

// sections are the names of sections that have no inverse.
func sections() []string {
	return []string{"keep", "drop", "move", "set", "from", "compute", "convert", "mask"}
}

// fields inverts rules for fields. What a pattern of the target matches has its first rule, so
// that rules without an inverse stand before others.
func (v *inverter) fields(rules []string) (out []string, losses []Loss, err error) {
	last := 0
	for _, text := range rules {
		of, body, _ := transform.CutRule(text)
		inverse, lost, err := invertFields(body)
		if err != nil {
			return nil, nil, fmt.Errorf("--fields %s: %w", of, err)
		}
		for _, l := range lost {
			l.Rule = fmt.Sprintf("--fields %s: %s", of, l.Rule)
			losses = append(losses, l)
		}
		for _, p := range v.patterns(of) {
			out = append(out, p+"="+inverse)
		}
		if inverse != "{}" {
			last = len(out)
		}
	}
	return out[:last:last], losses, nil
}

type section struct {
	fields bson.D   // paths to paths
	paths  []string // or a list
}

// invertFields inverts the rules of some collections, in extended JSON.
func invertFields(text string) (inverse string, losses []Loss, err error) {
	var rules bson.D
	if err := bson.UnmarshalExtJSON([]byte(text), false, &rules); err != nil {
		return "", nil, fmt.Errorf("the rules are no JSON: %w", err)
	}
	var renamed, moved, dropped section
	for _, s := range rules {
		paths := pathsOf(s.Value)
		switch s.Key {
		case "rename":
			renamed.fields = exchanged(s.Value)
			if note, any := shadowed(renamed.fields); any {
				losses = append(losses, note)
			}
			continue
		case "move":
			moved.fields = exchanged(s.Value)
		case "set", "from", "compute":
			dropped.paths = append(dropped.paths, paths...)
		}
		losses = append(losses, Loss{Name: s.Key, Rule: s.Key + " " + strings.Join(paths, ", "), What: what()[s.Key]})
	}
	for _, try := range [][]section{{renamed, moved, dropped}, {renamed, {}, dropped}, {renamed, {}, {}}} {
		if inverse, err = try[0].with(try[1], try[2]); err == nil {
			return inverse, losses, nil
		}
	}
	return "", nil, err
}

// with writes rules for fields, which it checks.
func (renamed section) with(moved, dropped section) (string, error) {
	doc := bson.D{}
	if len(renamed.fields) > 0 {
		doc = append(doc, bson.E{Key: "rename", Value: renamed.fields})
	}
	if len(moved.fields) > 0 {
		doc = append(doc, bson.E{Key: "move", Value: moved.fields})
	}
	if len(dropped.paths) > 0 {
		doc = append(doc, bson.E{Key: "drop", Value: dropped.paths})
	}
	raw, err := bson.Marshal(doc)
	if err == nil {
		_, err = fields.Parse(raw, nil)
	}
	if err != nil {
		return "", fmt.Errorf("they have no inverse: %w", err)
	}
	json, err := bson.MarshalExtJSON(doc, false, false)
	return string(json), err
}

// pathsOf are the fields that a section is about: its keys, or its list.
func pathsOf(v any) (out []string) {
	switch v := v.(type) {
	case bson.D:
		for _, e := range v {
			out = append(out, e.Key)
		}
	case bson.A:
		for _, one := range v {
			out = append(out, fmt.Sprint(one))
		}
	}
	return out
}

// exchanged has what a field becomes as what it was.
func exchanged(v any) (out bson.D) {
	all, _ := v.(bson.D)
	for _, e := range all {
		if to, ok := e.Value.(string); ok {
			out = append(out, bson.E{Key: to, Value: e.Key})
		}
	}
	return out
}

// shadowed notes the names that fields get, where documents may have fields of these names of
// their own: there and back, a rename leaves those out.
func shadowed(back bson.D) (Loss, bool) {
	var before, names []string
	for _, e := range back {
		before = append(before, fmt.Sprint(e.Value))
	}
	for _, e := range back {
		if !slices.Contains(before, e.Key) {
			names = append(names, e.Key)
		}
	}
	return Loss{Name: "rename", Note: true, Fields: names, Rule: "rename to " + strings.Join(names, ", "),
			What: "documents that had a field of this name before lose it when they are replaced on the new cluster"},
		len(names) > 0
}
