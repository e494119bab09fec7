package cli

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

func writePages(dir string, pages map[string][]byte) error {
	errs := []error{os.MkdirAll(dir, 0o755)}
	for name, page := range pages {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), page, 0o644))
	}
	return errors.Join(errs...)
}

// variablesOf returns the names of all variables that the pages of a program's flags have, one a line.
func variablesOf(root *cobra.Command) []byte {
	var all []string
	eachCommand(root, func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if names := f.Annotations["variable"]; f.Name == "help" || f.Hidden || names != nil {
				all = append(all, names...)
			} else {
				all = append(all, config.EnvName(f.Name))
			}
		})
	})
	slices.Sort(all)
	return []byte(strings.Join(slices.Compact(all), "\n") + "\n")
}

// docPages returns a Markdown page for each visible command, by file name.
func docPages(root *cobra.Command) map[string][]byte {
	pages := map[string][]byte{}
	eachCommand(root, func(c *cobra.Command) { pages[docFile(c)] = docPage(c) })
	return pages
}

// eachCommand visits the commands that have a page, with the flags that cobra adds.
func eachCommand(c *cobra.Command, visit func(*cobra.Command)) {
	c.InitDefaultHelpFlag()
	c.InitDefaultVersionFlag()
	visit(c)
	for _, sub := range documented(c) {
		eachCommand(sub, visit)
	}
}

func documented(c *cobra.Command) []*cobra.Command {
	if c.Name() == "completion" {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(c.Commands()),
		func(sub *cobra.Command) bool { return sub.Hidden || sub.Name() == "help" })
}

func docFile(c *cobra.Command) string {
	return strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md"
}

func docPage(c *cobra.Command) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Long != "" && c.Name() != "completion" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.Long))
	}
	if c.Runnable() && !c.HasSubCommands() {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", c.UseLine())
	}
	if c.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```\n%s\n```\n",
			strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	}
	sections := config.Sections(c.Flags())
	for i, section := range sections {
		var flags []string
		section.Flags.VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" {
				kind, usage := config.Describe(f)
				flags = append(flags,
					fmt.Sprintf("| `%s` | %s | %s |", strings.TrimSpace("--"+f.Name+" "+kind), cell(defaultText(f)), cell(usage)))
			}
		})
		title := "## " + section.Title
		if len(sections) > 1 {
			title = "#" + title
		}
		if i == 0 && len(sections) > 1 {
			b.WriteString("\n## Flags\n")
		}
		docTable(&b, title, "| flag | default | meaning |\n|---|---|---|", flags)
	}
	var commands []string
	for _, sub := range documented(c) {
		commands = append(commands, fmt.Sprintf("| [%s](%s) | %s |", sub.CommandPath(), docFile(sub), cell(sub.Short)))
	}
	docTable(&b, "## Commands", "| command | what it does |\n|---|---|", commands)
	b.WriteString("\n<!-- written by make docs; do not edit -->\n")
	return b.Bytes()
}

func docTable(b *bytes.Buffer, title, head string, rows []string) {
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n%s\n\n%s\n%s\n", title, head, strings.Join(rows, "\n"))
	}
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return ""
	}
	return "`" + f.DefValue + "`"
}

func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s)
}

// manPages returns a man page with this date for each visible command, by file name.
func manPages(root *cobra.Command, date string) map[string][]byte {
	pages := map[string][]byte{}
	eachCommand(root, func(c *cobra.Command) { pages[manName(c)+".1"] = manPage(c, date) })
	return pages
}

func manName(c *cobra.Command) string { return strings.ReplaceAll(c.CommandPath(), " ", "-") }

func manPage(c *cobra.Command, date string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, ".TH %s 1 \"%s\" \"millrace %s\"\n.nh\n.ad l\n", roff(strings.ToUpper(manName(c))), date,
		roff(c.Root().Version))
	fmt.Fprintf(&b, ".SH NAME\n%s \\- %s\n", roff(manName(c)), roff(c.Short))
	fmt.Fprintf(&b, ".SH SYNOPSIS\n.B %s\n", roff(c.UseLine()))
	manLines(&b, "DESCRIPTION", c.Long)
	manLines(&b, "EXAMPLES", c.Example)
	sections := config.Sections(c.Flags())
	for i, s := range sections {
		if i == 0 {
			b.WriteString(".SH OPTIONS\n")
		}
		if len(sections) > 1 {
			fmt.Fprintf(&b, ".SS %s\n", roff(s.Title))
		}
		s.Flags.VisitAll(func(f *pflag.Flag) { manFlag(&b, f) })
	}
	var also []string
	if c.HasParent() {
		also = append(also, manName(c.Parent()))
	}
	for _, sub := range documented(c) {
		also = append(also, manName(sub))
	}
	b.WriteString(".SH SEE ALSO\n")
	for _, name := range also {
		fmt.Fprintf(&b, ".BR %s (1)\n", roff(name))
	}
	return b.Bytes()
}

func manFlag(b *bytes.Buffer, f *pflag.Flag) {
	kind, usage := config.Describe(f)
	name := "--" + f.Name
	if f.Shorthand != "" {
		name = "-" + f.Shorthand + ", " + name
	}
	if text := strings.Trim(defaultText(f), "`"); text != "" {
		usage += " (default " + text + ")"
	}
	fmt.Fprintf(b, ".TP\n\\fB%s\\fR \\fI%s\\fR\n%s\n", roff(name), roff(kind), roff(usage))
}

func manLines(b *bytes.Buffer, title, text string) {
	if text != "" {
		fmt.Fprintf(b, ".SH %s\n.nf\n%s\n.fi\n", title, roff(strings.Trim(text, "\n")))
	}
}

// roff escapes backslashes, a line's first dot or quote, and hyphens, which are rendered as
// other characters.
func roff(text string) string {
	text = strings.NewReplacer(`\`, `\e`, "-", `\-`, "\n.", "\n\\&.", "\n'", "\n\\&'").Replace(text)
	if strings.HasPrefix(text, ".") || strings.HasPrefix(text, "'") {
		text = `\&` + text
	}
	return text
}
