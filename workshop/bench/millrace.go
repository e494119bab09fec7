package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

const jobName = "mrbench"

// millraceSync is the command line of a sync of the bench's data. The clusters
// are in the environment, for their addresses may hold passwords.
func (b *bench) millraceSync(more ...string) []string {
	return b.millraceResume(append([]string{"--restart"}, more...)...)
}

// millraceResume is the same for a job that is there.
func (b *bench) millraceResume(more ...string) []string {
	args := []string{"sync", "--job", jobName, "--include", dataDB + ".*", "--output", "json", "--log-level", "warn"}
	return append(append(args, more...), b.o.MillraceArgs...)
}

// Variant is millrace with other arguments, as a contender beside the plain one.
type Variant struct {
	Name string   // what a report calls it, after "millrace, "
	Args []string // more arguments of its sync
}

// ParseVariant reads name=arguments, the arguments separated by blanks.
func ParseVariant(s string) (Variant, error) {
	name, args, _ := strings.Cut(s, "=")
	v := Variant{Name: strings.TrimSpace(name), Args: strings.Fields(args)}
	if v.Name == "" || len(v.Args) == 0 || !strings.HasPrefix(v.Args[0], "-") {
		return v, mongo.WithHint(fmt.Errorf("%q is no variant of millrace", s), "write name=arguments, such as \"source spared=--source-load=low\"")
	}
	return v, nil
}

// variants are millrace as it is measured anyway, which comes first, and the
// others that are wanted.
func (b *bench) variants() []Variant {
	all := []Variant{{Name: "millrace"}}
	for _, v := range b.o.Variants {
		all = append(all, Variant{"millrace, " + v.Name, v.Args})
	}
	return all
}

// syncs are the contenders of a sync that ends by itself.
func (b *bench) syncs(st *site, prepare, check func(context.Context) error, more ...string) (all []contender) {
	for _, v := range b.variants() {
		args := append(b.millraceSync(more...), v.Args...)
		all = append(all, contender{
			name: v.Name, kind: KindMillrace, how: commandLine(args), prepare: prepare, check: check,
			run: func(ctx context.Context, m *meter) error { return b.runMillrace(ctx, st, m, args) },
		})
	}
	return all
}

// commandLine shows a command of millrace.
func commandLine(args []string) string { return "millrace " + strings.Join(args, " ") }

// clusterEnv tells a millrace where it works, and keeps its records apart.
func (b *bench) clusterEnv(st *site) []string {
	return []string{"MILLRACE_SOURCE=" + st.source.uri, "MILLRACE_TARGET=" + st.target.uri, "XDG_STATE_HOME=" + b.dir}
}

// runMillrace runs a sync to its end.
func (b *bench) runMillrace(ctx context.Context, st *site, m *meter, args []string) error {
	report := filepath.Join(b.dir, "report.json")
	if err := os.RemoveAll(report); err != nil {
		return err
	}
	args = append(slices.Clip(args), "--report", report)
	if err := toEnd(ctx, m, program{name: b.o.Millrace, args: args, env: b.clusterEnv(st)}); err != nil {
		return err
	}
	return phases(report, m)
}

// toEnd runs a program that is measured to its end.
func toEnd(ctx context.Context, m *meter, p program) error {
	c, err := startChild(ctx, p)
	if err != nil {
		return err
	}
	m.runs(c.pid())
	err = c.wait()
	m.used(c.cpu())
	return err
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
