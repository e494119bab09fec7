package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/verify"
)

// app holds what the commands take from the world around them.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	environ        []string // all of it, NAME=value
	open           func(context.Context, job.Spec) (syncJob, error)
	verify         func(context.Context, verify.Spec) (*verify.Report, error)
	// screen returns the terminal for live views, nil when there is none.
	screen func() *screen
	// columns is how wide the terminal is that shows help.
	columns func() int

	results results
}

// syncJob is a job as the commands use it.
type syncJob interface {
	server.Controller
	Plan(context.Context) (*job.Plan, error)
	Run(context.Context) error
	Close()
}

func newApp() *app {
	return &app{
		stdin:     os.Stdin,
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		lookupEnv: os.LookupEnv,
		environ:   os.Environ(),
		open:      func(ctx context.Context, spec job.Spec) (syncJob, error) { return job.Open(ctx, spec) },
		verify:    verify.Clusters,
		screen:    func() *screen { return newScreen(os.Stderr) },
		columns: func() int {
			if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && columns > 0 {
				return columns
			}
			return 80
		},
	}
}

// run executes one command line and returns the exit code.
func (a *app) run(ctx context.Context, args []string) int {
	a.stdout, a.stderr, a.results = &safe{out: a.stdout}, &safe{out: a.stderr}, results{}
	root := a.rootCommand()
	root.SetArgs(javaFlags(args))
	if len(args) > 0 && args[0] == cobra.ShellCompRequestCmd {
		plainUsages(root)
	}
	cmd, err := root.ExecuteContextC(ctx)
	return a.finish(ctx, cmd, args, err)
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Move and replicate MongoDB data, exactly and fast",
		Long: strings.TrimSpace(`
millrace copies MongoDB data between clusters, follows the changes, cuts over,
and proves that nothing differs.

Every flag can also be set in the environment, as MILLRACE_ and its name in
capitals with underscores (MILLRACE_ON_EXISTING=merge), and where a command has
--config also in the YAML file that this names, whose keys are the names of
flags; settings of one command may stand below its name (sync, seed-local). A
flag wins over the environment, the environment over the file. Passwords belong
into the environment or the file, for other users of the machine can see flags.

Exit codes: 0 done; 1 failed, or differences found; 2 wrong usage, or the
precheck failed and nothing was written; 128 and the number of the signal that
ended it: 130 SIGINT, 143 SIGTERM, 129 SIGHUP. verify has 2 for everything that
keeps it from an answer. A sync that is to follow until it is told (--until
never) ends with 0 when SIGINT or SIGTERM stops it: its checkpoint is kept.

With --output json there is one JSON document on standard output, however a
command ends: a failure has error, hint, and checks when a precheck failed. What
shows many things one after the other (--watch, debug oplog) has a line for each.`),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetIn(a.stdin)
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetUsageFunc(a.usage)
	b := buildInfo()
	root.Version = b.Version
	root.SetVersionTemplate(b.text())
	root.AddCommand(
		a.syncCommand(), a.statusCommand(), a.pauseCommand(), a.resumeCommand(), a.throttleCommand(), a.finalizeCommand(), a.verifyCommand(), a.transformCommand(), a.configCommand(), a.secretsCommand(),
		a.serveCommand(), a.workerCommand(), guardWorkerCommand(), a.jobsCommand(), a.workersCommand(), a.deadlettersCommand(), a.seedCommand(), a.topologyCommand(), a.ycsbCommand(), a.benchCommand(), a.labCommand(), a.debugCommand(), a.versionCommand(), docsCommand(),
	)
	root.InitDefaultCompletionCmd()
	failWithCode(root)
	a.makeReady(root)
	a.completeValues(root)
	return root
}

// group is a command without work of its own.
func group(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
}

// session is one run of a command with settings.
type session struct {
	*app
	screen *screen      // the terminal for a live view, nil without one
	log    *slog.Logger // to standard error, above the live view
	args   []string
}

// configured gives a command its settings and its RunE, which completes and
// checks them first.
func (a *app) configured(cmd *cobra.Command, name string, s config.Settings, do func(context.Context, *session) error) *cobra.Command {
	s.Bind(cmd.Flags(), name)
	cmd.PreRunE = func(cmd *cobra.Command, args []string) error {
		return a.ready(cmd, name, func(o config.Origins) config.Problems { return s.Validate(o, args) })
	}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		a.results.report = s.ReportFile()
		run := &session{app: a, screen: a.screen(), log: s.Logger(a.stderr), args: args}
		if run.screen != nil {
			run.log = s.Logger(run.screen)
		}
		return do(cmd.Context(), run)
	}
	return cmd
}

// makeReady has every command that is no settings' own get ready before it runs.
// Hidden ones are started by millrace itself, with all that they need.
func (a *app) makeReady(cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	if cmd.Runnable() && cmd.PreRunE == nil {
		cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
			return a.ready(cmd, "", func(o config.Origins) config.Problems { return config.CheckChoices(cmd.Flags(), o) })
		}
	}
	for _, sub := range cmd.Commands() {
		a.makeReady(sub)
	}
}

// ready completes the flags of a command and checks them, also after a problem, so
// that all problems are told at once. It warns of what works but should be known.
func (a *app) ready(cmd *cobra.Command, name string, check func(config.Origins) config.Problems) error {
	fs := cmd.Flags()
	origins, problems := config.Load(fs, name, config.Inputs{LookupEnv: a.lookupEnv, ReadFile: os.ReadFile})
	problems = append(problems, check(origins)...)
	warnings := config.Unknown(a.environ, fs, allFlags(cmd.Root()))
	if len(problems) == 0 {
		warnings = append(warnings, config.Warnings(fs, origins, fileMode)...)
	}
	log := config.NewLog(a.stderr, flagText(fs, "log-level"), flagText(fs, "log-format"))
	for _, p := range warnings {
		log.Warn(p.Setting+" "+p.What, "where", p.Where, "hint", p.How)
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

// flagText is the value of a flag, "" where there is none.
func flagText(fs *pflag.FlagSet, name string) string {
	if f := fs.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// allFlags are those of a command and of all below it.
func allFlags(cmd *cobra.Command) (out []*pflag.Flag) {
	if !cmd.Hidden {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { out = append(out, f) })
	}
	for _, sub := range cmd.Commands() {
		out = append(out, allFlags(sub)...)
	}
	return out
}

func fileMode(path string) (uint32, error) {
	info, err := os.Stat(path)
	if err != nil {
		return 0, err
	}
	return uint32(info.Mode().Perm()), nil
}

// bindOutput gives a command without settings its --output.
func bindOutput(cmd *cobra.Command, output *string, usage string, forms ...string) {
	cmd.Flags().StringVarP(output, "output", "o", "text", usage)
	config.Restrict(cmd.Flags(), "output", forms...)
}

// uri is the connection string of a flag, or of the environment, which hides
// passwords better.
func (a *app) uri(flag, given string) string {
	if given == "" {
		given, _ = a.lookupEnv(config.EnvName(flag))
	}
	return given
}

// address is a uri that a command needs; none says what is missing.
func (a *app) address(flag, given string, none error) (string, error) {
	if uri := a.uri(flag, given); uri != "" {
		return uri, nil
	}
	return "", withCode(exitUsage, mongo.WithHint(none, "use --"+flag+" or set "+config.EnvName(flag)))
}
