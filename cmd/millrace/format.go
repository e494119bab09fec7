package main

import (
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
)

// width is how many columns a plain text takes.
func width(s string) int { return text.StringWidthWithoutEscSequences(s) }

// cut shortens a plain text to n columns.
func cut(s string, n int) string { return text.Snip(s, n, "…") }

// pad fills a plain text up to n columns, or shortens it to them.
func pad(s string, n int) string { return text.Pad(cut(s, n), n, ' ') }

// bar draws a share n columns wide.
func bar(share float64, n int) string {
	full := int(share * float64(n))
	return strings.Repeat("█", full) + strings.Repeat("░", n-full)
}

// fit joins as many parts as fit into n columns; the first is shortened if it
// does not fit alone.
func fit(n int, parts ...string) string {
	var line string
	for i, p := range parts {
		switch {
		case p == "":
		case i == 0 || line == "":
			line = cut(p, n)
		case width(line)+2+width(p) > n:
			return line
		default:
			line += "  " + p
		}
	}
	return line
}
