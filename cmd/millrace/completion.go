package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/server"
)

// completeValues has the shell offer the words of flags that take others, too, and the
// jobs that run.
func (a *app) completeValues(cmd *cobra.Command) {
	words := map[string][]string{"until": {"never", "caught-up"}, "start-at": {"checkpoint"}}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		switch {
		case config.Choices(f) == nil && words[f.Name] != nil:
			_ = cmd.RegisterFlagCompletionFunc(f.Name, cobra.FixedCompletions(words[f.Name], cobra.ShellCompDirectiveNoFileComp))
		case f.Name == "job" && cmd.Name() != config.CommandSync: // which refuses one that runs
			_ = cmd.RegisterFlagCompletionFunc(f.Name, a.runningJobs)
		}
	})
	for _, sub := range cmd.Commands() {
		a.completeValues(sub)
	}
}

func (a *app) runningJobs(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	registry, err := server.NewRegistry(a.LookupEnv)
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	running, _ := registry.Running(cmd.Context())
	var names []string
	for _, r := range running {
		names = append(names, r.Job)
	}
	return slices.Compact(names), cobra.ShellCompDirectiveNoFileComp
}
