package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func docsCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Write the help of all commands as Markdown",
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return writeDocs(dir, cmd.Root()) },
	}
	cmd.Flags().StringVar(&dir, "dir", "docs/cli", "directory to write to; its other Markdown files are removed")
	return cmd
}

// writeDocs makes dir hold exactly the pages of the command tree.
func writeDocs(dir string, root *cobra.Command) error {
	old, err := filepath.Glob(filepath.Join(dir, "*.md"))
	errs := []error{err, os.MkdirAll(dir, 0o755)}
	for _, path := range old {
		errs = append(errs, os.Remove(path))
	}
	for name, page := range docPages(root) {
		errs = append(errs, os.WriteFile(filepath.Join(dir, name), page, 0o644))
	}
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("write docs: %w", err)
	}
	return nil
}

// docPages renders one page for each visible command, by file name. The text
// depends on the commands alone, so that a check can compare it.
func docPages(root *cobra.Command) map[string][]byte {
	root.InitDefaultCompletionCmd()
	root.InitDefaultHelpCmd()
	pages := map[string][]byte{}
	var walk func(*cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Hidden || c.Name() == "help" || c.HasParent() && c.Parent().Name() == "completion" {
			return
		}
		pages[docFile(c)] = docPage(c)
		for _, sub := range c.Commands() {
			walk(sub)
		}
	}
	walk(root)
	return pages
}

func docFile(c *cobra.Command) string {
	return strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md"
}

func docPage(c *cobra.Command) []byte {
	c.InitDefaultHelpFlag()
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n%s.\n", c.CommandPath(), strings.TrimSuffix(c.Short, "."))
	if c.Long != "" && c.Name() != "completion" {
		fmt.Fprintf(&b, "\n%s\n", strings.TrimSpace(c.Long))
	}
	if c.Runnable() && !c.HasSubCommands() {
		fmt.Fprintf(&b, "\n```\n%s\n```\n", c.UseLine())
	}
	if c.Example != "" {
		fmt.Fprintf(&b, "\n## Examples\n\n```\n%s\n```\n", strings.TrimSpace(strings.ReplaceAll("\n"+c.Example, "\n  ", "\n")))
	}
	var flags, commands []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		flags = append(flags, fmt.Sprintf("| `%s` | %s | %s |", strings.TrimSpace("--"+f.Name+" "+kind), cell(defaultText(f)), cell(usage)))
	})
	for _, sub := range c.Commands() {
		if !sub.Hidden && sub.Name() != "help" && c.Name() != "completion" {
			commands = append(commands, fmt.Sprintf("| [%s](%s) | %s |", sub.CommandPath(), docFile(sub), cell(sub.Short)))
		}
	}
	docTable(&b, "Flags", "| flag | default | meaning |\n|---|---|---|", flags)
	docTable(&b, "Commands", "| command | what it does |\n|---|---|", commands)
	b.WriteString("\n<!-- written by `millrace docs`; do not edit -->\n")
	return b.Bytes()
}

func docTable(b *bytes.Buffer, title, head string, rows []string) {
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n## %s\n\n%s\n%s\n", title, head, strings.Join(rows, "\n"))
	}
}

func defaultText(f *pflag.Flag) string {
	switch f.DefValue {
	case "", "[]", "false", "0", "0s":
		return ""
	}
	return "`" + f.DefValue + "`"
}

// cell keeps text from ending a table's cell.
func cell(s string) string {
	return strings.NewReplacer("|", `\|`, "\n", " ", "<", "&lt;").Replace(s)
}
