// Package dial connects tests with clusters as the product does.
package dial

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// Cluster connects until the test ends.
func Cluster(t testing.TB, uri string, o mongo.Options) *mongo.Cluster {
	t.Helper()
	c, err := mongo.Connect(t.Context(), uri, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}
