package copy

import (
	"testing"

	"github.com/millrace/millrace/internal/mongo"
)

// TestFindsAlike: filters are sent to servers of the versions that were asked.
func TestFindsAlike(t *testing.T) {
	for text, want := range map[string]bool{"4.2.6": false, "4.4.2": true, "4.4.29": true, "4.9.0": false, "5.0.4": true,
		"5.3.1": false, "6.0.5": true, "6.1.0": false, "7.0.28": false, "8.0.0": false} {
		v, err := mongo.ParseVersion(text)
		if err != nil {
			t.Fatal(err)
		}
		if findsAlike(v) != want {
			t.Errorf("%s: %v", text, !want)
		}
	}
}
