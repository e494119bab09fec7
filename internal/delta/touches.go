package delta

import (
	"bytes"

	"github.com/millrace/millrace/internal/bsonraw"
)

// Touches reports that an update may change a top-level field, or something in it.
func (d Delta) Touches(field string) bool {
	if d.kind == Diff {
		return diffTouches(d.diff(), field)
	}
	for section, ok := range bsonraw.Fields(d.o) {
		if !ok {
			return true
		}
		if section.Type != typeObject || !dollar(section.Name) {
			continue
		}
		for f, ok := range bsonraw.Fields(section.Value) {
			if name, _, _ := bytes.Cut(f.Name, []byte(".")); !ok || string(name) == field {
				return true
			}
		}
	}
	return false
}

func diffTouches(diff []byte, field string) bool {
	for section, ok := range bsonraw.Fields(diff) {
		if !ok {
			return true
		}
		if len(section.Name) > 1 { // a sub diff: s and the field's name
			if string(section.Name[1:]) == field {
				return true
			}
			continue
		}
		if string(section.Name) == "s" && field == "" {
			return true
		}
		if _, found := bsonraw.Field(section.Value, field); found {
			return true
		}
	}
	return false
}
