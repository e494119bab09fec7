package console

import (
	"fmt"
	"html/template"
	"strings"
	"unicode"
	"unicode/utf8"
)

// foreign is a text of others on a page: kept apart from the direction of the text
// around it, and with marks in place of what is not seen.
func foreign(text string) template.HTML { return "<bdi>" + marked(text, "") + "</bdi>" }

// lines is a text of several lines, for a pre element.
func lines(text string) template.HTML { return marked(text, "\n\t") }

// marked escapes a text. What is no graphic character, and none of keep, is written as
// an escape in a mark.
func marked(text, keep string) template.HTML {
	var b strings.Builder
	for len(text) > 0 {
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
	return template.HTML(b.String()) //nolint:gosec // each part is escaped
}

// short cuts a text to n characters.
func short(text string, n int) string {
	if utf8.RuneCountInString(text) <= n {
		return text
	}
	return string([]rune(text)[:n-1]) + "…"
}
