package main

import (
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/server"
)

// completeValues has the shell offer what flags take: words, files, directories,
// jobs that run. Where anything may stand it offers nothing.
func (a *app) completeValues(cmd *cobra.Command) {
	if !cmd.HasParent() {
		cmd.CompletionOptions.SetDefaultShellCompDirective(cobra.ShellCompDirectiveNoFileComp)
	}
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if values := a.values(cmd, f); values != nil {
			_ = cmd.RegisterFlagCompletionFunc(f.Name, values)
		}
	})
	for _, sub := range cmd.Commands() {
		a.completeValues(sub)
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
func (a *app) values(cmd *cobra.Command, f *pflag.Flag) cobra.CompletionFunc {
	words := config.Choices(f)
	if words == nil {
		words = map[string][]string{"until": {"never", "caught-up"}, "start-at": {"checkpoint"}}[f.Name]
	}
	kind, _ := pflag.UnquoteUsage(f)
	switch {
	case words != nil:
		return cobra.FixedCompletions(words, cobra.ShellCompDirectiveNoFileComp)
	case kind == "file" || kind == "program":
		return files
	case kind == "directory":
		return cobra.FixedCompletions(nil, cobra.ShellCompDirectiveFilterDirs)
	case f.Name == "job" && cmd.Name() != config.CommandSync: // which refuses one that runs
		return a.runningJobs
	}
	return nil
}

// files has the shell offer those that there are.
func files(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return nil, cobra.ShellCompDirectiveDefault
}

func (a *app) runningJobs(cmd *cobra.Command, _ []string, _ string) ([]cobra.Completion, cobra.ShellCompDirective) {
	registry, err := server.NewRegistry(a.lookupEnv)
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
