package transform

import (
	"fmt"
	"strings"

	"go.mongodb.org/mongo-driver/v2/bson"

	"github.com/millrace/millrace/internal/query"
)

// parseFilter reads a filter as find takes it, in extended JSON.
func parseFilter(text string) (q *query.Query, canonical string, err error) {
	var raw bson.Raw
	if err := bson.UnmarshalExtJSON([]byte(text), false, &raw); err != nil {
		return nil, "", fmt.Errorf("the filter is no JSON: %w", err)
	}
	if q, err = query.Parse(raw); err != nil {
		return nil, "", err
	}
	json, err := bson.MarshalExtJSON(raw, true, false)
	// A semicolon can only be in a string, and would end the rule in Set.String.
	return q, strings.ReplaceAll(string(json), ";", `\u003b`), err
}
