package console

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// yamlText is a text as a value in YAML. What is not seen is an escape in it.
func yamlText(s string) string {
	words := []string{"true", "false", "null", "yes", "no", "on", "off", "y", "n"}
	switch {
	case regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./:-]*[A-Za-z0-9_/-]$`).MatchString(s) &&
		!slices.Contains(words, strings.ToLower(s)):
		return s
	case !strings.ContainsFunc(s, func(r rune) bool { return !unicode.IsGraphic(r) || r == unicode.ReplacementChar }):
		return "'" + strings.ReplaceAll(s, "'", "''") + "'"
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"' || r == '\\':
			b.WriteByte('\\')
			b.WriteRune(r)
		case unicode.IsGraphic(r):
			b.WriteRune(r)
		case r > 0xffff:
			fmt.Fprintf(&b, `\U%08x`, r)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	b.WriteByte('"')
	return b.String()
}

// settings are the YAML of the job that the form describes.
func (f *wizard) settings() string {
	var b strings.Builder
	one := func(key, value, usual string) {
		if value != usual {
			fmt.Fprintf(&b, "%s: %s\n", key, yamlText(value))
		}
	}
	list := func(key string, values []string) {
		if len(values) == 0 {
			return
		}
		fmt.Fprintf(&b, "%s:\n", key)
		for _, v := range values {
			fmt.Fprintf(&b, "  - %s\n", yamlText(v))
		}
	}
	one("source", f.Source, "")
	one("target", f.Target, "")
	if f.Choice.Some {
		list("include", f.Choice.Include)
	}
	list("exclude", f.Choice.Exclude)
	list("rename", f.Choice.Rename)
	for _, t := range f.Texts {
		list(t.Key, lined(t.Text))
	}
	for _, o := range f.Options {
		one(o.Key, o.Value, o.Values[0])
	}
	for _, a := range f.Allows {
		if a.On {
			fmt.Fprintf(&b, "%s: true\n", a.Key)
		}
	}
	if more := strings.TrimSpace(f.More); more != "" {
		b.WriteString(more + "\n")
	}
	return b.String()
}

// lined are the lines of a text that are not empty.
func lined(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
