// Package precheck looks before anything is done: checks with their outcomes,
// and the plan of a replication between two clusters. It reads, and writes
// nothing; it knows rules and what is stored of a job, but no job. List alone
// serves other commands too.
package precheck

import (
	"fmt"
	"log/slog"
	"regexp"
	"slices"
	"strings"

	"github.com/millrace/millrace/internal/mongo"
)

// Level is the outcome of a check.
type Level string

// The outcomes; a failed check keeps the work from being begun.
const (
	OK   Level = "ok"
	Warn Level = "warn"
	Fail Level = "fail"
)

// Check is one thing that was looked at.
type Check struct {
	Name    string `json:"name"`
	Level   Level  `json:"level"`
	Message string `json:"message"`
	// Hint is what an operator can do about it.
	Hint string `json:"hint,omitempty"`
}

// checkExisting is the check of what the target has already.
const checkExisting = "target collections"

// Skips are settings, each of which has a failed check pass: those that its hint names.
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

// List are checks in the order in which they were made. It is not safe for
// concurrent use.
type List []Check

// Add adds a check.
func (l *List) Add(level Level, name, message, hint string) {
	*l = append(*l, Check{Name: name, Level: level, Message: mongo.Concise(message), Hint: hint})
}

// Of returns the checks with an outcome.
func (l List) Of(level Level) List {
	return slices.DeleteFunc(slices.Clone(l), func(c Check) bool { return c.Level != level })
}

// Failed reports whether any check forbids the work.
func (l List) Failed() bool { return len(l.Of(Fail)) > 0 }

// Err names every failed check with what can be done; nil if there is none.
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

// Failed is the error of checks of which some forbid the work; nothing was
// written.
type Failed List

// Error is its lines.
func (f Failed) Error() string { return strings.Join(f.Lines(), "\n") }

// Lines name each failed check, and if there are several also what can be done.
func (f Failed) Lines() []string {
	failed := List(f).Of(Fail)
	if len(failed) == 1 {
		return []string{"precheck " + failed[0].Name + ": " + failed[0].Message}
	}
	lines := []string{fmt.Sprintf("%d checks failed:", len(failed))}
	for _, c := range failed {
		lines = append(lines, "  "+c.Name+": "+c.Message)
		if c.Hint != "" {
			lines = append(lines, "    hint: "+c.Hint)
		}
	}
	return lines
}

// LogWarnings logs the checks that call for attention and forbid nothing.
func (l List) LogWarnings(log *slog.Logger) {
	for _, c := range l.Of(Warn) {
		log.Warn("precheck: "+c.Message, "check", c.Name, "hint", c.Hint)
	}
}
