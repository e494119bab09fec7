package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

func docsCommand() *cobra.Command {
	var dir, variables, date string
	var man bool
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Write the help of all commands as Markdown or as man pages",
		Hidden: true,
		RunE: func(cmd *cobra.Command, _ []string) error {
			root := cmd.Root()
			if man {
				return writePages(dir, ManPages(root, date))
			}
			// Pages of commands that are no more are removed, those of other programs stay.
			old, err := filepath.Glob(filepath.Join(dir, root.Name()+"_*.md"))
			for _, path := range old {
				err = errors.Join(err, os.Remove(path))
			}
			if variables != "" {
				err = errors.Join(err, os.WriteFile(variables, VariablesOf(root), 0o644))
			}
			return errors.Join(err, writePages(dir, DocPages(root)))
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "docs/cli", "`directory` to write to")
	cmd.Flags().StringVar(&variables, "variables", "", "`file` for the names of all variables of flags")
	cmd.Flags().BoolVar(&man, "man", false, "write man pages")
	cmd.Flags().StringVar(&date, "date", "", "`day` that the man pages bear, as 2026-01-02")
	return cmd
}

func writePages(dir string, pages map[string][]byte) error {
	errs := []error{os.MkdirAll(dir, 0o755)}
	for name, page := range pages {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), page, 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write docs: %w", err)
	}
	return nil
}

// VariablesOf returns the names of all variables that the pages of a program's flags have,
// one a line.
func VariablesOf(root *cobra.Command) []byte {
	var flags []*pflag.Flag
	eachCommand(root, func(c *cobra.Command) {
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Name != "help" && !f.Hidden {
				flags = append(flags, f)
			}
		})
	})
	return []byte(strings.Join(config.AllVariables(flags), "\n") + "\n")
}

// DocPages returns a Markdown page for each visible command, by file name.
func DocPages(root *cobra.Command) map[string][]byte {
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
	b.WriteString("\n<!-- written by `" + c.Root().Name() + " docs`; do not edit -->\n")
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

// ManPages returns a man page with this date for each visible command, by file name.
func ManPages(root *cobra.Command, date string) map[string][]byte {
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

// usage is cobra's usage with flags below titles and folded to the terminal's width.
func (p *Program) usage(c *cobra.Command) error {
	var b strings.Builder
	b.WriteString("Usage:")
	if c.Runnable() {
		b.WriteString("\n  " + c.UseLine())
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("\n  " + c.CommandPath() + " [command]")
	}
	if c.HasExample() {
		b.WriteString("\n\nExamples:\n" + c.Example)
	}
	if c.HasAvailableSubCommands() {
		b.WriteString("\n\nAvailable Commands:")
		for _, sub := range c.Commands() {
			if sub.IsAvailableCommand() || sub.Name() == "help" {
				fmt.Fprintf(&b, "\n  %-*s %s", sub.NamePadding(), sub.Name(), sub.Short)
			}
		}
	}
	shortened := false
	for _, s := range config.Sections(c.LocalFlags()) {
		s.Flags.VisitAll(func(f *pflag.Flag) {
			summary, _, cut := strings.Cut(f.Usage, "\n")
			f.Usage, shortened = summary, shortened || cut
		})
		// The last column stays free: a character there may make the terminal wrap.
		fmt.Fprintf(&b, "\n\n%s:\n%s", s.Title, strings.TrimRight(s.Flags.FlagUsagesWrapped(p.Columns()-1), "\n"))
	}
	if shortened {
		b.WriteString("\n\nDetails of all flags: docs/cli/" + docFile(c) + ", man " + manName(c))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := io.WriteString(c.OutOrStderr(), b.String()+"\n")
	return err
}

// completeValues has the shell offer words, files or directories for the values of flags.
func completeValues(cmd *cobra.Command) {
	if !cmd.HasParent() {
		cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if offered := values(f); offered != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, offered)
		}
	})
	for _, sub := range cmd.Commands() {
		completeValues(sub)
	}
}

// plainUsages removes the quotes around the name of a flag's value, because shells show the usage.
func plainUsages(cmd *cobra.Command) {
	for _, flags := range []*pflag.FlagSet{cmd.LocalFlags(), cmd.InheritedFlags()} {
		flags.VisitAll(func(f *pflag.Flag) { _, f.Usage = pflag.UnquoteUsage(f) })
	}
	for _, sub := range cmd.Commands() {
		plainUsages(sub)
	}
}

// values are those that a flag takes, nil where anything may stand.
func values(f *pflag.Flag) cobra.CompletionFunc {
	words := config.Choices(f)
	kind, _ := pflag.UnquoteUsage(f)
	switch {
	case words != nil:
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	case kind == "file" || kind == "program":
		return Files
	case kind == "directory":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	}
	return nil
}

// Files has the shell offer those that there are.
func Files(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}
