package cli

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"runtime"
	"runtime/debug"
	"syscall"

	"github.com/spf13/cobra"
)

// Signals returns a context that ends at the first signal to interrupt, to
// terminate or to hang up; the second ends the program at once. What is durable
// by then stays: nothing is lost by it but time.
// The name is what it calls itself then.
func Signals(name string) context.Context {
	ctx, cancel := context.WithCancelCause(context.Background())
	wanted := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // as nohup has it
		wanted = append(wanted, syscall.SIGHUP)
	}
	caught := make(chan os.Signal, 2)
	signal.Notify(caught, wanted...)
	go func() {
		cancel(Stopped{(<-caught).(syscall.Signal)})
		again := (<-caught).(syscall.Signal)
		fmt.Fprintln(os.Stderr, name+": stopped at once by a second signal")
		os.Exit(128 + int(again))
	}()
	return ctx
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

// text is one line for people.
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
	BindOutput(cmd, &output, "`form` of the result: text or json", "text", "json")
	return cmd
}
