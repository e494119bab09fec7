// Package cli is what the command lines of all programs have in common. Flags are also variables and keys of a file. It
// has help, completion, exit codes, and results as text or JSON. It knows no command.
package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"golang.org/x/term"

	"github.com/millrace/millrace/internal/config"
)

// Program is one program, and what its commands take from the world around them.
type Program struct {
	Name           string
	Stdin          io.Reader
	Stdout, Stderr io.Writer
	LookupEnv      func(string) (string, bool)
	Environ        []string // all of it, NAME=value
	// Foreign are variables of other programs of the project, which Environ may have.
	Foreign []string
	// Columns returns the width of the terminal that shows help.
	Columns func() int

	Results Results

	offers []func() // register completions; see Offer
}

// New returns the program in this process, with the process' streams and environment.
func New(name string) Program {
	return Program{
		Name:      name,
		Stdin:     os.Stdin,
		Stdout:    os.Stdout,
		Stderr:    os.Stderr,
		LookupEnv: os.LookupEnv,
		Environ:   os.Environ(),
		Columns: func() int {
			if columns, _, err := term.GetSize(int(os.Stdout.Fd())); err == nil && columns > 0 {
				return columns
			}
			return 80
		},
	}
}

// Run executes one command line and returns the exit code. It calls root once, after it
// has made Stdout and Stderr safe to print anything to.
func (p *Program) Run(ctx context.Context, args []string, root func() *cobra.Command) int {
	p.Stdout, p.Stderr, p.Results, p.offers = &safe{out: p.Stdout}, &safe{out: p.Stderr}, Results{}, nil
	top := root()
	top.SetArgs(args)
	if len(args) > 0 && strings.HasPrefix(args[0], cobra.ShellCompRequestCmd) { // or ShellCompNoDescRequestCmd
		for _, offer := range p.offers {
			offer()
		}
		completeValues(top) // before plainUsages, which removes the kinds of values
		plainUsages(top)
	}
	cmd, err := top.ExecuteContextC(ctx)
	return p.finish(ctx, cmd, args, err)
}

// Offer has the shell complete the values of a flag by a function. Cobra learns of it only when a shell asks: it
// never forgets a flag, nor what that refers to, and tests make all commands thousands of times.
func (p *Program) Offer(cmd *cobra.Command, flag string, offered cobra.CompletionFunc) {
	p.offers = append(p.offers, func() { _ = cmd.RegisterFlagCompletionFunc(flag, offered) })
}

// Complete gives the root of all commands what they have in common.
func (p *Program) Complete(root *cobra.Command) {
	root.Use = p.Name
	root.SilenceErrors, root.SilenceUsage, root.DisableSuggestions = true, true, true // see usageHint
	root.SetIn(p.Stdin)
	root.SetOut(p.Stdout)
	root.SetErr(p.Stderr)
	root.SetUsageFunc(p.usage)
	b := BuildInfo()
	root.Version = b.Version
	root.SetVersionTemplate(b.text(p.Name))
	root.AddCommand(p.versionCommand())
	root.InitDefaultCompletionCmd()
	failWithCode(root)
	p.makeReady(root)
}

func runGroup(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return cmd.Help()
	}
	return fmt.Errorf("unknown command %q for %q", args[0], cmd.CommandPath())
}

// OneArg accepts one argument, which what names.
func OneArg(what string) cobra.PositionalArgs {
	return func(_ *cobra.Command, args []string) error {
		switch len(args) {
		case 0:
			return fmt.Errorf("no %s is given", what)
		case 1:
			return nil
		}
		return fmt.Errorf("unexpected argument %q", args[1])
	}
}

// makeReady has every command without its own PreRunE call Ready. The program itself starts
// hidden commands, with all that they need.
func (p *Program) makeReady(cmd *cobra.Command) {
	if cmd.Hidden {
		return
	}
	if cmd.Runnable() && cmd.PreRunE == nil {
		cmd.PreRunE = func(cmd *cobra.Command, _ []string) error {
			return p.Ready(cmd, "", func(o config.Origins) config.Problems { return config.CheckChoices(cmd.Flags(), o) })
		}
	}
	for _, sub := range cmd.Commands() {
		p.makeReady(sub)
	}
}

// Ready completes the flags of a command from the environment and the file's section name, and
// checks them. One error has all problems. It logs warnings.
func (p *Program) Ready(cmd *cobra.Command, name string, check func(config.Origins) config.Problems) error {
	fs := cmd.Flags()
	origins, problems := config.Load(fs, name, config.Inputs{LookupEnv: p.LookupEnv, ReadFile: os.ReadFile})
	problems = append(problems, check(origins)...)
	warnings := config.Unknown(p.Environ, fs, AllFlags(cmd.Root()), p.Foreign)
	if len(problems) == 0 {
		warnings = append(warnings, config.Warnings(fs, origins)...)
	}
	log := config.NewLog(p.Stderr, flagText(fs, "log-level"), flagText(fs, "log-format"))
	for _, w := range warnings {
		log.Warn(w.Setting+" "+w.What, "where", w.Where, "hint", w.How)
	}
	if len(problems) > 0 {
		return problems
	}
	return nil
}

func flagText(fs *pflag.FlagSet, name string) string {
	if f := fs.Lookup(name); f != nil {
		return f.Value.String()
	}
	return ""
}

// AllFlags returns the flags of a command and of all below it that are not hidden.
func AllFlags(cmd *cobra.Command) (out []*pflag.Flag) {
	if !cmd.Hidden {
		cmd.Flags().VisitAll(func(f *pflag.Flag) { out = append(out, f) })
	}
	for _, sub := range cmd.Commands() {
		out = append(out, AllFlags(sub)...)
	}
	return out
}

// BindOutput gives a command without settings its --output.
func BindOutput(cmd *cobra.Command, output *string, forms ...string) {
	last := len(forms) - 1
	cmd.Flags().StringVarP(output, "output", "o", "text",
		"`form` of the result: "+strings.Join(forms[:last], ", ")+" or "+forms[last])
	config.Restrict(cmd.Flags(), "output", forms...)
}

// Plain returns foreign text, a name or a message, as one line without control characters.
func Plain(s string) string { return string(Escape(nil, []byte(s), "")) }

// Escape appends text to dst. A character that is neither graphic nor one of keep becomes an
// escape that means the same in JSON.
func Escape(dst, text []byte, keep string) []byte {
	for len(text) > 0 {
		r, n := utf8.DecodeRune(text)
		switch {
		case r == utf8.RuneError && n == 1:
			dst = fmt.Appendf(dst, `\x%02x`, text[0])
		case unicode.IsGraphic(r) || strings.ContainsRune(keep, r):
			dst = append(dst, text[:n]...)
		default:
			dst = escapeRune(dst, r)
		}
		text = text[n:]
	}
	return dst
}

func escapeRune(dst []byte, r rune) []byte {
	switch r {
	case '\n':
		return append(dst, `\n`...)
	case '\t':
		return append(dst, `\t`...)
	case '\r':
		return append(dst, `\r`...)
	}
	for _, u := range utf16.AppendRune(nil, r) {
		dst = fmt.Appendf(dst, `\u%04x`, u)
	}
	return dst
}

// safe escapes control characters of all output, except newlines and tabs.
type safe struct {
	mu   sync.Mutex
	out  io.Writer
	tail []byte // the first bytes of a character whose others are still to come
}

func (s *safe) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	text := append(s.tail, p...)
	end := len(text)
	for i := 1; i < utf8.UTFMax && i <= len(text); i++ {
		if b := text[len(text)-i]; utf8.RuneStart(b) {
			if !utf8.FullRune(text[len(text)-i:]) {
				end -= i
			}
			break
		}
	}
	_, err := s.out.Write(Escape(nil, text[:end], "\n\t"))
	s.tail = append([]byte(nil), text[end:]...)
	return len(p), err
}

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

// completeValues has the shell offer words, files or directories for the values of flags. What Offer was given stays.
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
