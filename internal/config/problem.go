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
	var b strings.Builder
	if p.Setting != "" {
		b.WriteString(p.Setting)
		b.WriteString(" ")
	}
	b.WriteString(p.What)
	if p.Where != "" {
		fmt.Fprintf(&b, " (%s)", p.Where)
	}
	if p.How != "" {
		b.WriteString("; ")
		b.WriteString(p.How)
	}
	return b.String()
}

// Problems is all that is wrong with a command's settings. It is an error that
// the command line reports as wrong usage.
type Problems []Problem

// Error lists the problems, one a line when there are several.
func (p Problems) Error() string {
	if len(p) == 1 {
		return p[0].String()
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%d settings cannot be used", len(p))
	for _, one := range p {
		b.WriteString("\n  ")
		b.WriteString(one.String())
	}
	return b.String()
}

// orNil avoids an empty Problems inside a non-nil error.
func (p Problems) orNil() error {
	if len(p) == 0 {
		return nil
	}
	return p
}
