package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/config"
)

// usage is cobra's own usage, but with flags below titles and folded to the
// terminal's width.
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
	for _, s := range config.Sections(c.LocalFlags()) {
		// The last column stays free: a character there may make the terminal wrap.
		fmt.Fprintf(&b, "\n\n%s:\n%s", s.Title, strings.TrimRight(s.Flags.FlagUsagesWrapped(p.Columns()-1), "\n"))
	}
	if c.HasAvailableSubCommands() {
		fmt.Fprintf(&b, "\n\nUse \"%s [command] --help\" for more information about a command.", c.CommandPath())
	}
	_, err := io.WriteString(c.OutOrStderr(), b.String()+"\n")
	return err
}
