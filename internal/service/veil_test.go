package service

import (
	"fmt"
	"strings"
	"testing"
)

// TestVeil: a viewer's entries have no values of documents, and say what happened all the same.
func TestVeil(t *testing.T) {
	e := Entry{Kind: KindLog, Text: "failed: insert in shop.orders, _id \"ada@example.org, at 1: x\", at 1700000000:1: E11000 duplicate key error dup key: { mail: \"ada\" }", Fields: []Field{
		{"ns", "shop.orders"}, {"documentId", "\"ada@example.org\""}, {"reason", "ada has no place"}, {"of.error", "Document failed validation: {mail: \"ada\"}"},
		{"error", "the document with _id 4711 on the target holds its key"}, {"retryIn", "1s"}, {"cause", "E11000 duplicate key error: ada"}}}
	was := fmt.Sprint(e)
	v := e.Veil()
	if text := fmt.Sprint(v); strings.Contains(text, "ada") || strings.Contains(text, "4711") {
		t.Errorf("%s", text)
	}
	if !strings.HasPrefix(v.Text, "failed: insert in shop.orders, "+Veiled) || v.Fields[0].Value != "shop.orders" || v.Fields[5].Value != "1s" || !strings.HasPrefix(v.Fields[3].Value, "Document failed validation: ") {
		t.Errorf("%+v", v)
	}
	if fmt.Sprint(e) != was {
		t.Errorf("the entry itself has changed: %+v", e)
	}
	plain := Entry{Text: "taken by worker w", Fields: []Field{{"error", "connection reset"}}}
	if got := plain.Veil(); fmt.Sprint(got) != fmt.Sprint(plain) {
		t.Errorf("%+v", got)
	}
}
