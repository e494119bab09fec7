package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

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
		b.WriteString("\n\nDetails of all flags: docs/cli/" + strings.ReplaceAll(c.CommandPath(), " ", "_") + ".md, man " +
			strings.ReplaceAll(c.CommandPath(), " ", "-"))
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
	words := config.Words(f)
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
