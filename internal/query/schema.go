package query

// Schema returns definitions of a JSON Schema for editors, "filter" is a filter as configured. What
// Parse takes is valid, except a mix of operators and fields. Parse may still refuse what is valid,
// such as a regex.
func Schema() map[string]any {
	dollar := schema{"pattern": `^\$`}
	return map[string]any{
		"filter": schema{"type": "object", "description": "the documents that find returns for this filter",
			"propertyNames": schema{"if": dollar, "then": schema{"enum": logicalNames()},
				"else": schema{"not": schema{"pattern": `^\.|\.\.|\.$`}}},
			"properties": schema{"$and": refTo("filters"), "$or": refTo("filters"), "$nor": refTo("filters"),
				"$comment": schema{}},

			"additionalProperties": refTo("condition")},
		"filters": schema{"type": "array", "minItems": 1, "items": refTo("filter")},
		"condition": schema{"description": "a value, or operators such as {$in: [open, paid]}",
			"if":   schema{"type": "object", "minProperties": 1, "propertyNames": dollar},
			"then": schema{"if": extended(), "else": refTo("operators")},
			"else": schema{"propertyNames": schema{"not": dollar}}},
		"operators": schema{"type": "object", "minProperties": 1, "properties": operands(), "additionalProperties": false,
			"dependentRequired": schema{"$options": []string{"$regex"}}},
	}
}

type schema = map[string]any

func refTo(name string) schema { return schema{"$ref": "#/$defs/" + name} }

func either(forms ...any) schema { return schema{"anyOf": forms} }

// extended is a value in extended JSON, such as {$oid: …}, with these names only, if any.
func extended(names ...string) schema {
	if names == nil {
		names = []string{"$oid", "$date", "$numberInt", "$numberLong", "$numberDouble", "$numberDecimal", "$binary", "$uuid",
			"$regularExpression", "$timestamp", "$minKey", "$maxKey", "$symbol", "$code", "$scope", "$dbPointer"}
	}
	return schema{"type": "object", "minProperties": 1, "propertyNames": schema{"enum": names}}
}

func operands() schema {
	number := extended("$numberInt", "$numberLong", "$numberDouble", "$numberDecimal")
	whole := either(schema{"type": "integer"}, number)
	natural := either(schema{"type": "integer", "minimum": 0}, number)
	mask := either(natural, schema{"type": "array", "items": natural}, extended("$binary", "$uuid", "$type"))
	regex := extended("$regularExpression", "$regex", "$options")
	null := schema{"type": "null"}
	comparison := extended("$eq", "$ne", "$gt", "$gte", "$lt", "$lte", "$in", "$nin", "$not", "$exists", "$elemMatch")
	// null stands by itself.
	list := schema{"type": "array", "if": schema{"contains": null}, "then": schema{"items": null},
		"items": schema{"not": comparison}}
	kind := either(schema{"enum": append(namedTypes(), "number")}, whole)
	out := schema{
		"$in": list, "$nin": list, "$all": schema{"type": "array"}, "$exists": schema{}, "$size": natural,
		"$not":        either(refTo("operators"), regex),
		"$type":       either(kind, schema{"type": "array", "minItems": 1, "items": kind}),
		"$regex":      either(schema{"type": "string"}, regex),
		"$options":    schema{"type": "string", "pattern": "^[imsx]*$"},
		"$mod":        schema{"type": "array", "minItems": 2, "maxItems": 2, "items": whole},
		"$elemMatch":  either(refTo("operators"), refTo("filter")),
		"$bitsAllSet": mask, "$bitsAllClear": mask, "$bitsAnySet": mask, "$bitsAnyClear": mask,
	}
	for _, name := range operatorNames() {
		if _, ok := comparisonOf(name); ok || name == "$ne" {
			out[name] = schema{}
		}
	}
	return out
}

func namedTypes() (out []string) {
	for _, name := range typeNames() {
		if name != "" {
			out = append(out, name)
		}
	}
	return out
}
