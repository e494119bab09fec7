package stream

import (
	"strings"
	"testing"
)

func TestParseOps(t *testing.T) {
	const documents, changes = "insert,update,replace,delete,", "create,drop,rename,createIndexes,dropIndexes,collMod"
	for text, want := range map[string]string{
		"delete,drop": "delete,drop", " Drop , DELETE ": "delete,drop", "none": "none", "drop,dropDatabase": "drop",
		"TTL": "ttl", "ttl,drop,rename": "drop,rename,ttl", "delete,ttl": "delete,ttl",
		documents + changes: documents + changes,
	} {
		if got, err := ParseOps(text); err != nil || got.String() != want {
			t.Errorf("%q: %s, %v", text, got, err)
		}
	}
	for text, want := range map[string]string{"": "no operation", "deletes": "there are insert",
		"dropDatabase": "write drop", "delete,": "no operation",
		"ttl,update": "ttl with update:", "insert,ttl,collMod": "ttl with insert,collMod:"} {
		if _, err := ParseOps(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
