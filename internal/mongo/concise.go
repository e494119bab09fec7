package mongo

import (
	"strings"

	"github.com/millrace/millrace/internal/wire"
)

// Brief is what an error says, without the description of the whole deployment that
// the driver adds where no server is suitable, and else as [Concise] has it.
func Brief(err error) string {
	text := err.Error()
	if none, ok := wire.UnsuitableServers(err); ok {
		text = strings.Replace(text, none.Text, whyNone(none.Servers), 1)
	}
	// The driver begins a command's error with a blank
	return Concise(strings.ReplaceAll(strings.TrimSpace(text), ":  ", ": "))
}

// Concise shortens what a server quotes: of a command, which has its session, its
// cluster time or its database, only the first field stays.
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

// closing is where a text that begins with a brace has closed it, -1 for nowhere.
// Braces in strings do not count.
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
