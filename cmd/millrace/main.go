// Command millrace moves and replicates MongoDB data.
package main

import (
	"context"
	_ "embed"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/spf13/cobra"

	"github.com/millrace/millrace/internal/cli"
	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/service/operate"
	"github.com/millrace/millrace/internal/verify"
)

// app holds what the commands take from the world around them.
type app struct {
	cli.Program
	open   func(context.Context, job.Spec) (syncJob, error)
	verify func(context.Context, verify.Spec) (*verify.Report, error)
	// screen returns the terminal for live views, nil when there is none.
	screen func() *screen
}

// syncJob is a job as the commands use it.
type syncJob interface {
	operate.Controller
	Plan(context.Context) (*job.Plan, error)
	Run(context.Context) error
	Close()
}

func newApp() *app {
	a := &app{
		Program: cli.New(name),
		open:    func(ctx context.Context, spec job.Spec) (syncJob, error) { return job.Open(ctx, spec) },
		verify:  verify.Clusters,
		screen:  func() *screen { return newScreen(os.Stderr) },
	}
	a.Foreign = strings.Fields(workshopVariables)
	return a
}

func (a *app) run(ctx context.Context, args []string) int {
	return a.Program.Run(ctx, args, a.rootCommand)
}

func (a *app) rootCommand() *cobra.Command {
	root := a.described("millrace", &cobra.Command{})
	root.AddCommand(
		command(a, config.CommandSync, (*session).sync, a.described("sync", &cobra.Command{})),
		statusCommand(a), pauseCommand(a), resumeCommand(a), throttleCommand(a), finalizeCommand(a),
		command(a, config.CommandReverse, (*session).reverse, a.described("reverse", &cobra.Command{})),
		command(a, config.CommandVerify, (*session).verifyClusters,
			a.described("verify", &cobra.Command{Annotations: map[string]string{cli.FailsWith: "trouble"}})),
		group(&cobra.Command{Use: "transform", Short: "Try rules on documents"},
			command(a, config.CommandTransformTest, (*session).tryRules, a.described("transform test", &cobra.Command{}))),
		group(&cobra.Command{Use: "config", Short: "Help with the configuration file"}, schemaCommand(a)),
		group(&cobra.Command{Use: "secrets", Short: "Seal connection strings for the service"},
			keygenCommand(a), sealCommand(a)),
		command(a, config.CommandServe, (*session).serve, a.described("serve", &cobra.Command{})),
		command(a, config.CommandWorker, (*session).worker, a.described("worker", &cobra.Command{})),
		guardWorkerCommand(),
		group(a.described("jobs", &cobra.Command{}), jobsCreateCommand(a), jobsListCommand(a), jobsShowCommand(a),
			jobsLogCommand(a), jobsVerifyCommand(a), jobsRepairCommand(a), jobsEditCommand(a), jobsRemoveCommand(a),
			jobsDropCommand(a)),
		group(a.described("workers", &cobra.Command{}), workersListCommand(a), workersDrainCommand(a),
			workersResumeCommand(a)),
		group(a.described("deadletters", &cobra.Command{}), lettersListCommand(a), lettersShowCommand(a),
			lettersRetryCommand(a), lettersExportCommand(a)),
		group(a.described("seed", &cobra.Command{}), seedGuardCommand(a), seedPrivateCommand(),
			command(a, config.CommandSeedLocal, (*session).seedLocal,
				a.described("seed local", &cobra.Command{Args: afterDash, ValidArgsFunction: cli.Files})),
			command(a, config.CommandSeedServe, (*session).seedServe, a.described("seed serve", &cobra.Command{})),
			command(a, config.CommandSeedAgent, (*session).seedAgent,
				a.described("seed agent", &cobra.Command{Args: afterDash, ValidArgsFunction: cli.Files})),
			command(a, config.CommandSeedPull, (*session).seedPull,
				a.described("seed pull", &cobra.Command{Args: afterDash, ValidArgsFunction: cli.Files}))),
		group(a.described("topology", &cobra.Command{}), topologyShowCommand(a), topologyPlanCommand(a),
			topologyWhatIfCommand(a), topologyAdviseCommand(a), topologyApplyCommand(a), topologyHoldCommand(a),
			topologyReleaseCommand(a), topologyChainingCommand(a)),
		group(a.described("debug", &cobra.Command{}), debugOplogCommand(a), debugSlicesCommand(a)),
	)
	a.Complete(root)
	return root
}

// misuse is an error of wrong usage, with what to do instead.
func misuse(err error, hint string) error {
	return cli.WithCode(cli.ExitUsage, mongo.WithHint(err, hint))
}

type session struct {
	*app
	screen *screen      // the terminal for a live view, nil without one
	log    *slog.Logger // to standard error, above the live view
}

func command[S any, P interface {
	*S
	config.Settings
}](a *app, section string, do func(*session, context.Context, P) error, cmd *cobra.Command) *cobra.Command {
	s := P(new(S))
	return a.configured(cmd, section, s, func(ctx context.Context, run *session) error { return do(run, ctx, s) })
}

func group(cmd *cobra.Command, commands ...*cobra.Command) *cobra.Command {
	cmd.AddCommand(commands...)
	return cmd
}

// configured gives a command its settings, which PreRunE completes and checks, and its RunE.
func (a *app) configured(cmd *cobra.Command, name string, s config.Settings,
	do func(context.Context, *session) error) *cobra.Command {
	s.Bind(cmd.Flags(), name)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		return a.Ready(cmd, name, func(o config.Origins) config.Problems { return s.Validate(o, args) })
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		a.Results.Report = s.ReportFile()
		run := &session{app: a, screen: a.screen(), log: s.Logger(a.Stderr)}
		if run.screen != nil {
			run.log = s.Logger(run.screen)
		}
		return do(cmd.Context(), run)
	}
	return cmd
}

func (a *app) uri(flag, given string) string {
	if given == "" {
		given, _ = a.LookupEnv(config.EnvName(flag))
	}
	return given
}

// address returns the required uri of a flag, or none as an error.
func (a *app) address(flag, given string, none error) (string, error) {
	if uri := a.uri(flag, given); uri != "" {
		return uri, nil
	}
	return "", misuse(none, "use --"+flag+" or set "+config.EnvName(flag))
}

const name = "millrace"

func main() { os.Exit(newApp().run(cli.Signals(name), os.Args[1:])) }

// workshopVariables are the variables of millrace-bench, one a line: make docs writes them.
//
//go:embed workshop.variables
var workshopVariables string

// helpTexts has for each visible command a line with its parent and usage, a summary, a description, and examples.
//
//go:embed help.txt
var helpTexts string

// flagTexts has the flags of commands without settings (see config.Bind).
//
//go:embed flags.txt
var flagTexts string

func bind(cmd *cobra.Command, set string, vars ...config.Vars) {
	config.Bind(cmd.Flags(), flagTexts, set, vars...)
}

type help struct{ use, short, long, examples string }

// helpOf has the help texts by the paths of commands.
//
//nolint:gochecknoglobals // read once
var helpOf = sync.OnceValue(func() map[string]help {
	all := map[string]help{}
	for text := range strings.SplitSeq("\n"+helpTexts, "\n# ") {
		head, text, _ := strings.Cut(text, "\n")
		parent, use, below := strings.Cut(head, ": ")
		if !below {
			parent, use = "", head
		}
		name, _, _ := strings.Cut(use, " ")
		text, examples, _ := strings.Cut(text, "\nExamples:\n")
		short, long, _ := strings.Cut(text, "\n")
		all[strings.TrimSpace(parent+" "+name)] = help{use, short, strings.Trim(long, "\n"), strings.Trim(examples, "\n")}
	}
	return all
})

// described gives the command of a path its texts, and its flags the variables.
func (a *app) described(path string, cmd *cobra.Command, vars ...config.Vars) *cobra.Command {
	if len(vars) > 0 {
		bind(cmd, path, vars...)
	}
	if text, is := helpOf()[path]; is {
		cmd.Use, cmd.Short, cmd.Long, cmd.Example = text.use, text.short, text.long, text.examples
	}
	return cmd
}
