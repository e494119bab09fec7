package fields

// Schema describes rules for editors, as definitions of a JSON Schema: "fields" are those
// of a collection. What Parse takes is valid. Of what is valid Parse may still refuse
// some: rules that overlap, expressions, keys that cannot be read.
func Schema() map[string]any {
	properties := schema{}
	for _, s := range sections() {
		properties[s.name] = s.schema
	}
	return map[string]any{"fields": schema{"type": "object", "description": "how the fields of documents are mapped",
		"properties": properties, "additionalProperties": false, "not": schema{"required": []string{"keep", "drop"}}}}
}

type schema = map[string]any

// nameForm is of a field, or a path of several, that rules may be about: none is empty, begins
// with a dollar or is written in digits.
const nameForm = `(?:[^.$0-9][^.]*|[0-9]+[^.0-9][^.]*)`

func pathSchema() schema {
	return schema{"type": "string", "pattern": "^" + nameForm + `(?:\.` + nameForm + ")*$",
		"not": schema{"pattern": `^_id(\.|$)`}}
}

// wholePath is one that may be _id.
func wholePath() schema { return either(pathSchema(), schema{"const": "_id"}) }

func topLevel() schema {
	return schema{"type": "string", "pattern": "^" + nameForm + "$", "not": schema{"const": "_id"}}
}

func either(forms ...any) schema { return schema{"anyOf": forms} }

func pathsSchema(path schema, about string) schema {
	return schema{"type": "array", "minItems": 1, "items": path, "description": about}
}

// each is a section of one rule for each name.
func each(name, rule schema, about string) schema {
	return schema{"type": "object", "minProperties": 1, "propertyNames": name, "additionalProperties": rule,
		"description": about}
}

// optionSchema is a document of them, one of which may be required.
func optionSchema(required string, all schema) schema {
	out := schema{"type": "object", "properties": all, "additionalProperties": false}
	if required != "" {
		out["required"] = []string{required}
	}
	return out
}

func otherwiseSchema(keep bool) schema {
	return schema{"enum": append(anyOf(otherwiseNames(keep)), nil), "default": otherwiseNames(keep)[0],
		"description": "what becomes of a value that does not fit"}
}

func anyOf(names []string) (out []any) {
	for _, name := range names {
		out = append(out, name)
	}
	return out
}
