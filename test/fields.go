package test

import (
	"fmt"
	"slices"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"
)

// Mappings reads what CompareOptions.Fields is from the settings of a job: for a source
// namespace, the stages by which a server maps its documents. Patterns are those of
// Filters.
func Mappings(rules []string) func(ns string) bson.A {
	of := Filters(rules)
	return func(ns string) bson.A {
		raw := of(ns)
		if raw == nil {
			return nil
		}
		return mappingOf(raw)
	}
}

// mappingOf does with a server's own means what rules for fields say, as far as tests
// use them. Documents are taken apart at the top level, for the order of fields counts.
func mappingOf(rules bson.Raw) (stages bson.A) {
	known := []string{"drop", "rename", "set", "from", "mask", "convert"}
	all, _ := rules.Elements()
	for _, e := range all {
		if !slices.Contains(known, e.Key()) {
			panic("tests know no rule " + e.Key())
		}
	}
	section := func(name string) (els []bson.RawElement) {
		if doc, ok := rules.Lookup(name).DocumentOK(); ok {
			els, _ = doc.Elements()
		}
		return els
	}
	for _, e := range section("convert") { // of what does not fit there is no document
		if rule := e.Value().Document(); rule.Lookup("otherwise").StringValue() == "fail" {
			fits := converted("$"+e.Key(), rule.Lookup("to").StringValue(), misfit)
			stages = append(stages,
				bson.D{{Key: "$match", Value: bson.D{{Key: "$expr", Value: bson.D{{Key: "$ne", Value: bson.A{fits, misfit}}}}}}})
		}
	}
	for _, e := range section("from") {
		if first, _, deep := strings.Cut(e.Value().StringValue(), "."); deep {
			stages = append(stages,
				bson.D{{Key: "$match",
					Value: bson.D{{Key: "$expr",
						Value: bson.D{{Key: "$not", Value: bson.A{bson.D{{Key: "$isArray", Value: "$" + first}}}}}}}}})
		}
	}
	var away, nested bson.A
	drops, _ := rules.Lookup("drop").ArrayOK()
	values, _ := drops.Values()
	for _, v := range values {
		if path := v.StringValue(); strings.Contains(path, ".") {
			nested = append(nested, path)
		} else {
			away = append(away, path)
		}
	}
	if nested != nil {
		stages = append(stages, bson.D{{Key: "$unset", Value: nested}})
	}
	var name, value bson.A // branches
	renames := section("rename")
	for _, e := range renames {
		name = append(name, bson.D{{Key: "case", Value: is(e.Key())}, {Key: "then", Value: literal(e.Value().StringValue())}})
	}
	for _, e := range renames { // a field of that name that is not renamed itself
		if to := e.Value().StringValue(); !slices.ContainsFunc(renames,
			func(o bson.RawElement) bool { return o.Key() == to }) {
			away = append(away, to)
		}
	}
	for _, e := range slices.Concat(section("mask"), section("convert")) {
		value = append(value, bson.D{{Key: "case", Value: is(e.Key())}, {Key: "then", Value: valueOf(e.Value())}})
	}
	made := bson.A{bson.A{keyed(literal("_id"), "$_id")}}
	for _, e := range section("set") {
		away = append(away, e.Key())
		made = append(made, bson.A{keyed(literal(e.Key()), literal(e.Value()))})
	}
	for _, e := range section("from") {
		away = append(away, e.Key())
		from := "$" + e.Value().StringValue()
		made = append(made,
			bson.D{{Key: "$cond",
				Value: bson.A{bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: from}}, "missing"}}},
					bson.A{}, bson.A{keyed(literal(e.Key()), from)}}}})
	}
	rest := bson.D{{Key: "$filter", Value: bson.D{{Key: "input", Value: bson.D{{Key: "$objectToArray", Value: "$$ROOT"}}},
		{Key: "as", Value: "f"},
		{Key: "cond",
			Value: bson.D{{Key: "$not",
				Value: bson.A{bson.D{{Key: "$in", Value: bson.A{"$$f.k", literal(append(away, "_id"))}}}}}}}}}}
	made = append(made, bson.D{{Key: "$map", Value: bson.D{{Key: "input", Value: rest}, {Key: "as", Value: "f"},
		{Key: "in", Value: keyed(branches(name, "$$f.k"), branches(value, "$$f.v"))}}}})
	return append(stages,
		bson.D{{Key: "$replaceWith",
			Value: bson.D{{Key: "$arrayToObject", Value: bson.D{{Key: "$concatArrays", Value: made}}}}}})
}

// misfit stands for what a conversion does not take.
const misfit = "no such value"

func is(name string) bson.D {
	return bson.D{{Key: "$eq", Value: bson.A{"$$f.k", literal(name)}}}
}

func literal(v any) bson.D { return bson.D{{Key: "$literal", Value: v}} }

func keyed(k, v any) bson.D { return bson.D{{Key: "k", Value: k}, {Key: "v", Value: v}} }

func branches(list bson.A, otherwise string) any {
	if list == nil {
		return otherwise
	}
	return bson.D{{Key: "$switch", Value: bson.D{{Key: "branches", Value: list}, {Key: "default", Value: otherwise}}}}
}

// valueOf is what becomes of a value.
func valueOf(rule bson.RawValue) any {
	if rule.Type == bson.TypeString { // a mask
		if rule.StringValue() == "null" {
			return nil
		}
		panic(fmt.Sprintf("tests know no mask %s", rule))
	}
	doc := rule.Document()
	to := doc.Lookup("to").StringValue()
	switch doc.Lookup("otherwise").StringValue() {
	case "keep":
		return converted("$$f.v", to, "$$f.v")
	case "null":
		return converted("$$f.v", to, nil)
	case "fail":
		return converted("$$f.v", to, misfit)
	default:
		panic(fmt.Sprintf("tests know no conversion %s", rule))
	}
}

// converted is the value of another type, or otherwise where it does not fit. A date
// whose year has not four digits makes no string, and onError does not help there: the
// server ends the query.
func converted(value, to string, otherwise any) bson.D {
	convert := bson.D{{Key: "$convert", Value: bson.D{{Key: "input", Value: value}, {Key: "to", Value: to},
		{Key: "onError", Value: otherwise}}}}
	if to != "string" {
		return convert
	}
	const first, last = bson.DateTime(-62167219200000), bson.DateTime(253402300799999)
	fits := bson.D{{Key: "$and", Value: bson.A{bson.D{{Key: "$gte", Value: bson.A{value, first}}},
		bson.D{{Key: "$lte", Value: bson.A{value, last}}}}}}
	date := bson.D{{Key: "$eq", Value: bson.A{bson.D{{Key: "$type", Value: value}}, "date"}}}
	return bson.D{{Key: "$switch", Value: bson.D{
		{Key: "branches",
			Value: bson.A{bson.D{{Key: "case",
				Value: bson.D{{Key: "$and", Value: bson.A{date, bson.D{{Key: "$not", Value: bson.A{fits}}}}}}},
				{Key: "then", Value: otherwise}}}},
		{Key: "default", Value: convert}}}}
}
