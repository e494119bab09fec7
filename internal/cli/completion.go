package cli

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

// completeValues has the shell offer what flags take: words, files, directories. Where anything may stand it offers nothing.
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

// plainUsages takes the marks off that name a flag's value in its usage: the help
// reads them, and a shell shows the usage beside the flag as it stands.
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
