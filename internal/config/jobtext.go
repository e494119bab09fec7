package config

import (
	"regexp"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// Given is a setting with the values that a flag of its name would take.
type Given struct {
	Name   string
	Values []string
}

// ReadSettings returns what a valid definition sets, in the order of its text.
func ReadSettings(text string) (out []Given) {
	entries, _ := parseFile("settings", []byte(text), CommandSync)
	for _, e := range entries {
		out = append(out, Given{e.key, e.values})
	}
	return out
}

// ForJobs returns a text with settings of a definition in place of the flags of millrace sync. A definition has no
// restart: another job begins anew.
func ForJobs(text string) string {
	if !strings.Contains(text, "--") {
		return text
	}
	var s Sync
	fs := pflag.NewFlagSet("", pflag.ContinueOnError)
	s.Bind(fs, CommandSync)
	text = strings.NewReplacer("another --job, or --restart", "a new job", "another --job", "a new job",
		"with --restart, with", "as a new job, with", "with --restart and", "as a new job with",
		"with --restart", "as a new job", ", or --restart", ", or a new job", "--restart", "a new job").Replace(text)
	flag := regexp.MustCompile(`--([a-z]+(?:-[a-z]+)*)( (\S*[^\s,;:.)]))?`)
	var b strings.Builder
	end := 0
	for _, m := range flag.FindAllStringSubmatchIndex(text, -1) {
		f := fs.Lookup(text[m[2]:m[3]])
		if f == nil || slices.Contains(ofProcess(), f.Name) {
			continue
		}
		value := ""
		if m[6] >= 0 {
			value = text[m[6]:m[7]]
		}
		b.WriteString(text[end:m[0]])
		switch end = m[3]; {
		case f.Value.Type() == "bool":
			b.WriteString(f.Name + ": true")
		case slices.Contains(Choices(f), value) || len(Choices(f)) == 0 && strings.ContainsAny(value, "=0123456789"):
			b.WriteString(f.Name + ": " + value)
			end = m[7]
		default:
			b.WriteString("“" + f.Name + "”")
		}
	}
	return b.String() + text[end:]
}
