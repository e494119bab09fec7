package console

import (
	"fmt"
	"html/template"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/millrace/millrace/internal/config"
)

// maxWord is the length of words that a line never breaks, in characters.
const maxWord = 20

// foreign shows a text from outside: its direction stays inside, marks replace invisible characters, and long words
// may break.
func foreign(text string) template.HTML {
	var b strings.Builder
	b.WriteString("<bdi>")
	length := 0
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		b.WriteString(marked(text[:n], ""))
		text = text[n:]
		length++
		sign := length >= maxWord/2 && strings.ContainsRune("./_:,;=&?@|", r)
		switch {
		case r == ' ' || r == '-': // lines break there anyway
			length = 0
		case text != "" && (sign || length >= maxWord || !unicode.IsGraphic(r)):
			b.WriteString("<wbr>")
			length = 0
		}
	}
	b.WriteString("</bdi>")
	return template.HTML(b.String()) //nolint:gosec // each part is escaped
}

func advice(text string) template.HTML { return foreign(config.ForJobs(text)) }

func lines(text string) template.HTML {
	return template.HTML(marked(text, "\n\t")) //nolint:gosec // each part is escaped
}

// marked escapes a text for HTML. Marks show what is neither graphic nor in keep.
func marked(text, keep string) string {
	var b strings.Builder
	for text != "" {
		r, n := utf8.DecodeRuneInString(text)
		switch {
		case r == utf8.RuneError && n == 1:
			fmt.Fprintf(&b, `<mark>\x%02x</mark>`, text[0])
		case unicode.IsGraphic(r) || strings.ContainsRune(keep, r):
			b.WriteString(template.HTMLEscapeString(text[:n]))
		default:
			fmt.Fprintf(&b, `<mark>\u%04x</mark>`, r)
		}
		text = text[n:]
	}
	return b.String()
}

func short(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}
