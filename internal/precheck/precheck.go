// Package precheck makes the plan of a replication between two clusters, and the checks before it. It writes nothing.
// It knows rules and the stored state of a job, but no job. Other commands use List too.
package precheck

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// Level is the result of a check.
type Level string

// The results; a failed check forbids the work.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Check is one check with its result.
type Check struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Hint is the remedy.
	Hint string `json:"hint,omitempty"`
}

const checkExisting = "target collections"

// Skips returns the settings that let a failed check pass: those in its hint.
func (c Check) Skips() []string {
	if c.Level != Fail {
		return nil
	}
	if c.Name == checkExisting {
		return []string{"on-existing: merge", "on-existing: drop"}
	}
	var out []string
	allowing := regexp.MustCompile(`--(allow-downgrade|allow-missing|allow-overlap|allow-shard)\b`)
	for _, m := range allowing.FindAllStringSubmatch(c.Hint, -1) {
		out = append(out, m[1]+": true")
	}
	return out
}

// List has checks in their order. It is not safe for concurrent use.
type List []Check

// Add adds a check.
func (l *List) Add(level Level, name, message, hint string) {
	*l = append(*l, Check{Name: name, Level: level, Message: mongo.Concise(message), Hint: hint})
}

// Of returns the checks with a level.
func (l List) Of(level Level) List {
	return slices.DeleteFunc(slices.Clone(l), func(c Check) bool { return c.Level != level })
}

// Failed reports whether any check forbids the work.
func (l List) Failed() bool { return len(l.Of(Fail)) > 0 }

// Err returns an error with each failed check and its hint; nil if there is none.
func (l List) Err() error {
	failed := l.Of(Fail)
	switch len(failed) {
	case 0:
		return nil
	case 1:
		return mongo.WithHint(Failed(l), failed[0].Hint)
	}
	return Failed(l)
}

// Failed is the error of checks that forbid the work; nothing was written.
type Failed List

// Error returns the lines.
func (f Failed) Error() string { return strings.Join(f.Lines(), "\n") }

// Lines returns each failed check, with hints if there are several.
func (f Failed) Lines() []string {
	failed := List(f).Of(Fail)
	if len(failed) == 1 {
		return []string{"precheck " + failed[0].Name + ": " + failed[0].Message}
	}
	const most = 20
	lines := []string{fmt.Sprintf("%d checks failed:", len(failed))}
	for i, c := range failed {
		if i == most {
			return append(lines, fmt.Sprintf("  and %d more", len(failed)-most))
		}
		lines = append(lines, "  "+c.Name+": "+c.Message)
		if c.Hint != "" {
			lines = append(lines, "    hint: "+c.Hint)
		}
	}
	return lines
}

// LogWarnings logs the checks with warnings.
func (l List) LogWarnings(log *slog.Logger) {
	for _, c := range l.Of(Warn) {
		log.Warn("precheck: "+c.Message, "check", c.Name, "hint", c.Hint)
	}
}
