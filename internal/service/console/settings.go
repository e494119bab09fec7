package console

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"unicode"

	"github.com/millrace/millrace/internal/config"
)

// yamlText writes a text as a YAML value, with escapes for invisible characters.
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

// settings returns the YAML of the job that the form describes.
func (f *wizard) settings() string {
	var b strings.Builder
	one := func(key, value, usual string) {
		if value != usual {
			fmt.Fprintf(&b, "%s: %s\n", key, yamlText(value))
		}
	}
	list := func(key string, values []string) { b.WriteString(yamlList(key, values)) }
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

func yamlList(key string, values []string) string {
	if len(values) == 0 {
		return ""
	}
	text := key + ":\n"
	for _, v := range values {
		text += "  - " + yamlText(v) + "\n"
	}
	return text
}

// fill takes over the settings of a definition. It reports whether the form stands for just these.
func (f *wizard) fill(text string) bool {
	given := slices.DeleteFunc(config.ReadSettings(text), func(s config.Given) bool {
		return len(s.Values) == 1 && s.Values[0] == f.usual(s.Name)
	})
	for _, s := range given {
		if !f.put(s.Name, s.Values) {
			if len(s.Values) == 1 && !strings.Contains(s.Values[0], ",") {
				f.More += s.Name + ": " + yamlText(s.Values[0]) + "\n"
			} else {
				f.More += yamlList(s.Name, s.Values)
			}
		}
	}
	mine := config.ReadSettings(f.settings())
	for _, list := range [][]config.Given{given, mine} {
		slices.SortStableFunc(list, func(a, b config.Given) int { return strings.Compare(a.Name, b.Name) })
	}
	return slices.EqualFunc(given, mine, func(a, b config.Given) bool {
		return a.Name == b.Name && slices.Equal(a.Values, b.Values)
	})
}

// usual returns what the form leaves out as the default of a setting.
func (f *wizard) usual(name string) string {
	for _, o := range f.Options {
		if o.Key == name {
			return o.Values[0]
		}
	}
	if slices.ContainsFunc(f.Allows, func(a allow) bool { return a.Key == name }) {
		return "false"
	}
	return "\x00" // no setting has it
}

// put sets a field of the form, and reports whether there is one.
func (f *wizard) put(name string, values []string) bool {
	one := strings.Join(values, "\n")
	for i := range f.Texts {
		if f.Texts[i].Key == name {
			f.Texts[i].Text = one
			return true
		}
	}
	for i := range f.Options {
		if f.Options[i].Key == name && slices.Contains(f.Options[i].Values, one) {
			f.Options[i].Value = one
			return true
		}
	}
	for i := range f.Allows {
		if f.Allows[i].Key == name {
			f.Allows[i].On = one == "true"
			return true
		}
	}
	switch name {
	case "source":
		f.Source = one
	case "target":
		f.Target = one
	case "include":
		f.Choice.Some, f.Choice.Include = true, values
	case "exclude":
		f.Choice.Exclude = values
	case "rename":
		f.Choice.Rename = values
	default:
		return false
	}
	return true
}

// lined returns the lines of a text that are not empty.
func lined(text string) (out []string) {
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line != "" {
			out = append(out, line)
		}
	}
	return out
}
