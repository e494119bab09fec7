package main

import (
	"strings"
	"testing"
)

// The bench drops a database of the clusters that it is given: they have to be
// meant.
func TestBenchOfGivenClustersNeedsYes(t *testing.T) {
	given := []string{"bench", "no-such-scenario", "--source-uri=mongodb://127.0.0.1:1", "--target-uri=mongodb://127.0.0.1:1"}
	b := newBench(t, nil)
	if code := b.run(t.Context(), given...); code != exitUsage || !strings.Contains(b.stderr.String(), "--yes") || !strings.Contains(b.stderr.String(), "mrbench") {
		t.Errorf("code %d\n%s", code, b.stderr)
	}
	if code := b.run(t.Context(), append(given, "--yes")...); code != exitUsage || strings.Contains(b.stderr.String(), "--yes") {
		t.Errorf("code %d\n%s", code, b.stderr)
	}
}
