package config

import (
	"fmt"
	"strings"
)

// Problem is one setting that cannot be used. It never holds the value of a
// secret setting.
type Problem struct {
	Setting string // flag name without dashes, or "" for the file as a whole
	Where   string // "flag --mode", "environment MILLRACE_MODE", "file sync.yaml line 3"
	What    string // what is wrong
	How     string // what the operator can do
}

// String is one line for the operator.
func (p Problem) String() string {
	s := strings.TrimPrefix(p.Setting+" "+p.What, " ")
	if p.Where != "" {
		s += " (" + p.Where + ")"
	}
	if p.How != "" {
		s += "; " + p.How
	}
	return s
}

// Problems is all that is wrong with a command's settings. Where there are some,
// it is an error that the command line reports as wrong usage.
type Problems []Problem

// Error is its lines.
func (p Problems) Error() string { return strings.Join(p.Lines(), "\n") }

// Lines list the problems, one a line when there are several.
func (p Problems) Lines() []string {
	if len(p) == 1 {
		return []string{p[0].String()}
	}
	lines := []string{fmt.Sprintf("%d settings cannot be used", len(p))}
	for _, one := range p {
		lines = append(lines, "  "+one.String())
	}
	return lines
}
