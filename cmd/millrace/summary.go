package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/verify"
)

// summary is how a sync ended: what --output json prints and --report holds.
type summary struct {
	Version   string         `json:"version"`
	Finalized bool           `json:"finalized"`
	Started   time.Time      `json:"started"`
	Ended     time.Time      `json:"ended"`
	Seconds   float64        `json:"seconds"`
	Error     string         `json:"error,omitempty"`
	Hint      string         `json:"hint,omitempty"`
	Status    job.Status     `json:"status"`
	Plan      *job.Plan      `json:"plan,omitempty"`
	Verify    *verify.Report `json:"verify,omitempty"`

	err error // the command's
}

// maxListed bounds lists in text output; JSON has them whole.
const maxListed = 20

func writeSummary(w io.Writer, sum summary) error {
	s := sum.Status
	copying := s.PhaseSeconds[job.PhaseCopying]
	t := newTable(plain(s.Job), ended(sum))
	t.AppendRows([]table.Row{
		{"duration", clock(time.Duration(sum.Seconds * float64(time.Second)))},
		{"collections", len(s.Copy.Collections)},
		{"documents copied", fmt.Sprintf("%d%s", s.Copy.Docs, average(float64(s.Copy.Docs), copying, count))},
		{"size copied", size(float64(s.Copy.Bytes)) + average(float64(s.Copy.Bytes), copying, size)},
		{"changes applied", s.Follow.Operations},
		{"schema changes", s.Follow.SchemaChanges},
	})
	appendGiven(t, "durable up to", s.Follow.Applied)
	appendConflicts(t, s.Conflicts)
	appendGiven(t, "errors met", errorCounts(s.Errors))
	t.AppendRow(table.Row{"millrace itself", fmt.Sprintf("%.1f s of CPU, at most %s of memory", s.Process.CPUSeconds, size(float64(s.Process.Peak)))})
	if sum.Finalized {
		t.AppendRow(table.Row{"differences", len(s.Differences)})
	}
	var b strings.Builder
	b.WriteString(t.Render())
	b.WriteByte('\n')
	writeDifferences(&b, s.Differences)
	if _, err := io.WriteString(w, b.String()); err != nil || sum.Verify == nil {
		return err
	}
	return writeVerified(w, sum.Verify)
}

func ended(sum summary) string {
	if sum.Finalized {
		return "finalized"
	}
	return "ended in phase " + string(sum.Status.Phase)
}

// average adds the rate over so many seconds to a figure.
func average(n, seconds float64, unit func(float64) string) string {
	if n == 0 || seconds < 0.001 {
		return ""
	}
	return " (" + unit(n/seconds) + "/s on average)"
}

func writeDifferences(b *strings.Builder, differences []string) {
	for i, d := range differences {
		if i == maxListed {
			fmt.Fprintf(b, "  and %d more\n", len(differences)-i)
			return
		}
		fmt.Fprintf(b, "  differs: %s\n", plain(d))
	}
}

func writeJSON(w io.Writer, v any) error {
	raw, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return fmt.Errorf("write result as JSON: %w", err)
	}
	if _, err := w.Write(append(raw, '\n')); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// writeJSONFile replaces the file whole or not at all.
func writeJSONFile(path string, v any) (err error) {
	tmp, err := os.CreateTemp(filepath.Dir(path), "."+filepath.Base(path)+"-*")
	if err != nil {
		return fmt.Errorf("write report: %w", err)
	}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("write report %s: %w", path, err), os.Remove(tmp.Name()))
		}
	}()
	if err := errors.Join(writeJSON(tmp, v), tmp.Chmod(0o644), tmp.Sync(), tmp.Close()); err != nil {
		return err
	}
	return os.Rename(tmp.Name(), path)
}
