package main

import (
	"strings"
	"testing"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/test/golden"
)

// TestGoldenOutputs holds what commands without a server print.
func TestGoldenOutputs(t *testing.T) {
	for name, args := range map[string]string{
		"help.txt":             "help",
		"topology-what-if.txt": "topology what-if --members 15",
		"topology-fit.txt":     "topology what-if --published",
		"topology-advise.txt":  "topology advise --members 15",
	} {
		t.Run(name, func(t *testing.T) {
			var out, errs strings.Builder
			a := newApp()
			a.Stdout, a.Stderr = &out, &errs
			if code := a.run(t.Context(), strings.Fields(args)); code != cli.ExitOK {
				t.Fatalf("exit code %d: %s", code, &errs)
			}
			golden.Equal(t, name, out.String())
		})
	}
}
