package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

func (a *app) docsCommand() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "docs",
		Short:  "Write the help of all commands as Markdown",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return writeDocs(dir, cmd.Root())
		},
	}
	cmd.Flags().StringVar(&dir, "dir", "docs/cli", "directory to write to; its other Markdown files are removed")
	return cmd
}

// writeDocs makes dir hold exactly the pages of the command tree.
func writeDocs(dir string, root *cobra.Command) error {
	pages := docPages(root)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write docs: %w", err)
	}
	old, err := filepath.Glob(filepath.Join(dir, "*.md"))
	if err != nil {
		return fmt.Errorf("write docs: %w", err)
	}
	for _, path := range old {
		if _, kept := pages[filepath.Base(path)]; !kept {
			if err := os.Remove(path); err != nil {
				return fmt.Errorf("write docs: %w", err)
			}
		}
	}
	for name, page := range pages {
		if err := os.WriteFile(filepath.Join(dir, name), page, 0o644); err != nil {
			return fmt.Errorf("write docs: %w", err)
		}
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
		fmt.Fprintf(&b, "\n## Examples\n\n```\n%s\n```\n", strings.TrimRight(dedent(c.Example), "\n"))
	}
	docFlags(&b, c)
	docCommands(&b, c)
	b.WriteString("\n<!-- written by `millrace docs`; do not edit -->\n")
	return b.Bytes()
}

func dedent(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = strings.TrimPrefix(lines[i], "  ")
	}
	return strings.Join(lines, "\n")
}

func docFlags(b *bytes.Buffer, c *cobra.Command) {
	var rows []string
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if f.Hidden || f.Name == "help" {
			return
		}
		kind, usage := pflag.UnquoteUsage(f)
		flag := "--" + f.Name
		if kind != "" {
			flag += " " + kind
		}
		rows = append(rows, fmt.Sprintf("| `%s` | %s | %s |", flag, cell(defaultText(f)), cell(usage)))
	})
	if len(rows) == 0 {
		return
	}
	fmt.Fprintf(b, "\n## Flags\n\n| flag | default | meaning |\n|---|---|---|\n%s\n", strings.Join(rows, "\n"))
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

func docCommands(b *bytes.Buffer, c *cobra.Command) {
	var rows []string
	for _, sub := range c.Commands() {
		if sub.Hidden || sub.Name() == "help" || c.Name() == "completion" {
			continue
		}
		rows = append(rows, fmt.Sprintf("| [%s](%s) | %s |", sub.CommandPath(), docFile(sub), cell(sub.Short)))
	}
	if len(rows) > 0 {
		fmt.Fprintf(b, "\n## Commands\n\n| command | what it does |\n|---|---|\n%s\n", strings.Join(rows, "\n"))
	}
}
