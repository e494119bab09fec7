package main

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
)

// The bench drops a database of the clusters that it is given: they have to be
// meant.
func TestBenchOfGivenClustersNeedsYes(t *testing.T) {
	given := []string{"bench", "no-such-scenario", "--source-uri=mongodb://127.0.0.1:1",
		"--target-uri=mongodb://127.0.0.1:1"}
	b := newBench(t)
	if code := b.run(t.Context(), given...); code != cli.ExitUsage || !strings.Contains(b.stderr.String(), "--yes") ||
		!strings.Contains(b.stderr.String(), "mrbench") {
		t.Errorf("code %d\n%s", code, b.stderr)
	}
	if code := b.run(t.Context(), append(given, "--yes")...); code != cli.ExitUsage ||
		strings.Contains(b.stderr.String(), "--yes") {
		t.Errorf("code %d\n%s", code, b.stderr)
	}
}
