package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"

	"github.com/millrace/millrace/internal/config"
	"github.com/millrace/millrace/internal/mongo"
	"github.com/millrace/millrace/internal/outfile"
	"github.com/millrace/millrace/internal/precheck"
	"github.com/millrace/millrace/internal/suggest"
)

// The exit codes of all commands. One that a signal ended has 128 and the signal's number.
const (
	ExitOK      = 0
	ExitFailure = 1 // it was tried and failed, or differences were found
	ExitUsage   = 2 // wrong usage, or a precheck failed: nothing was written
	ExitTrouble = 2 // of a command that compares: there is no answer
)

func exitCode(ctx context.Context, err error) int {
	if err == nil {
		return ExitOK
	}
	if signal, ok := errors.AsType[Stopped](context.Cause(ctx)); ok {
		return 128 + int(signal.Signal)
	}
	if _, refused := errors.AsType[precheck.Failed](err); refused {
		return ExitUsage
	}
	if coded, ok := errors.AsType[*exitError](err); ok {
		return coded.code
	}
	return ExitUsage
}

// Stopped is why the program's context ended after a signal.
type Stopped struct{ syscall.Signal }

func (s Stopped) Error() string { return "stopped by " + unix.SignalName(s.Signal) }

// exitError is an error of a command that ran, with its exit code. Any other error that cobra returns is one of usage.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

// WithCode gives err an exit code; nil stays nil.
func WithCode(code int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{code: code, err: err}
}

// FailsWith is the annotation of a command whose failures have another code than ExitFailure.
const FailsWith = "fails with trouble"

func failureCode(cmd *cobra.Command) int {
	if _, ok := cmd.Annotations[FailsWith]; ok {
		return ExitTrouble
	}
	return ExitFailure
}

// failWithCode gives errors of running a command an exit code, which errors of usage lack. A
// group of commands refuses unknown names. A command takes no arguments unless it has Args.
func failWithCode(cmd *cobra.Command) {
	if cmd.HasParent() && cmd.HasSubCommands() && !cmd.Runnable() {
		cmd.RunE = runGroup
	} else if run := cmd.RunE; run != nil {
		if cmd.Args == nil {
			cmd.Args = noArgs
		}
		cmd.RunE = func(cmd *cobra.Command, args []string) error {
			err := run(cmd, args)
			var coded *exitError
			var problems config.Problems
			if errors.As(err, &coded) || errors.As(err, &problems) {
				return err
			}
			return WithCode(failureCode(cmd), err)
		}
	}
	for _, sub := range cmd.Commands() {
		failWithCode(sub)
	}
}

// noArgs refuses arguments. A command with others below it takes one for the name of such a command.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 || cmd.HasAvailableSubCommands() {
		return cobra.NoArgs(cmd, args)
	}
	return fmt.Errorf("%s takes no argument: %q", cmd.CommandPath(), args[0])
}

type failure struct {
	Error  string        `json:"error"`
	Hint   string        `json:"hint,omitempty"`
	Checks precheck.List `json:"checks,omitempty"` // of a precheck that forbids the work
}

// Results are what a command has to say in JSON when it ends.
type Results struct {
	Value  any    // nil for nothing
	Report string // the file that is to hold it, too; "" for none
	Stream bool   // standard output has a document for each of many things
}

// finish prints how a command ended and returns its exit code. Nothing else prints errors.
func (p *Program) finish(ctx context.Context, cmd *cobra.Command, args []string, err error) int {
	if cause := context.Cause(ctx); cause != nil && errors.Is(err, context.Canceled) && !errors.Is(err, cause) {
		err = WithCode(ExitFailure, cause) // says more than "context canceled"
	}
	if _, ran := errors.AsType[*exitError](err); err != nil && !ran && mongo.HintOf(err) == "" {
		err = mongo.WithHint(err, usageHint(cmd, err))
	}
	if mongo.IsCode(err, mongo.CodeUnauthorized) && mongo.HintOf(err) == "" {
		err = mongo.WithHint(err, "the user lacks a role that this needs; docs/reference/privileges.md lists them")
	}
	code := exitCode(ctx, err)
	if p.Results.Report != "" {
		if kept := outfile.Write(p.Results.Report, func(w io.Writer) error { return p.Results.write(w, err) }); kept != nil {
			err = errors.Join(err, fmt.Errorf("write report %s: %w", p.Results.Report, kept))
			code = cmp.Or(code, failureCode(cmd))
		}
	}
	if wantsJSON(cmd, args) && (err != nil || !p.Results.Stream) {
		if failed := p.Results.write(p.Stdout, err); failed != nil {
			err, code = errors.Join(err, failed), cmp.Or(code, failureCode(cmd))
		}
	}
	if err == nil {
		return code
	}
	fmt.Fprintf(p.Stderr, "%s: %s\n", p.Name, strings.Join(errorLines(err), "\n"))
	if hint := mongo.HintOf(err); hint != "" {
		fmt.Fprintf(p.Stderr, "hint: %s\n", Plain(hint))
	}
	return code
}

// usageHint returns the remedy for a command line that is not understood: the name that was
// probably meant, and where to look.
func usageHint(cmd *cobra.Command, err error) string {
	var name, dashes string
	var known []string
	if flag, ok := errors.AsType[*pflag.NotExistError](err); ok {
		name, dashes = flag.GetSpecifiedName(), "--"
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				known = append(known, f.Name)
			}
		})
	} else if n, _ := fmt.Sscanf(err.Error(), "unknown command %q", &name); n == 1 {
		for _, sub := range cmd.Commands() {
			if sub.IsAvailableCommand() {
				known = append(known, sub.Name())
			}
		}
	}
	hint := "see " + cmd.CommandPath() + " --help"
	if best := suggest.Name(name, known); best != "" {
		hint = "did you mean " + dashes + best + "? " + hint
	}
	return hint
}

// errorLines returns the lines of an error. Only joined errors and those with Lines have
// several; a name or a server's message adds none.
func errorLines(err error) (out []string) {
	switch e := any(err).(type) {
	case interface{ Lines() []string }:
		for _, line := range e.Lines() {
			out = append(out, Plain(mongo.Concise(line)))
		}
		return out
	case interface{ Unwrap() []error }:
		if all := e.Unwrap(); errors.Join(all...).Error() == err.Error() {
			for _, one := range all {
				out = append(out, errorLines(one)...)
			}
			return out
		}
	case interface{ Unwrap() error }:
		if inner := e.Unwrap(); inner != nil && strings.HasSuffix(err.Error(), inner.Error()) {
			out = errorLines(inner)
			out[0] = Plain(strings.TrimSuffix(err.Error(), inner.Error())) + out[0]
			return out
		}
	}
	return []string{Plain(mongo.Brief(err))}
}

// wantsJSON reports whether the result is JSON, also if the command line is not understood.
func wantsJSON(cmd *cobra.Command, args []string) bool {
	if f := cmd.Flags().Lookup("output"); f != nil && (f.Changed || f.Value.String() == "json") {
		return f.Value.String() == "json"
	}
	for i, arg := range args {
		if arg == "--" {
			break // the arguments of another program
		}
		if slices.Contains([]string{"--output=json", "-ojson", "-o=json"}, arg) ||
			arg == "json" && i > 0 && (args[i-1] == "--output" || args[i-1] == "-o") {
			return true
		}
	}
	return false
}

// write writes one document: the value, what is wrong, or both.
func (r *Results) write(w io.Writer, err error) error {
	switch {
	case err == nil && r.Value == nil:
		return WriteJSON(w, struct{}{})
	case err == nil:
		return WriteJSON(w, r.Value)
	}
	f := failure{Error: mongo.Brief(err), Hint: mongo.HintOf(err)}
	if failed, ok := errors.AsType[precheck.Failed](err); ok {
		f.Checks = precheck.List(failed)
	}
	if r.Value == nil {
		enc := json.NewEncoder(w) // one line, as each document of a stream is
		enc.SetEscapeHTML(false)
		return enc.Encode(f)
	}
	both, werr := joined(f, r.Value)
	if werr != nil {
		return fmt.Errorf("write result: %w", werr)
	}
	return WriteJSON(w, both)
}

// joined puts the fields of a failure before those of a value, and in place of its fields of the same names. A value
// without fields is named result.
func joined(f failure, value any) (json.RawMessage, error) {
	var first, second bytes.Buffer
	if err := errors.Join(WriteJSON(&first, f), WriteJSON(&second, value)); err != nil {
		return nil, err
	}
	head, rest := bytes.TrimSpace(first.Bytes()), bytes.TrimSpace(second.Bytes())
	if rest[0] != '{' {
		return append(append(append(head[:len(head)-1], `,"result":`...), rest...), '}'), nil
	}
	var taken map[string]json.RawMessage
	if err := json.Unmarshal(head, &taken); err != nil {
		return nil, err
	}
	out := head[:len(head)-1]
	fields := json.NewDecoder(bytes.NewReader(rest))
	if _, err := fields.Token(); err != nil { // the brace
		return nil, err
	}
	for fields.More() {
		var one json.RawMessage
		name, err := fields.Token()
		if err = errors.Join(err, fields.Decode(&one)); err != nil {
			return nil, err
		}
		if text, _ := name.(string); taken[text] == nil {
			key, _ := json.Marshal(text) // a string always has a form
			out = append(append(append(append(out, ','), key...), ':'), one...)
		}
	}
	return append(out, '}'), nil
}

// Tell prints a result: text at once, JSON with the error when the command ends.
func (p *Program) Tell(form string, v any, text string) error {
	p.Results.Value = v
	if form == "json" {
		return nil
	}
	_, err := io.WriteString(p.Stdout, text)
	return err
}

// WriteJSON writes one indented document.
func WriteJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false) // connection strings stay readable
	enc.SetIndent("", "  ")
	if err := enc.Encode(v); err != nil {
		return fmt.Errorf("write result: %w", err)
	}
	return nil
}

// Signals returns a context that ends at the first SIGINT, SIGTERM or SIGHUP. A later one ends the program called name
// at once; durable state stays.
func Signals(name string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	wanted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		wanted = append(wanted, syscall.SIGHUP)
	}
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, wanted...)
	began := time.Now()
	go func() {
		again := second(caught, func() time.Duration { return time.Since(began) },
			func(first syscall.Signal) { cancel(Stopped{first}) })
		fmt.Fprintln(os.Stderr, name+": stopped at once by a second signal")
		os.Exit(128 + int(again))
	}()
	return ctx
}

// sameSignal is how long after a signal another one is taken as the same: timeout(1) signals the process and its group.
const sameSignal = 300 * time.Millisecond

// second notifies of the first signal, and returns the second.
func second(caught <-chan os.Signal, clock func() time.Duration, notify func(first syscall.Signal)) syscall.Signal {
	first := (<-caught).(syscall.Signal)
	at := clock()
	notify(first)
	for {
		if again := (<-caught).(syscall.Signal); clock()-at >= sameSignal {
			return again
		}
	}
}

// Build says what this program was built from.
type Build struct {
	Version  string `json:"version"`
	Revision string `json:"revision,omitempty"`
	Time     string `json:"time,omitempty"`
	Modified bool   `json:"modified,omitempty"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

// BuildInfo returns what this program was built from, as far as the compiler has noted it.
func BuildInfo() Build {
	b := Build{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return b
	}
	if v := info.Main.Version; v != "" {
		b.Version = v
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			b.Revision = s.Value
		case "vcs.time":
			b.Time = s.Value
		case "vcs.modified":
			b.Modified = s.Value == "true"
		}
	}
	return b
}

func (b Build) text(program string) string {
	return fmt.Sprintf("%s %s (%s, %s)\n", program, b.Version, b.Go, b.Platform)
}

func (p *Program) versionCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Show what this program was built from",
		RunE: func(*cobra.Command, []string) error {
			b := BuildInfo()
			return p.Tell(output, b, b.text(p.Name))
		},
	}
	BindOutput(cmd, &output, "text", "json")
	return cmd
}
