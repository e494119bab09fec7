// Package kit has what tests of many packages need: documents, connections and waiting. It
// imports nothing of the product, so that tests inside any package can use it.
package kit

import (
	"context"
	"fmt"
	"os"
	"testing"
	"time"

	"go.mongodb.org/mongo-driver/v2/bson"
	"go.mongodb.org/mongo-driver/v2/mongo"
	"go.mongodb.org/mongo-driver/v2/mongo/options"
)

// D makes a document of names and values in turn.
func D(fields ...any) bson.D {
	out := bson.D{}
	for i := 0; i < len(fields); i += 2 {
		out = append(out, bson.E{Key: fields[i].(string), Value: fields[i+1]})
	}
	return out
}

// Raw returns a document as BSON. It panics at what is not a document.
func Raw(doc any) bson.Raw {
	raw, err := bson.Marshal(doc)
	if err != nil {
		panic(fmt.Sprintf("not a document: %v: %v", doc, err))
	}
	return raw
}

// Value returns a value as BSON. It panics at what BSON does not have.
func Value(v any) bson.RawValue {
	kind, data, err := bson.MarshalValue(v)
	if err != nil {
		panic(fmt.Sprintf("not a value: %v: %v", v, err))
	}
	return bson.RawValue{Type: kind, Value: data}
}

// Capture returns MILLRACE_CAPTURE, which millrace reads, too: how the jobs of tests read the source.
func Capture() string { return os.Getenv("MILLRACE_CAPTURE") }

// Via returns MILLRACE_VIA: how they read a sharded source.
func Via() string { return os.Getenv("MILLRACE_VIA") }

// Streamed reports that they read change streams. docs/reference/capture.md says what these do not have.
func Streamed() bool { return Capture() == "change-streams" || Via() == "routers" }

// Client connects with the driver until the test ends.
func Client(t testing.TB, uri string, more ...*options.ClientOptions) *mongo.Client {
	t.Helper()
	c, err := mongo.Connect(append([]*options.ClientOptions{options.Client().ApplyURI(uri)}, more...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Disconnect(context.Background()) })
	return c
}

// Until waits until something holds, for four minutes at most: the test has hung then.
func Until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(4 * time.Minute); !holds(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) || t.Context().Err() != nil {
			t.Fatalf("waited in vain until %s", what)
		}
	}
}

// SameLines ends the test at the first line that differs.
func SameLines(t testing.TB, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		var g, w string
		if i < len(got) {
			g = got[i]
		}
		if i < len(want) {
			w = want[i]
		}
		if g != w {
			t.Fatalf("%d lines, want %d; line %d is\n\t%.1500s\nwant\n\t%.1500s", len(got), len(want), i, g, w)
		}
	}
}
