package main

import (
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
)

// completeValues has the shell offer the words of flags that take others.
func (a *app) completeValues(cmd *cobra.Command) {
	words := map[string][]string{"until": {"never", "caught-up"}, "start-at": {"checkpoint"}}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if config.Choices(f) == nil && words[f.Name] != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words[f.Name], cobra.ShellCompDirectiveNoFileComp))
		}
	})
	for _, sub := range cmd.Commands() {
		a.completeValues(sub)
	}
}
