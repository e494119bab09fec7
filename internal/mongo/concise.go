package mongo

import (
	"strings"

	"github.com/millrace/millrace/internal/wire"
)

// Brief returns an error's text, without the driver's description of all servers, and else as [Concise] does.
func Brief(err error) string {
	text := err.Error()
	if none, ok := wire.UnsuitableServers(err); ok {
		text = strings.Replace(text, none.Text, whyNone(none.Servers), 1)
	}
	// The driver begins a command's error with a blank.
	return Concise(strings.ReplaceAll(strings.TrimSpace(text), ":  ", ": "))
}

// Concise shortens commands that a server quotes to their first field. Such a command has its session, its cluster
// time or its database.
func Concise(text string) string {
	var b strings.Builder
	for {
		open := strings.IndexByte(text, '{')
		if open < 0 {
			break
		}
		end := closing(text[open:])
		if end < 0 {
			break
		}
		doc := text[open : open+end]
		if strings.Contains(doc, `, $db: "`) || strings.Contains(doc, ", lsid: ") ||
			strings.Contains(doc, ", $clusterTime: ") {
			first, _, _ := strings.Cut(doc, ",")
			b.WriteString(text[:open] + first + ", … }")
			text = text[open+end:]
			continue
		}
		b.WriteString(text[:open+1])
		text = text[open+1:]
	}
	return b.String() + text
}

// closing returns where the brace that text begins with is closed, -1 for nowhere. Braces in strings do not count.
func closing(text string) int {
	depth, quoted := 0, false
	for i := 0; i < len(text); i++ {
		switch c := text[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{':
			depth++
		case c == '}':
			if depth--; depth == 0 {
				return i + 1
			}
		}
	}
	return -1
}
