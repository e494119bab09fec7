package bench

import (
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/millrace/millrace/test/golden"
)

// stored is a report with cases of each form: rates, a value that is compared,
// a peer that failed, a matrix and trees.
func stored(t *testing.T) *Report {
	t.Helper()
	raw, err := os.ReadFile("testdata/report.json")
	if err != nil {
		t.Fatal(err)
	}
	var r Report
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	return &r
}

// TestGoldenReports writes a stored report in all forms.
func TestGoldenReports(t *testing.T) {
	for name, write := range map[string]func(io.Writer, *Report) error{
		"report.txt":    WriteText,
		"report.html":   WriteHTML,
		"shares.svg":    func(w io.Writer, r *Report) error { return WriteSVG(w, r, "") },
		"latency.svg":   func(w io.Writer, r *Report) error { return WriteSVG(w, r, "latency/w-majority") },
		"summary.jsonl": writeSummaries,
	} {
		t.Run(name, func(t *testing.T) {
			var b strings.Builder
			if err := write(&b, stored(t)); err != nil {
				t.Fatal(err)
			}
			golden.Equal(t, name, b.String())
		})
	}
}

// writeSummaries computes the figures again and writes a contender a line.
func writeSummaries(w io.Writer, r *Report) error {
	lines := json.NewEncoder(w)
	for i := range r.Cases {
		r.Cases[i].summarize()
		for _, x := range r.Cases[i].Contenders {
			x.Rounds, x.How = nil, ""
			if err := lines.Encode(x); err != nil {
				return err
			}
		}
	}
	return nil
}
