package fields

// Schema returns definitions of a JSON Schema for editors; "fields" are the rules of a collection.
// What Parse takes is valid. Parse may still refuse what is valid: rules that overlap, expressions,
// unreadable keys.
func Schema() map[string]any {
	properties := schema{}
	for _, s := range sections() {
		properties[s.name] = s.schema
	}
	return map[string]any{"fields": schema{"type": "object", "description": "how the fields of documents are mapped",
		"properties": properties, "additionalProperties": false, "not": schema{"required": []string{"keep", "drop"}}}}
}

type schema = map[string]any

// nameForm is a name that rules may be about: not empty, without a leading dollar, not all digits.
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

func each(name, rule schema, about string) schema {
	return schema{"type": "object", "minProperties": 1, "propertyNames": name, "additionalProperties": rule,
		"description": about}
}

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
