package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

const jobName = "mrbench"

// millraceSync is the command line of a sync of the bench's data. The clusters
// are in the environment, for their addresses may hold passwords.
func (b *bench) millraceSync(more ...string) []string {
	args := []string{"sync", "--job", jobName, "--restart", "--include", dataDB + ".*", "--output", "json", "--log-level", "warn"}
	return append(append(args, more...), b.o.MillraceArgs...)
}

// commandLine shows a command of millrace.
func (b *bench) commandLine(args []string) string { return "millrace " + strings.Join(args, " ") }

// clusterEnv tells a millrace where it works, and keeps its records apart.
func (b *bench) clusterEnv(st *site) []string {
	return []string{"MILLRACE_SOURCE=" + st.source.uri, "MILLRACE_TARGET=" + st.target.uri, "XDG_STATE_HOME=" + b.dir}
}

// startMillrace starts millrace as a process of its own.
func (b *bench) startMillrace(ctx context.Context, st *site, m *meter, args []string) (*child, error) {
	c, err := startChild(ctx, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)})
	if err != nil {
		return nil, err
	}
	m.runs(c.pid())
	return c, nil
}

// runMillrace runs millrace to its end.
func (b *bench) runMillrace(ctx context.Context, st *site, m *meter, args []string) error {
	report := filepath.Join(b.dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return err
	}
	c, err := b.startMillrace(ctx, st, m, append(args, "--report", report))
	if err != nil {
		return err
	}
	if err := c.wait(); err != nil {
		return err
	}
	m.used(c.cpu())
	return phases(report, m)
}

// phases notes how long millrace says its phases took, and what it folded.
func phases(report string, m *meter) error {
	raw, err := os.ReadFile(report)
	if err != nil {
		return fmt.Errorf("read the report of millrace: %w", err)
	}
	var r struct {
		Status struct {
			PhaseSeconds map[string]float64 `json:"phaseSeconds"`
			Follow       struct {
				Folded int64 `json:"folded"`
			} `json:"follow"`
		} `json:"status"`
	}
	if err := json.Unmarshal(raw, &r); err != nil {
		return fmt.Errorf("read the report of millrace: %w", err)
	}
	for phase, s := range r.Status.PhaseSeconds {
		m.note(phase, s)
	}
	if n := r.Status.Follow.Folded; n > 0 {
		m.value("operations folded", float64(n))
	}
	return nil
}
