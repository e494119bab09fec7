package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/job"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/server"
	"github.com/millrace/millrace/internal/verify"
)

// The exit codes of all commands.
const (
	exitOK      = 0
	exitFailure = 1 // it was tried and failed, or verify found differences
	exitUsage   = 2 // wrong usage, or a precheck failed: nothing was written
)

// app holds what the commands take from the world around them.
type app struct {
	stdout, stderr io.Writer
	lookupEnv      func(string) (string, bool)
	open           func(context.Context, job.Spec) (syncJob, error)
	verify         func(context.Context, verify.Spec) (*verify.Report, error)
	// screen returns the terminal for live views, nil when there is none.
	screen func() *screen
	// columns is how wide the terminal is that shows help.
	columns func() int
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
		stdout:    os.Stdout,
		stderr:    os.Stderr,
		lookupEnv: os.LookupEnv,
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

// run executes one command line and returns the exit code. The error is
// printed here and nowhere else.
func (a *app) run(ctx context.Context, args []string) int {
	root := a.rootCommand()
	root.SetArgs(javaFlags(args))
	cmd, err := root.ExecuteContextC(ctx)
	if err == nil {
		return exitOK
	}
	code := exitUsage
	var failed *exitError
	if errors.As(err, &failed) {
		code, err = failed.code, failed.err
	} else if hint := "see " + cmd.CommandPath() + " --help"; mongo.HintOf(err) == "" {
		err = mongo.WithHint(err, hint)
	}
	fmt.Fprintf(a.stderr, "millrace: %v\n", err)
	if hint := mongo.HintOf(err); hint != "" {
		fmt.Fprintf(a.stderr, "hint: %s\n", hint)
	}
	return code
}

// exitError is an error of a command that ran, with its exit code. Any other
// error that cobra returns is one of usage.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// withCode gives err an exit code; nil stays nil.
func withCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

func (a *app) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "millrace",
		Short: "Move and replicate MongoDB data, exactly and fast",
		Long: strings.TrimSpace(`
millrace copies MongoDB data between clusters, follows the changes, cuts over,
and proves that nothing differs.

Every flag can also be set in the environment, as MILLRACE_ and its name in
capitals with underscores (MILLRACE_ON_EXISTING=merge), or in the YAML file that
--config names, whose keys are the names of flags; settings of one command may
stand below its name. A flag wins over the environment, the environment over
the file. Passwords belong into the environment or the file, for other users of
the machine can see flags.

Exit codes: 0 done; 1 failed, or differences found; 2 wrong usage, or the
precheck failed and nothing was written.`),
		SilenceErrors: true,
		SilenceUsage:  true,
	}
	root.SetOut(a.stdout)
	root.SetErr(a.stderr)
	root.SetUsageFunc(a.usage)
	b := buildInfo()
	root.Version = b.Version
	root.SetVersionTemplate(b.text())
	root.AddCommand(
		a.syncCommand(), a.statusCommand(), a.pauseCommand(), a.resumeCommand(), a.throttleCommand(), a.finalizeCommand(), a.verifyCommand(),
		a.seedCommand(), a.topologyCommand(), a.ycsbCommand(), a.benchCommand(), labCommand(), a.debugCommand(), a.versionCommand(), docsCommand(),
	)
	root.InitDefaultCompletionCmd()
	failWithCode(root)
	a.completeValues(root)
	return root
}

// failWithCode tells errors of running a command from those of its usage, and
// lets a command that only groups others refuse names it does not have. A
// command takes no arguments unless it says otherwise.
func failWithCode(cmd *cobra.Command) {
	if cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = group
	} else if run := cmd.RunE; run != nil {
		if cmd.Args == nil {
			cmd.Args = cobra.NoArgs
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			var coded *exitError
			var problems config.Problems
			if errors.As(err, &coded) || errors.As(err, &problems) {
				return err
			}
			return withCode(exitFailure, err)
		}
	}
	for _, sub := range cmd.Commands() {
		failWithCode(sub)
	}
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
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		origins, problems := config.Load(cmd.Flags(), name, config.Inputs{LookupEnv: a.lookupEnv, ReadFile: os.ReadFile})
		// Checked also after a problem, so that all problems are told at once.
		if problems = append(problems, s.Validate(origins, args)...); len(problems) > 0 {
			return problems
		}
		run := &session{app: a, screen: a.screen(), log: s.Logger(a.stderr), args: args}
		if run.screen != nil {
			run.log = s.Logger(run.screen)
		}
		for _, p := range config.Warnings(cmd.Flags(), origins, fileMode) {
			run.log.Warn(p.Setting+" "+p.What, "where", p.Where, "hint", p.How)
		}
		return do(cmd.Context(), run)
	}
	return cmd
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
	cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if problems := config.CheckChoices(cmd.Flags(), nil); len(problems) > 0 {
			return problems
		}
		return nil
	}
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
